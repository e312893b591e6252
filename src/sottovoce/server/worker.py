"""Threads for the work of sessions and recordings on one model.

Work is a function that calls the model through a `Caller`; the engines of a `BatchingRuntime` run the calls,
and Python code runs here. Live work and recordings have threads of their own.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from sottovoce.models.backend import Backend
from sottovoce.runtime.batching import (
    ENDED,
    THREAD_NAME,
    THREADS,
    BatchingRuntime,
    Caller,
    Priority,
)
from sottovoce.runtime.update_interval import UpdateIntervalController
from sottovoce.server.errors import INTERNAL, shutting_down, to_api_error

T = TypeVar("T")
FAULTS_IN_A_ROW = 5
_DECAY = 0.9
_HALF_LIFE_S = 5.0
"""Of the mean waiting time without new work."""


@dataclass(slots=True, eq=False)
class Job(Generic[T]):
    """A function and the future of its result. caller: through which it calls the model, or None."""

    priority: Priority
    submitted_s: float
    work: Callable[[], T]
    done: Future[T]
    caller: Caller | None

    @property
    def began_s(self) -> float:
        """When its first call of the model began; nan before it."""
        return math.nan if self.caller is None else self.caller.began_s


class Worker:
    """Runs work in its threads until it is closed.

    on_live: called in one of them with seconds waited and worked of live work. n_threads: of PyTorch, shared
    among the busy engines.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        n_engines: int = 1,
        on_live: Callable[[float, float], None] | None = None,
        interval_controller: UpdateIntervalController | None = None,
        n_threads: int = THREADS,
    ) -> None:
        self._on_live = on_live
        self.interval_controller = interval_controller or UpdateIntervalController(time.monotonic())
        self._condition = threading.Condition()
        self._waiting: dict[Priority, deque[Job[object]]] = {priority: deque() for priority in Priority}
        self._running_jobs: list[Job[object]] = []
        self._is_closed = False
        self._n_faults = 0
        self._wait_s = 0.0
        self._noted_s = time.monotonic()
        is_cpu = backend.device.type == "cpu"
        self.runtime = BatchingRuntime(
            backend,
            n_engines=n_engines,
            n_threads=n_threads,
            # A thread that waits for an accelerator may sleep: its processor time says nothing of the work.
            work_clock=time.thread_time if is_cpu else time.monotonic,
            on_live_round=self._note_round,
        )
        limits = self.runtime.batching
        counts = {Priority.LIVE: n_engines * limits.sessions, Priority.FILE: n_engines * limits.files}
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(priority,),
                name=f"{THREAD_NAME}-{priority.name.lower()}-{i}",
                daemon=True,
            )
            for priority, n in counts.items()
            for i in range(n)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def n_waiting(self) -> int:
        with self._condition:
            return len(self._not_started())

    @property
    def live_wait_s(self) -> float:
        with self._condition:
            now_s = time.monotonic()
            live = [job.submitted_s for job in self._not_started() if job.priority is Priority.LIVE]
            lately = self._wait_s * math.pow(0.5, (now_s - self._noted_s) / _HALF_LIFE_S)
            return max(lately, now_s - min(live, default=now_s))

    def health_error(self, stall_s: float) -> str | None:
        """Return why the worker makes no progress, or None. stall_s: longest time of a call."""
        if not self._is_closed and not all(thread.is_alive() for thread in self._threads):
            return ENDED
        if self._n_faults >= FAULTS_IN_A_ROW:
            return f"{self._n_faults} faults in a row"
        return self.runtime.trouble(stall_s)

    async def result_of(
        self, work: Callable[[], T], priority: Priority = Priority.LIVE, caller: Caller | None = None
    ) -> T:
        """Return the result of submitted work; cancellation removes work that has not begun.

        Raises: ApiError after `close`; the errors of the work.
        """
        return await asyncio.wrap_future(self.submit(work, priority, caller))

    def submit(
        self, work: Callable[[], T], priority: Priority = Priority.LIVE, caller: Caller | None = None
    ) -> Future[T]:
        """Queue work; cancelling the future removes it.

        caller: for one piece of work at a time. Raises: ApiError after `close`.
        """
        done: Future[T] = Future()
        job = Job(priority, time.monotonic(), work, done, caller)
        with self._condition:
            if self._is_closed:
                raise shutting_down()
            self._waiting[priority].append(job)  # type: ignore[arg-type]
            self._condition.notify_all()
        return done

    def close(self) -> None:
        with self._condition:
            self._is_closed = True
            for jobs in self._waiting.values():
                for job in jobs:
                    job.done.cancel()
                jobs.clear()
            self._condition.notify_all()
        self.runtime.close(shutting_down())

    def join(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self.runtime.join(max(0.0, end - time.monotonic()))

    def _run(self, priority: Priority) -> None:
        while (job := self._next(priority)) is not None:
            if job.done.set_running_or_notify_cancel():
                self._run_job(job)
            else:
                self._end(job)
            del job  # and what it holds

    def _run_job(self, job: Job[object]) -> None:
        began_s, work_began_s = time.monotonic(), time.thread_time()
        if job.caller is not None:
            job.caller.begin(job.priority, job.submitted_s)
        result: object = None
        error: BaseException | None = None
        try:
            result = job.work()
        except BaseException as failure:  # whatever it is, it belongs to who asked
            error = failure
        self._record(job, error, began_s, time.thread_time() - work_began_s)
        self._end(job)
        if error is not None:
            job.done.set_exception(error)
        else:
            job.done.set_result(result)

    def _end(self, job: Job[object]) -> None:
        with self._condition:
            self._running_jobs.remove(job)

    def _next(self, priority: Priority) -> Job[object] | None:
        waiting = self._waiting[priority]
        with self._condition:
            while not (waiting or self._is_closed):
                self._condition.wait()
            if self._is_closed:
                return None
            job = waiting.popleft()
            self._running_jobs.append(job)
            return job

    def _not_started(self) -> list[Job[object]]:
        jobs = [job for waiting in self._waiting.values() for job in waiting]
        return jobs + [
            job for job in self._running_jobs if job.caller is not None and math.isnan(job.began_s)
        ]

    def _record(self, job: Job[object], error: BaseException | None, began_s: float, worked_s: float) -> None:
        has_called = not math.isnan(job.began_s)
        with self._condition:
            if error is None:
                self._n_faults = 0 if has_called else self._n_faults
            elif job.caller is not None and to_api_error(error).code == INTERNAL:
                self._n_faults += 1
        if job.priority is not Priority.LIVE or (job.caller is not None and not has_called):
            return
        if job.caller is not None:
            began_s = job.began_s
            if job.caller.on_work is not None:
                job.caller.on_work(worked_s)
        waited_s = began_s - job.submitted_s
        with self._condition:
            if job.caller is not None:
                self.interval_controller.note_wait(waited_s)
            self._wait_s = _DECAY * self._wait_s + (1 - _DECAY) * waited_s
            self._noted_s = began_s
        if self._on_live is not None:
            self._on_live(waited_s, time.monotonic() - began_s)

    def _note_round(self, seconds: float) -> None:
        with self._condition:
            self.interval_controller.note_work(seconds / len(self.runtime.engines), time.monotonic())
