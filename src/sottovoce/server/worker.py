"""Work of the server on one model, and threads for decoding uploads.

The engines of a `BatchingRuntime` run the requests of live sessions, which have no threads. Other work, such
as recordings, is a function in a thread, which calls the model through a `Caller`.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, TypeVar, cast

import anyio

from sottovoce.models.backend import Backend
from sottovoce.runtime.batching import THREAD_NAME, BatchingRuntime, Caller, PendingRequest, Priority
from sottovoce.runtime.calls import Request, Steps
from sottovoce.runtime.update_interval import UpdateIntervalController
from sottovoce.server.errors import INTERNAL, shutting_down, to_api_error
from sottovoce.threads import n_threads as threads_here

T = TypeVar("T")
FAULTS_IN_A_ROW = 5
_DECAY = 0.9
_HALF_LIFE_S = 5.0
"""Of the mean waiting time without new work."""


@dataclass(slots=True, eq=False)
class Job:
    """Work that is queued or running. caller: through which it calls the model, or None."""

    priority: Priority
    caller: Caller | None
    submitted_s: float = field(default_factory=time.monotonic)
    is_running: bool = False

    @property
    def has_called(self) -> bool:
        return self.caller is not None and not math.isnan(self.caller.began_s)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a thread, or in one for its first call of the model."""
        return not self.is_running or (self.caller is not None and not self.has_called)


