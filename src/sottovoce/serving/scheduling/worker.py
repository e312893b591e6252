"""The threads that do the work of one model, the most urgent first; no other thread touches the model.

Work is a generator of calls, which the executor of a thread batches with others in rounds, or a function
without arguments. All threads share one queue: a thread with room takes the next work, so that updates of a
session run in different threads. Does not know sessions or recordings.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from sottovoce.engine.batching import BatchingExecutor
from sottovoce.engine.calls import CallGenerator, Priority, Task
from sottovoce.engine.update_interval import UpdateIntervalController
from sottovoce.serving.parsing.faults import INTERNAL, fault_of, leaving

logger = logging.getLogger(__name__)

THREADS = torch.get_num_threads()
"""PyTorch's for an operation, before any engine has set its own: what a thread sets is also what new threads
of others begin with."""
_JUDGED_EVERY_S = 2.0
"""Interval at which the utilisation of a thread is measured."""
T = TypeVar("T")
THREAD_NAME = "sottovoce-model"
PATIENCE_S = 1.0
"""So long a recording waits for a thread without live work; then it shares one, where live work goes first
(`BatchingExecutor`)."""
FAULTS_IN_A_ROW = 5
"""From which on the model counts as broken, and not what it was asked."""
_FORGET = 0.9
"""Of the mean waiting time, at each new one."""
_HALF_LIFE_S = 5.0
"""Of a waiting time after which nothing came: an idle model is not busy."""


@dataclass(slots=True)
class Job:
    """A function without arguments, or calls for an executor, with the future of its result.

    since: the time of the request (seconds). on_work: called with its part of the engine's work, in seconds
    of its `work_clock`.
    """

    priority: Priority
    since: float
    do: Callable[[], Any] | CallGenerator[Any]
    done: Future[Any]
    on_work: Callable[[float], None] | None = None
    task: Task[Any] | None = None

    @property
    def has_begun(self) -> bool:
        return self.task is not None and not math.isnan(self.task.began_s)


@dataclass(frozen=True, slots=True)
class EngineState:
    """State of an engine: live updates under way, whether a recording is, and its utilisation."""

    n_live: int
    has_recording: bool
    busy: float


class EngineThread:
    """An engine and the jobs that it does. All but `state` is called in its own thread.

    on_end: called with each finished job. work_clock: seconds of work of the calling thread.
    """

    def __init__(
        self,
        engine: BatchingExecutor,
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
        """Its state now; from any thread."""
        under_way = self.under_way  # replaced by its own thread, never changed
        n_live = sum(job.priority is Priority.LIVE for job in under_way)
        return EngineState(n_live, len(under_way) > n_live, self._busy.now(time.monotonic()))

    @property
    def n_live(self) -> int:
        return sum(job.priority is Priority.LIVE for job in self.under_way)

    @property
    def has_room(self) -> bool:
        """Whether its engine can begin another update at once."""
        return self._engine.has_room

    @property
    def has_file_room(self) -> bool:
        return self._engine.has_file_room

    @property
    def stalled_s(self) -> float:
        since_s = self._busy_since_s
        return 0.0 if math.isnan(since_s) else time.monotonic() - since_s

    @contextmanager
    def working(self) -> Iterator[None]:
        self._busy_since_s = time.monotonic()
        try:
            yield
        finally:
            self._busy_since_s = math.nan

    def use(self, n_threads: int) -> None:
        """Set the number of threads of PyTorch in this thread."""
        if n_threads != self._n_threads:
            torch.get_num_threads()  # a thread that has not asked would take over what others set last
            torch.set_num_threads(n_threads)
            self._n_threads = n_threads

    def leave(self) -> None:
        """Fail all jobs, and restore the number of threads of PyTorch, which new threads inherit."""
        for job in self.under_way:
            job.done.set_exception(leaving())
        torch.set_num_threads(THREADS)

    def begin(self, job: Job) -> None:
        """Give calls to the engine; an empty generator is done at once."""
        assert not callable(job.do)
        self.under_way = (*self.under_way, job)
        job.task = self._engine.begin(job.do, job.since, lambda task: self._end(job, task), job.priority)
        began = self._work_clock()
        self._call(self._engine.advance)
        if job.on_work is not None:
            job.on_work(self._work_clock() - began)

    def round(self) -> tuple[Priority | None, float]:
        """Run a round of the engine; return the priority of its calls and the seconds that it took."""
        live = [job for job in self.under_way if job.priority is Priority.LIVE]
        began, work_began = time.monotonic(), self._work_clock()
        served = self._call(self._engine.round)
        took_s, worked_s = time.monotonic() - began, self._work_clock() - work_began
        self.worked(took_s)
        for job in live if served is not Priority.FILE else ():
            if job.on_work is not None:
                job.on_work(worked_s / len(live))
        return served, took_s

    def _call(self, do: Callable[[], T]) -> T | None:
        """Call the engine; if the engine itself fails, all of its jobs do."""
        try:
            with self.working():
                return do()
        except Exception as error:  # not of one session: the engine itself; the thread goes on
            logger.exception("the engine failed")
            self.n_faults += 1
            self._engine.forget()
            lost, self.under_way = self.under_way, ()
            for job in lost:
                job.done.set_exception(error)
            return None

    def worked(self, seconds: float) -> None:
        self._busy.add(seconds, time.monotonic())

    def _end(self, job: Job, task: Task[Any]) -> None:
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
    """The recent part of the time that something takes."""

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


class Worker:
    """Runs work in threads of its own until it is closed.

    engines: one a thread. on_live: called in one of them with seconds waited and worked of live work.
    n_threads: of PyTorch for an operation, shared among the busy engines. work_clock: the processor time of
    its thread, so that the time of other programs does not count as work of a session.
    """

    def __init__(
        self,
        engines: Sequence[BatchingExecutor],
        *,
        on_live: Callable[[float, float], None] | None = None,
        interval_controller: UpdateIntervalController | None = None,
        n_threads: int = THREADS,
        work_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._on_live = on_live
        self.interval_controller = interval_controller or UpdateIntervalController(time.monotonic())
        """How often live sessions are brought up to date."""
        self._waiting: dict[Priority, deque[Job]] = {priority: deque() for priority in Priority}
        self._condition = threading.Condition()
        self._is_closed = False
        self._wait_s = 0.0
        self._noted_s = time.monotonic()
        self._n_threads = n_threads
        self._engines = [EngineThread(engine, self._ended, work_clock) for engine in engines]
        self._threads = [
            threading.Thread(target=self._run, args=(engine,), name=THREAD_NAME, daemon=True)
            for engine in self._engines
        ]
        for thread in self._threads:
            thread.start()

    @property
    def n_waiting(self) -> int:
        return sum(map(len, self._waiting.values())) + sum(not job.has_begun for job in self._under_way)

    @property
    def live_wait_s(self) -> float:
        """The waiting time of live work, recent and now."""
        with self._condition:
            now = time.monotonic()
            waiting = [*self._waiting[Priority.LIVE], *(job for job in self._under_way if not job.has_begun)]
            oldest = min((job.since for job in waiting if job.priority is Priority.LIVE), default=now)
            lately = self._wait_s * math.pow(0.5, (now - self._noted_s) / _HALF_LIFE_S)
            return max(lately, now - oldest)

    @property
    def engines(self) -> list[EngineState]:
        return [engine.state for engine in self._engines]

    def trouble(self, stall_s: float) -> str | None:
        """Return a short reason why the worker makes no progress, or None.

        stall_s: of one call, after which it makes no progress.
        """
        if not self._is_closed and not all(thread.is_alive() for thread in self._threads):
            return "a thread of the model has ended"
        n_faults = max(engine.n_faults for engine in self._engines)
        if n_faults >= FAULTS_IN_A_ROW:
            return f"{n_faults} faults in a row"
        stalled_s = max(engine.stalled_s for engine in self._engines)
        return f"no progress for {stalled_s:.0f} s" if stalled_s > stall_s else None

    async def result_of(
        self,
        do: Callable[[], T] | CallGenerator[T],
        priority: Priority = Priority.LIVE,
        on_work: Callable[[float], None] | None = None,
    ) -> T:
        """Return the result of submitted work; when the caller is cancelled, so is work that has not begun.

        Raises: ApiError after `close`; the errors of the work.
        """
        return await asyncio.wrap_future(self.submit(do, priority, on_work))

    def submit(
        self,
        do: Callable[[], T] | CallGenerator[T],
        priority: Priority = Priority.LIVE,
        on_work: Callable[[float], None] | None = None,
    ) -> Future[T]:
        """Queue a function, or calls to batch with others; cancelling the future removes it.

        on_work: called in a worker thread with the part of these calls in an engine's work (seconds of
        `work_clock`). Raises: ApiError after `close`.
        """
        done: Future[T] = Future()
        job = Job(priority, time.monotonic(), do, done, on_work)
        with self._condition:
            if self._is_closed:
                raise leaving()
            self._waiting[priority].append(job)
            self._condition.notify()
        return done

    def close(self) -> None:
        """End after the current work, and cancel the rest."""
        with self._condition:
            self._is_closed = True
            for jobs in self._waiting.values():
                for job in jobs:
                    job.done.cancel()
                jobs.clear()
            self._condition.notify_all()

    def join(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self, engine: EngineThread) -> None:
        try:
            while self._wait(engine):
                job = self._next(engine)
                if job is not None:
                    self._take_up(engine, job)
                elif engine.under_way:
                    self._round(engine)
                del job  # and what it holds
        finally:
            engine.leave()

    def _wait(self, engine: EngineThread) -> bool:
        with self._condition:
            engine.is_at_work = bool(engine.under_way)
            while not (any(self._waiting.values()) or engine.under_way or self._is_closed):
                self._condition.wait()
            return not self._is_closed

    def _next(self, engine: EngineThread) -> Job | None:
        """Return the job to begin before the next round, or None.

        A recording that has waited too long goes before live work, one a round.
        """
        with self._condition:
            live, file = self._waiting[Priority.LIVE], self._waiting[Priority.FILE]
            is_aged = bool(file) and time.monotonic() - file[0].since >= PATIENCE_S
            if is_aged and not engine.took_file and self._may_take_file(engine, file[0]):
                engine.took_file = True
                chosen = file
            elif live and self._may_take_live(engine, live[0]):
                chosen = live
            elif file and not engine.n_live and self._may_take_file(engine, file[0]):
                chosen = file
            else:
                return None
            engine.is_at_work = True
            return chosen.popleft()

    def _may_take_live(self, engine: EngineThread, first: Job) -> bool:
        """Whether this thread should begin live work rather than another one."""
        is_full = len(self._engines) > 1 and not engine.has_room and not callable(first.do)
        return not (is_full and engine.n_live)

    def _may_take_file(self, engine: EngineThread, first: Job) -> bool:
        return callable(first.do) or engine.has_file_room

    def _take_up(self, engine: EngineThread, job: Job) -> None:
        if not job.done.set_running_or_notify_cancel():
            return
        engine.use(self._share_of(engine))
        if callable(job.do):
            self._do(engine, job)
        else:
            engine.begin(job)

    def _do(self, engine: EngineThread, job: Job) -> None:
        began = time.monotonic()
        try:
            assert callable(job.do)
            with engine.working():
                result = job.do()
        except BaseException as error:  # whatever it is, it belongs to who asked
            job.done.set_exception(error)
        else:
            job.done.set_result(result)
        engine.worked(time.monotonic() - began)
        self._note(job, began)

    def _round(self, engine: EngineThread) -> None:
        engine.use(self._share_of(engine))
        engine.took_file = False
        priority, took_s = engine.round()
        if priority is not Priority.FILE:
            with self._condition:
                self.interval_controller.note_work(took_s / len(self._engines), time.monotonic())

    def _share_of(self, engine: EngineThread) -> int:
        """Return the number of threads of PyTorch for this engine, its share among the busy ones."""
        n_at_work = sum(other.is_at_work for other in self._engines if other is not engine) + 1
        return max(1, self._n_threads // n_at_work)

    def _ended(self, job: Job) -> None:
        assert job.task is not None
        if job.priority is Priority.LIVE:
            with self._condition:
                self.interval_controller.note_wait(job.task.began_s - job.since)
        self._note(job, job.task.began_s)

    @property
    def _under_way(self) -> list[Job]:
        return [job for engine in self._engines for job in engine.under_way]

    def _note(self, job: Job, began: float) -> None:
        waited_s = began - job.since
        if job.priority is Priority.LIVE:
            with self._condition:
                self._wait_s = _FORGET * self._wait_s + (1 - _FORGET) * waited_s
                self._noted_s = began
            if self._on_live is not None:
                self._on_live(waited_s, time.monotonic() - began)
