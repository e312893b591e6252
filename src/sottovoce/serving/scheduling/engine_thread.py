"""One of the threads that do the work of a model: its engine, what is under way there, how busy it is.

PyTorch's number of threads for an operation belongs to the thread that asks (OpenMP), so each of these has
its own. Knows neither queues nor clients.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from sottovoce.engine.batching import BatchingExecutor
from sottovoce.engine.calls import CallGenerator
from sottovoce.engine.tasks import Priority, Task
from sottovoce.serving.parsing.faults import INTERNAL, fault_of, leaving

log = logging.getLogger(__name__)
Result = TypeVar("Result")

THREADS = torch.get_num_threads()
"""PyTorch's for an operation, before any engine has set its own: what a thread sets is also what new threads
of others begin with."""
_JUDGED_EVERY_S = 2.0
"""How busy a thread is, is looked at so often."""


@dataclass(slots=True)
class Job:
    """A piece of work that somebody waits for: a function without arguments, or calls for an executor.

    since: when it was asked for (seconds). on_work: told its part of the engine's work, in seconds of its
    `work_clock`.
    """

    priority: Priority
    since: float
    do: Callable[[], Any] | CallGenerator[Any]
    done: Future[Any]
    on_work: Callable[[float], None] | None = None
    task: Task[Any] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the model is at it, or has been."""
        return self.task is not None and not math.isnan(self.task.began_s)


@dataclass(frozen=True, slots=True)
class EngineState:
    """What an engine is at: live updates under way, whether a recording is, the part of the time at work."""

    n_live: int
    has_recording: bool
    busy: float


class EngineThread:
    """An engine, and who waits for what it does; everything but `state` is called in its own thread.

    engine: None does functions only. on_end: told of each job of the engine that is done. work_clock: seconds
    of work of the thread that calls it.
    """

    def __init__(
        self,
        engine: BatchingExecutor | None,
        on_end: Callable[[Job], None],
        work_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._work_clock = work_clock
        self._engine = engine
        self._on_end = on_end
        self._n_threads = 0
        self.under_way: tuple[Job, ...] = ()
        """Handed to the engine and not done."""
        self.is_at_work = False
        self.took_file = False
        """Whether it took up a recording before live work since its last round."""
        self._busy = _Share(time.monotonic())
        self.n_faults = 0
        """Of the server, one after the other, since anything went well."""
        self._busy_since_s = math.nan

    @property
    def state(self) -> EngineState:
        """What it is at now; from any thread."""
        under_way = self.under_way  # replaced by its own thread, never changed
        n_live = sum(job.priority is Priority.LIVE for job in under_way)
        return EngineState(n_live, len(under_way) > n_live, self._busy.now(time.monotonic()))

    @property
    def n_live(self) -> int:
        """Live jobs that were handed to the engine and are not done."""
        return sum(job.priority is Priority.LIVE for job in self.under_way)

    @property
    def has_room(self) -> bool:
        """Whether its engine can take up another update at once, rather than have it wait."""
        return self._engine is not None and self._engine.has_room

    @property
    def has_file_room(self) -> bool:
        """Whether its engine can take up another recording."""
        return self._engine is not None and self._engine.has_file_room

    @property
    def stalled_s(self) -> float:
        """How long it has been at one piece of work."""
        since_s = self._busy_since_s
        return 0.0 if math.isnan(since_s) else time.monotonic() - since_s

    @contextmanager
    def working(self) -> Iterator[None]:
        """Be at one piece of work."""
        self._busy_since_s = time.monotonic()
        try:
            yield
        finally:
            self._busy_since_s = math.nan

    def use(self, n_threads: int) -> None:
        """Have PyTorch use so many threads for what is called here from now on."""
        if n_threads != self._n_threads:
            torch.get_num_threads()  # a thread that has not asked would take over what others set last
            torch.set_num_threads(n_threads)
            self._n_threads = n_threads

    def leave(self) -> None:
        """At the end of the thread: new threads of others begin with what they had."""
        for job in self.under_way:
            job.done.set_exception(leaving())
        torch.set_num_threads(THREADS)

    def begin(self, job: Job) -> None:
        """Hand calls to the engine; a generator that yields none is done with that."""
        assert self._engine is not None
        assert not callable(job.do)
        self.under_way = (*self.under_way, job)
        job.task = self._engine.begin(job.do, job.since, lambda task: self._end(job, task), job.priority)
        began = self._work_clock()
        self._call(self._engine.advance)
        if job.on_work is not None:
            job.on_work(self._work_clock() - began)

    def round(self) -> tuple[Priority | None, float]:
        """Let the engine do a round; return whose calls were done, and how long it took (seconds)."""
        assert self._engine is not None
        live = [job for job in self.under_way if job.priority is Priority.LIVE]
        began, work_began = time.monotonic(), self._work_clock()
        served = self._call(self._engine.round)
        took_s, worked_s = time.monotonic() - began, self._work_clock() - work_began
        self.worked(took_s)
        for job in live if served is not Priority.FILE else ():
            if job.on_work is not None:
                job.on_work(worked_s / len(live))
        return served, took_s

    def _call(self, do: Callable[[], Result]) -> Result | None:
        """Call the engine; where it fails itself, all that is under way ends with that."""
        assert self._engine is not None
        try:
            with self.working():
                return do()
        except Exception as error:  # not of one session: the engine itself; the thread goes on
            log.exception("the engine failed")
            self.n_faults += 1
            self._engine.forget()
            lost, self.under_way = self.under_way, ()
            for job in lost:
                job.done.set_exception(error)
            return None

    def worked(self, seconds: float) -> None:
        """It was at work for so long, until now."""
        self._busy.add(seconds, time.monotonic())

    def _end(self, job: Job, task: Task[Any]) -> None:
        """A task is done: tell who waits for it."""
        self.under_way = tuple(other for other in self.under_way if other is not job)
        if task.error is None:
            self.n_faults = self.n_faults if math.isnan(task.began_s) else 0
        elif fault_of(task.error).code == INTERNAL:
            self.n_faults += 1
        if task.error is not None:
            job.done.set_exception(task.error)
        else:
            job.done.set_result(task.result)
        if not math.isnan(task.began_s):  # else there was nothing for the model in it
            self._on_end(job)


class _Share:
    """The part of the time that something takes, of late."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._sum_s = 0.0
        self._last = 0.0

    def add(self, seconds: float, now_s: float) -> None:
        self._sum_s += seconds
        if now_s - self._since_s >= _JUDGED_EVERY_S:
            self._last = min(1.0, self._sum_s / (now_s - self._since_s))
            self._since_s, self._sum_s = now_s, 0.0

    def now(self, now_s: float) -> float:
        passed_s = now_s - self._since_s
        return self._last if passed_s < _JUDGED_EVERY_S else min(1.0, self._sum_s / passed_s)
