"""The threads that do the work of one model, the most urgent first; nobody else touches the model.

Live work is steps of a generator, which an engine does in rounds together with those of others; all other
work is a function without arguments. One queue for all threads: whichever has room takes what is due next, so
that a session's updates are done now here, now there. Knows neither sessions nor recordings.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from sottovoce.engine.live import LiveEngine
from sottovoce.engine.pace import Pace
from sottovoce.serving.engine_thread import THREADS, EngineState, EngineThread, Job
from sottovoce.serving.faults import leaving
from sottovoce.streaming.work import Steps

T = TypeVar("T")

LIVE, FILE = 0, 1
"""Urgency: work of a live session goes before that of recordings, which take turns."""
NAME = "sottovoce-model"
"""Of the threads."""
PATIENCE_S = 1.0
"""So long a recording waits for a thread while live work goes first; there, live work goes before each of its
calls of the model (`live_first`)."""
FILE_SHARE = 0.1
"""Of a thread's time a recording has at least, however much live work there is."""
_FORGET = 0.9
"""Of the mean waiting time, at each new one."""
_HALF_LIFE_S = 5.0
"""Of a waiting time after which nothing came: an idle model is not busy."""


class Worker:
    """Does work in threads of its own until it is closed.

    on_done: told urgency, seconds waited and seconds worked, in one of them. engines: one a thread; without
    one, a thread that calls functions only. n_threads: PyTorch's for an operation, shared out among the
    engines that are at work. file_share: see `FILE_SHARE`.
    """

    def __init__(
        self,
        on_done: Callable[[int, float, float], None] | None = None,
        engines: Sequence[LiveEngine] = (),
        *,
        pace: Pace | None = None,
        n_threads: int = THREADS,
        file_share: float = FILE_SHARE,
    ) -> None:
        self._on_done = on_done
        self.pace = pace or Pace(time.monotonic())
        """How often live sessions are brought up to date."""
        self._file_share = file_share
        self._waiting: list[Job] = []
        self._numbers = itertools.count()
        self._condition = threading.Condition()
        self._is_closed = False
        self._wait_s = 0.0
        self._noted_s = time.monotonic()
        self._here = threading.local()
        self._n_threads = n_threads
        self._engines = [EngineThread(engine, self._ended) for engine in engines or (None,)]
        self._threads = [
            threading.Thread(target=self._run, args=(engine,), name=NAME, daemon=True)
            for engine in self._engines
        ]
        for thread in self._threads:
            thread.start()

    @property
    def n_waiting(self) -> int:
        """Pieces of work that have not begun."""
        return len(self._waiting) + sum(not job.has_begun for job in self._under_way)

    @property
    def live_wait_s(self) -> float:
        """How long live work waits: of late, and what waits now."""
        with self._condition:
            now = time.monotonic()
            waiting = [job for job in self._waiting if job.urgency == LIVE]
            waiting += [job for job in self._under_way if not job.has_begun]
            oldest = min((job.since for job in waiting), default=now)
            lately = self._wait_s * math.pow(0.5, (now - self._noted_s) / _HALF_LIFE_S)
            return max(lately, now - oldest)

    @property
    def engines(self) -> list[EngineState]:
        """What each engine is at."""
        return [engine.state for engine in self._engines]

    def submit(self, do: Callable[[], T], urgency: int) -> Future[T]:
        """Have work done; cancelling the future before it begins takes it out.

        Raises: ApiError after `close`.
        """
        return self._submitted(do, urgency)

    def submit_steps(self, steps: Steps[T]) -> Future[T]:
        """Have live work done, put together with that of others; cancelling as with `submit`.

        Raises: ApiError after `close`.
        """
        return self._submitted(steps, LIVE)

    def live_first(self) -> None:
        """Do live work, where there is any, before a recording's next call of the model.

        Called within a recording's work, in its thread; elsewhere it does nothing. A recording whose last
        call took long waits long, until it has had its share of the time.
        Raises: ApiError after `close`.
        """
        engine: EngineThread | None = getattr(self._here, "engine", None)
        if engine is None or engine.recording is None:
            return
        began = time.monotonic()
        called_s = began - self._here.called if self._here.called else PATIENCE_S
        until = began + called_s * (1.0 / self._file_share - 1.0)
        while time.monotonic() < until and self._did_live(engine):
            if self._is_closed:
                raise leaving()
        engine.use(self._share_of(engine))
        self._here.called = time.monotonic()
        self._here.live_s += self._here.called - began

    def _did_live(self, engine: EngineThread) -> bool:
        """Do live work, without waiting for any; whether there was."""
        job = self._next(engine, only_live=True)
        if job is None and not engine.under_way:
            return False
        if job is None:
            self._round(engine)
        else:
            self._take_up(engine, job)
        return True

    def _submitted(self, do: Callable[[], T] | Steps[T], urgency: int) -> Future[T]:
        done: Future[T] = Future()
        job = Job(urgency, next(self._numbers), time.monotonic(), do, done)
        with self._condition:
            if self._is_closed:
                raise leaving()
            heapq.heappush(self._waiting, job)
            self._condition.notify()
        return done

    def close(self) -> None:
        """End after the work at hand; what waits is cancelled."""
        with self._condition:
            self._is_closed = True
            for job in self._waiting:
                job.done.cancel()
            self._waiting.clear()
            self._condition.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the threads."""
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self, engine: EngineThread) -> None:
        self._here.engine = engine
        while self._wait(engine):
            job = self._next(engine)
            if job is not None:
                self._take_up(engine, job)
            elif engine.under_way:
                self._round(engine)
            del job  # and what it holds
        engine.leave()

    def _wait(self, engine: EngineThread) -> bool:
        """Wait until there is something to do; False at the end."""
        with self._condition:
            engine.is_at_work = bool(engine.under_way)
            while not (self._waiting or engine.under_way or self._is_closed):
                self._condition.wait()
            return not self._is_closed

    def _next(self, engine: EngineThread, *, only_live: bool = False) -> Job | None:
        """What this thread is to begin before its next round; None: nothing."""
        with self._condition:
            if not self._waiting or not self._may_take(engine, self._waiting[0], only_live):
                return None
            engine.is_at_work = True
            return heapq.heappop(self._waiting)

    def _may_take(self, engine: EngineThread, first: Job, only_live: bool) -> bool:
        """Whether what is most urgent is for this thread, or is left to another or for later."""
        if first.urgency == LIVE:
            is_full = len(self._engines) > 1 and not engine.has_room and not callable(first.do)
            return not (is_full and engine.under_way)
        is_patient = time.monotonic() - first.since < PATIENCE_S
        return not only_live and not (engine.under_way and is_patient)

    def _take_up(self, engine: EngineThread, job: Job) -> None:
        if not job.done.set_running_or_notify_cancel():
            return
        if callable(job.do):
            self._do(engine, job)
        else:
            engine.begin(job)

    def _do(self, engine: EngineThread, job: Job) -> None:
        began = time.monotonic()
        self._here.called, self._here.live_s = 0.0, 0.0
        engine.recording = job if job.urgency == FILE else None
        engine.use(self._share_of(engine))
        try:
            assert callable(job.do)
            result = job.do()
        except BaseException as error:  # whatever it is, it belongs to who asked
            job.done.set_exception(error)
        else:
            job.done.set_result(result)
        engine.recording = None
        engine.worked(time.monotonic() - began - self._here.live_s)
        self._note(job, began)

    def _round(self, engine: EngineThread) -> None:
        engine.use(self._share_of(engine))
        took_s = engine.round()
        with self._condition:
            self.pace.worked(took_s / len(self._engines), time.monotonic())

    def _share_of(self, engine: EngineThread) -> int:
        """PyTorch's threads for an operation of this engine: its part, with those at work beside it."""
        n_at_work = sum(other.is_at_work for other in self._engines if other is not engine) + 1
        return max(1, self._n_threads // n_at_work)

    def _ended(self, job: Job) -> None:
        assert job.task is not None
        with self._condition:
            self.pace.waited(job.task.began_s - job.since)
        self._note(job, job.task.began_s)

    @property
    def _under_way(self) -> list[Job]:
        return [job for engine in self._engines for job in engine.under_way]

    def _note(self, job: Job, began: float) -> None:
        waited_s = began - job.since
        if job.urgency == LIVE:
            with self._condition:
                self._wait_s = _FORGET * self._wait_s + (1 - _FORGET) * waited_s
                self._noted_s = began
        if self._on_done is not None:
            self._on_done(job.urgency, waited_s, time.monotonic() - began)