class Worker:
    """Runs requests of sessions in its engines, and other work in threads, until it is closed.

    Threads of recordings have a low priority: they read files, detect speech and compute log-mel beside live
    sessions.

    on_live: called with seconds waited and worked of live work.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        n_engines: int = 1,
        on_live: Callable[[float, float], None] | None = None,
        interval_controller: UpdateIntervalController | None = None,
        n_threads: int | None = None,
    ) -> None:
        self._on_live = on_live
        self.interval_controller = interval_controller or UpdateIntervalController(time.monotonic())
        self._lock = threading.Lock()
        self._jobs: dict[Job, Future[object]] = {}
        self._is_closed = False
        self._n_faults = 0
        self._wait_s = 0.0
        self._noted_s = time.monotonic()
        is_cpu = backend.device.type == "cpu"
        self.runtime = BatchingRuntime(
            backend,
            n_engines=n_engines,
            most_live=1 if is_cpu else None,  # a batch would delay the first update in it
            n_threads=n_threads or threads_here(),
            # A thread that waits for an accelerator may sleep: its processor time says nothing of the work.
            work_clock=time.thread_time if is_cpu else time.monotonic,
            on_live_round=self._note_round,
        )
        n_files = n_engines * self.runtime.batching.files
        self._threads = {
            Priority.LIVE: ThreadPoolExecutor(thread_name_prefix=f"{THREAD_NAME}-live"),
            Priority.FILE: ThreadPoolExecutor(n_files, f"{THREAD_NAME}-file", lower_priority),
        }

    @property
    def n_waiting(self) -> int:
        with self._lock:
            return sum(job.is_waiting for job in self._jobs)

    @property
    def live_wait_s(self) -> float:
        with self._lock:
            now_s = time.monotonic()
            waiting = (job for job in self._jobs if job.priority is Priority.LIVE and job.is_waiting)
            lately = self._wait_s * math.pow(0.5, (now_s - self._noted_s) / _HALF_LIFE_S)
            return max(lately, now_s - min((job.submitted_s for job in waiting), default=now_s))

    def health_error(self, stall_s: float) -> str | None:
        """Return why the worker makes no progress, or None. stall_s: longest time of a call."""
        if self._n_faults >= FAULTS_IN_A_ROW:
            return f"{self._n_faults} faults in a row"
        return self.runtime.stall_reason(stall_s)

    async def answer(self, request: Request[T], priority: Priority, caller: Caller) -> T:
        """Return the result of a request; cancellation removes one that has not begun."""
        return cast(T, await asyncio.wrap_future(self.begin(request, priority, caller)))

    def begin(self, request: Request[T], priority: Priority, caller: Caller) -> Future[T | None]:
        """Queue a request; cancelling the future removes one that has not begun.

        Raises: ApiError after `close`.
        """
        job, done = Job(priority, caller, is_running=True), Future[T | None]()
        with self._lock:
            if self._is_closed:
                raise shutting_down()
            self._jobs[job] = done  # type: ignore[assignment]  # its result is not read here
        done.add_done_callback(lambda _: self._forget(job))
        caller.begin(priority, job.submitted_s)
        try:
            caller.begin_request(self._steps(job, request, done), partial(_settle, done))
        except BaseException as error:
            done.set_exception(error)
        return done

    def _steps(self, job: Job, request: Request[T], done: Future[T | None]) -> Steps[T | None]:
        if not done.set_running_or_notify_cancel():
            return None
        with self._recorded(job, lambda: 0.0):  # rounds count the work of engines
            return (yield from request)

    async def result_of(
        self, work: Callable[[], T], priority: Priority = Priority.LIVE, caller: Caller | None = None
    ) -> T:
        """Return the result of submitted work; cancellation removes work that has not begun."""
        return await asyncio.wrap_future(self.submit(work, priority, caller))

    def submit(
        self, work: Callable[[], T], priority: Priority = Priority.LIVE, caller: Caller | None = None
    ) -> Future[T]:
        """Queue work; cancelling the future removes it. Raises: ApiError after `close`."""
        job = Job(priority, caller)
        with self._lock:
            if self._is_closed:
                raise shutting_down()
            done = self._threads[priority].submit(self._run, job, work)
            self._jobs[job] = done  # type: ignore[assignment]  # its result is not read here
        done.add_done_callback(lambda _: self._forget(job))
        return done

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
        self.runtime.close(shutting_down())

    def join(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        with self._lock:
            left = list(self._jobs.values())
        if not wait(left, timeout_s).not_done:
            for threads in self._threads.values():
                threads.shutdown()
        self.runtime.join(max(0.0, end - time.monotonic()))

    def _run(self, job: Job, work: Callable[[], T]) -> T:
        if job.caller is not None:
            job.caller.begin(job.priority, job.submitted_s)
        job.is_running = True
        with self._recorded(job, time.thread_time):
            return work()

    @contextmanager
    def _recorded(self, job: Job, work_clock: Callable[[], float]) -> Iterator[None]:
        began_s, work_began_s = time.monotonic(), work_clock()
        try:
            yield
        except BaseException as error:  # any of them is the result of the job
            self._record(job, error, began_s, work_clock() - work_began_s)
            raise
        self._record(job, None, began_s, work_clock() - work_began_s)

    def _forget(self, job: Job) -> None:
        with self._lock:
            self._jobs.pop(job, None)

    def _record(self, job: Job, error: BaseException | None, began_s: float, worked_s: float) -> None:
        caller = job.caller
        self._forget(job)
        with self._lock:
            if error is None:
                self._n_faults = 0 if job.has_called else self._n_faults
            elif caller is not None and to_api_error(error).code == INTERNAL:
                self._n_faults += 1
        if job.priority is not Priority.LIVE or (caller is not None and not job.has_called):
            return
        if caller is not None:
            began_s = caller.began_s
            if caller.on_work is not None:
                caller.on_work(worked_s)
        waited_s = began_s - job.submitted_s
        with self._lock:
            if caller is not None:
                self.interval_controller.note_wait(waited_s)
            self._wait_s = _DECAY * self._wait_s + (1 - _DECAY) * waited_s
            self._noted_s = began_s
        if self._on_live is not None:
            self._on_live(waited_s, time.monotonic() - began_s)

    def _note_round(self, seconds: float) -> None:
        with self._lock:
            self.interval_controller.note_work(seconds / len(self.runtime.engines), time.monotonic())


def _settle(done: Future[T | None], request: PendingRequest[T | None]) -> None:
    with suppress(InvalidStateError):  # it was cancelled
        if request.error is None:
            done.set_result(request.result())
        else:
            done.set_exception(request.error)


Slices: TypeAlias = Generator[None, None, T]
"""Work that yields to let others have their turn."""
DECODE_THREADS = "sottovoce-decode"


class DecodePool:
    """Decodes uploads before any model runs, in few threads of low priority.

    A small file may hold hours of audio: requests take turns by slices, and those of disconnected clients
    stop.
    """

    def __init__(self, n_threads: int | None = None) -> None:
        count = n_threads or max(1, (os.cpu_count() or 1) // 4)
        self._threads = ThreadPoolExecutor(count, DECODE_THREADS, initializer=lower_priority)

    async def run(self, slices: Slices[T]) -> T:
        """Run work slice by slice; a cancelled request ends after its slice."""
        try:
            while True:
                slice_result = await self.call(lambda: _next_slice(slices))
                if slice_result:
                    return slice_result[0]
        finally:
            slices.close()

    async def call(self, do: Callable[[], T]) -> T:
        """Call a short function in a thread; returns only when it is over, also after cancellation."""
        submitted = self._threads.submit(do)
        wrapped = asyncio.wrap_future(submitted)
        try:
            return await asyncio.shield(wrapped)
        except asyncio.CancelledError:
            if not submitted.cancel():
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([wrapped])
                    wrapped.exception()
            raise

    def close(self, wait: bool = True) -> None:
        self._threads.shutdown(wait, cancel_futures=True)


def _next_slice(slices: Slices[T]) -> tuple[T] | None:
    try:
        next(slices)
    except StopIteration as end:
        return (end.value,)
    return None


def lower_priority() -> None:
    if sys.platform == "linux":  # elsewhere it would be that of the whole process
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
