"""One model for the calls of many threads: live sessions before recordings, in batches where it helps.

`CallBatcher` runs the requests of one engine in rounds, which do not wait for more. Live windows of similar
length are encoded in one batch, and stretches probed in one. Decoding runs in continuous batches, one of live
sessions and one of recordings. Calls of recordings run between live ones, a decoder pass at a time. A failed
batch is repeated call by call, so that an error only reaches its own caller.

`BatchingRuntime` runs engines in threads of its own, which alone use the model.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import math
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias

from sottovoce.audio.mel import MELS_PER_FRAME
from sottovoce.errors import OptionError
from sottovoce.models.backend import Backend, IncrementalWindow
from sottovoce.models.dims import frames_of
from sottovoce.runtime.calls import (
    CallBatch,
    CallsTogether,
    DecodeCall,
    EncodeCall,
    IncrementalEncodeCall,
    Outcome,
    Request,
    Result,
    RunBeside,
    RunningRequest,
    Runtime,
    SpeechCall,
    torch_threads_of,
)
from sottovoce.runtime.update_interval import JUDGED_EVERY_S
from sottovoce.threads import n_threads as threads_here
from sottovoce.threads import one_torch_thread, use_threads

log = logging.getLogger(__name__)
USUAL_FRAMES = 350
"""Frames usually computed of a window that grew."""
PATIENCE_S = 1.0
"""A recording waits this long for an engine without live calls; then it shares one, where live calls go
first.
"""


THREAD_NAME = "sottovoce-model"
ENDED = "a thread of the model has ended"


class Priority(IntEnum):
    """Live sessions have priority over recordings."""

    LIVE = 0
    FILE = 1


class Caller(Runtime):
    """The runtime of one session or transcription among others.

    since_s: earlier ones first, on the clock of the runtime. on_work: called by an engine with the seconds of
    its work for this caller.
    """

    def __init__(
        self,
        shared: BatchingRuntime,
        priority: Priority = Priority.LIVE,
        since_s: float = 0.0,
        on_work: Callable[[float], None] | None = None,
    ) -> None:
        self._shared = shared
        self.backend = shared.backend
        self.priority = priority
        self.since_s = since_s
        self.began_s = math.nan
        """When its first call of the model since `begin` began, other than for voice activity; nan before."""
        self.on_work = on_work

    def begin(self, priority: Priority, since_s: float) -> None:
        self.priority, self.since_s, self.began_s = priority, since_s, math.nan

    def run(self, request: Request[Result]) -> Result:
        under_way = threading.Lock()
        under_way.acquire()
        pending = PendingRequest(request, self, lambda _: under_way.release())
        pending.go_on()
        if not pending.is_done:
            self._shared.submit(pending)
            under_way.acquire()
        return pending.result()

    def begin_request(
        self, request: Request[Result], on_done: Callable[[PendingRequest[Result]], None]
    ) -> None:
        """Run a request without waiting for it; an engine begins it.

        on_done: called at its end, in any thread. Raises: the error that the runtime was closed with.
        """
        self._shared.submit(PendingRequest(request, self, on_done))

    def run_beside(self, pending: Pending) -> None:
        self._shared.run_beside(pending)

    def torch_threads(self) -> AbstractContextManager[None]:
        return one_torch_thread()

    def __enter__(self) -> Caller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shared.count_caller(-1)


class PendingRequest(RunningRequest[Outcome]):
    """A request of a caller; an engine runs its calls, and what lies between them.

    on_done: called at its end.
    """

    def __init__(
        self,
        request: Request[Outcome],
        caller: Caller,
        on_done: Callable[[Any], None] = lambda _: None,
    ) -> None:
        super().__init__(request)
        self.caller = caller
        self.priority = caller.priority
        self.order = (caller.since_s, next(_numbers))
        self.is_done = False
        self._on_done = on_done
        self.next: Callable[[], object] | None = self.begin
        """What leads to its next call, if that is not known yet."""

    def go_on(self) -> None:
        go_on, self.next = self.next, None
        if go_on is not None:
            go_on()

    def _finish(self) -> None:
        super()._finish()
        self.is_done = True
        self._on_done(self)


Pending: TypeAlias = PendingRequest[object]
_numbers = itertools.count()


@dataclass(slots=True, eq=False)
class _RunningBatch:
    """A batch, and the requests whose calls it runs, with their numbers of windows, by ticket.

    key: of calls that may join. n_windows: of all calls.
    """

    batch: CallBatch[object]
    key: Hashable
    requests: dict[int, tuple[Pending, int]] = field(default_factory=dict)
    n_windows: int = 0

    @property
    def holds_rows(self) -> bool:
        """Whether its calls are under way."""
        return not (isinstance(self.batch, CallsTogether) and self.batch.has_room(0))


ALONE = object()
"""The key of a call that is repeated in a batch of its own."""


class RunningBatches:
    """The batches of the calls of one priority, in order of arrival.

    has_room: whether so many windows have room for their rows in a new batch. The calls of a failed batch are
    repeated one by one, so that an error reaches the request that causes it alone.

    under_way: the requests whose calls are in a batch.
    """

    def __init__(self, backend: Backend, has_room: Callable[[int], bool]) -> None:
        self._backend = backend
        self._has_room = has_room
        self._batches: list[_RunningBatch] = []
        self._again: deque[Pending] = deque()
        """Requests whose calls failed with others."""
        self.under_way: set[Pending] = set()

    @property
    def n_requests(self) -> int:
        return sum(running.batch.n_requests for running in self._batches)

    @property
    def holds_rows(self) -> bool:
        return any(running.holds_rows for running in self._batches)

    def admit(self, pending: Pending, key: Hashable) -> bool:
        """Add the call of a request to a batch of a key, or to a new one; False: it must wait for room."""
        call, running = pending.call, None
        assert call is not None, "requests that are done left the batcher"
        for each in self._batches:
            if each.key == key:
                running = each
                break
        n_windows = n_to_hold = call.n_windows
        if running is not None:
            if not running.holds_rows:
                n_to_hold += running.n_windows
            elif isinstance(running.batch, CallsTogether):
                running = None
            elif running.batch.has_room(n_windows):
                n_to_hold = 0
            else:
                return False
        if n_to_hold and not self._has_room(n_to_hold):
            return False
        self.under_way.add(pending)
        try:
            if running is None:
                running = _RunningBatch(call.new_batch(self._backend), key)
                self._batches.insert(0 if key is ALONE else len(self._batches), running)
            running.requests[call.join(running.batch)] = pending, n_windows
            running.n_windows += n_windows
        except Exception as error:
            if running is not None and not running.requests:
                self._batches.remove(running)
            self.under_way.discard(pending)
            pending.fail(error)
        return True

    def step(self, *, first_alone: bool = False) -> bool:
        """Advance each batch by a decoder pass at most, or the first alone; False: none has room."""
        is_repeating = self._again and any(running.key is ALONE for running in self._batches)
        if self._again and not is_repeating and self.admit(self._again[0], ALONE):
            self._again.popleft()
        some = self._batches[: 1 if first_alone else None]
        batches = [running for running in some if running.holds_rows or self._has_room(running.n_windows)]
        for running in batches:
            try:
                finished = running.batch.step()
            except Exception as error:
                self._batches.remove(running)
                self._repeat([pending for pending, _ in running.requests.values()], error)
                continue
            for ticket, result in finished:
                pending, n_windows = running.requests.pop(ticket)
                self.under_way.discard(pending)
                running.n_windows -= n_windows
                pending.answer(result)
            if not running.requests:
                self._batches.remove(running)
        return bool(batches)

    def _repeat(self, requests: Sequence[Pending], error: Exception) -> None:
        if len(requests) > 1:
            log.warning("%d calls together failed: %s", len(requests), type(error).__name__)
            self._again += requests
            return
        for pending in requests:
            self.under_way.discard(pending)
            pending.fail(error)


@dataclass(frozen=True, slots=True)
class Batching:
    """Limits of batches.

    encoder_frames: of one call; the first window is always taken. max_length_ratio: relative difference in
    length of its windows. rows: requests decoded at a time. files: recordings at work at a time in an engine.
    files_together: encode and decode windows of recordings in one batch; on a CPU live calls would wait
    longer for each step.

    Raises:
        OptionError: a number is out of range.
    """

    encoder_frames: int = 400
    max_length_ratio: float = 0.25
    rows: int = 64
    files: int = 2
    files_together: bool = False

    def __post_init__(self) -> None:
        if min(self.encoder_frames, self.rows, self.files) < 1 or not 0.0 <= self.max_length_ratio <= 1.0:
            raise OptionError(f"batching: expected counts from 1 and a part from 0 to 1, got {self}")


ON_CPU = Batching()
"""A single window keeps a processor's cores busy; batching saves hardly anything."""
ON_ACCELERATOR = Batching(encoder_frames=32 * USUAL_FRAMES, rows=512, files=16, files_together=True)


class CallBatcher:
    """The pending requests of one engine, whose calls it runs in batches, live ones before recordings.

    Everything runs in the thread that calls `round`. batching: None: by the device. file_share: least share
    of the time for recordings. clock: in seconds.
    """

    def __init__(
        self,
        backend: Backend,
        batching: Batching | None = None,
        *,
        file_share: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self.batching = batching or (ON_CPU if backend.device.type == "cpu" else ON_ACCELERATOR)
        self._file_share = file_share
        self._file_due_s = -math.inf
        self._clock = clock
        self.requests: tuple[Pending, ...] = ()
        """Without results yet, in order; replaced, never changed, so that other threads may read it."""
        self._forget()

    def _forget(self) -> None:
        self._together, self._decoding = (
            {priority: self._new_batches() for priority in Priority} for _ in range(2)
        )
        self._has_decoded = True
        """Whether recordings were to decode since their other calls ran."""

    def _new_batches(self) -> RunningBatches:
        return RunningBatches(self._backend, self._has_row_memory)

    def _has_row_memory(self, n_windows: int) -> bool:
        """Return whether new rows have room for so many windows, or nothing holds any."""
        if not n_windows:
            return True
        running = (*self._together.values(), *self._decoding.values())
        is_held = any(batches.holds_rows for batches in running)
        return not is_held or self._backend.rows().has_room(n_windows)

    @property
    def n_live(self) -> int:
        return sum(request.priority is Priority.LIVE for request in self.requests)

    @property
    def n_files(self) -> int:
        return len(self.requests) - self.n_live

    @property
    def has_room(self) -> bool:
        """Whether the next encoder call could take another live window of usual length."""
        n_to_encode = sum(
            request.priority is Priority.LIVE and not isinstance(request.call, DecodeCall)
            for request in self.requests
        )
        return (n_to_encode + 1) * USUAL_FRAMES <= max(USUAL_FRAMES, self.batching.encoder_frames)

    @property
    def has_file_room(self) -> bool:
        return self.n_files < self.batching.files

    def submit(self, request: Pending) -> None:
        place = bisect_right(self.requests, request.order, key=lambda request: request.order)
        self.requests = (*self.requests[:place], request, *self.requests[place:])

    def round(self) -> Priority | None:
        """Run the available live calls: voice activity, one encoder call, the probes, one decoding step.

        Without any, or when recordings have waited for their share, run a step of theirs. Return the priority
        of the calls that ran, or None.
        """
        with torch_threads_of(self._backend):
            for request in self.requests:
                request.go_on()
            served = self._first_priority()
            if served is Priority.LIVE and not self._step_live():
                served = Priority.FILE  # live calls wait for the rows of recordings
            if served is Priority.FILE:
                self._step_files()
        beside = [request for request in self.requests if type(request.call) is RunBeside]
        self.requests = tuple(
            [each for each in self.requests if each.call is not None and each not in beside]
        )
        for request in beside:  # no engine has it meanwhile
            request.caller.run_beside(request)
        return served

    def end_all(self, error: BaseException) -> None:
        """End all requests with an error."""
        requests, self.requests = self.requests, ()
        self._forget()
        for request in requests:
            if not request.is_done:
                request.end(error)

    def _first_priority(self) -> Priority | None:
        kinds = {request.priority for request in self.requests}
        if Priority.FILE in kinds and (len(kinds) == 1 or self._clock() >= self._file_due_s):
            return Priority.FILE
        return Priority.LIVE if kinds else None

    def _in_order(self, priority: Priority) -> list[Pending]:
        return [each for each in self.requests if each.priority is priority and each.call is not None]

    def _admit(self, pending: Pending, batches: RunningBatches, key: Hashable) -> None:
        kind, caller = type(pending.call), pending.caller
        is_admitted = batches.admit(pending, (kind, pending.order if key is None else key))
        if is_admitted and kind is not SpeechCall and math.isnan(caller.began_s):
            caller.began_s = self._clock()

    def _step_live(self) -> bool:
        others = self._together[Priority.LIVE]
        self._admit_others(Priority.LIVE)
        was_called = _finish(others)
        was_encoded = self._encode()
        self._admit_others(Priority.LIVE)
        return any((_finish(others), self._decode(Priority.LIVE), was_called, was_encoded))

    def _encode(self) -> bool:
        batching, encoding = self.batching, self._new_batches()
        first = n_frames = 0
        for request in self._in_order(Priority.LIVE):
            if type(request.call) is not IncrementalEncodeCall:  # isinstance is slow for abstract classes
                continue
            counts = [_frames(window) for window in request.call.windows]
            longest = max(counts, default=0)
            if n_frames and (
                n_frames + sum(counts) > batching.encoder_frames
                or abs(longest - first) > batching.max_length_ratio * max(first, 1)
            ):
                continue
            first = first or longest
            n_frames += sum(counts)
            self._admit(request, encoding, "live")
        return _finish(encoding)

    def _decode(self, priority: Priority) -> bool:
        decoding = self._decoding[priority]
        is_apart = priority is Priority.FILE and not self.batching.files_together
        most = 1 if is_apart else self.batching.rows
        for request in self._in_order(priority):
            call, is_new = request.call, request not in decoding.under_way
            if is_new and type(call) is DecodeCall and decoding.n_requests < most:
                self._admit(request, decoding, call.batch_key)
        return decoding.step()

    def _step_files(self) -> None:
        """Run a step of the calls of recordings, and set the deadline of the next one.

        After a decoder step, other calls run once they are as many as the requests that decode, so that
        several share a batch.
        """
        began_s = self._clock()
        n_decoding = self._decoding[Priority.FILE].n_requests
        if self._has_decoded and len(self._others(Priority.FILE)) >= n_decoding:
            self._has_decoded = False
            self._admit_others(Priority.FILE)
        if not self._together[Priority.FILE].step(first_alone=True):
            self._decode(Priority.FILE)
            self._has_decoded = True
        now_s = self._clock()
        self._file_due_s = now_s + (now_s - began_s) * (1.0 / self._file_share - 1.0)

    def _others(self, priority: Priority) -> list[Pending]:
        """Return the requests whose calls neither decode nor, if live, are encoded by `_encode`."""
        is_live = priority is Priority.LIVE
        apart = (DecodeCall, RunBeside, IncrementalEncodeCall) if is_live else (DecodeCall, RunBeside)
        under_way = self._together[priority].under_way
        return [
            request
            for request in self._in_order(priority)
            if type(request.call) not in apart and request not in under_way
        ]

    def _admit_others(self, priority: Priority) -> None:
        for request in self._others(priority):
            is_encoder = type(request.call) in (EncodeCall, IncrementalEncodeCall)
            is_apart = is_encoder and not self.batching.files_together
            key = None if is_apart or request.call is None else request.call.batch_key
            self._admit(request, self._together[priority], key)


def _finish(batches: RunningBatches) -> bool:
    """Complete the batches that have room; return whether there was any."""
    n_steps = 0
    while batches.step(first_alone=True):
        n_steps += 1
    return n_steps > 0


def _frames(window: IncrementalWindow) -> int:
    n_frames = int(window.log_mel.shape[1]) // MELS_PER_FRAME
    if window.state is None or window.mode.recompute_s is None:
        return n_frames
    return min(n_frames, frames_of(window.mode.recompute_s))


@dataclass(frozen=True, slots=True)
class EngineState:
    n_live: int
    has_recording: bool
    busy: float


class BatchingRuntime:
    """Runs the calls of many threads on one model, in one thread for each engine, until it is closed.

    An engine takes requests from a common queue as far as it has room. Each session or transcription has its
    own `caller`.

    batching: None: by the device. n_engines: one suffices for an accelerator. most_live: live requests at
    work at a time in an engine; None: all. n_threads: of PyTorch for an operation, shared among the busy
    engines; None: as they are set. waits_for_all: begin a round once every open caller waits for a
    request. work_clock: seconds of work of the calling thread, for `Caller.on_work`. on_live_round:
    called with the seconds of each round of live calls.
    """

    def __init__(
        self,
        backend: Backend,
        batching: Batching | None = None,
        *,
        n_engines: int = 1,
        most_live: int | None = None,
        n_threads: int | None = None,
        waits_for_all: bool = False,
        work_clock: Callable[[], float] = time.thread_time,
        on_live_round: Callable[[float], None] | None = None,
    ) -> None:
        self.backend = backend
        self.condition = threading.Condition()
        self.waiting: list[Pending] = []
        self.closed_by: BaseException | None = None
        self._is_closed = False
        self.most_live = most_live
        self.n_threads = n_threads
        self.waits_for_all = waits_for_all
        self.n_callers = 0
        self.work_clock = work_clock
        self.on_live_round = on_live_round
        self._beside = ThreadPoolExecutor(thread_name_prefix=f"{THREAD_NAME}-beside")
        self.engines = [_Engine(self, CallBatcher(backend, batching), i) for i in range(n_engines)]
        for engine in self.engines:
            engine.start()

    @property
    def batching(self) -> Batching:
        return self.engines[0].batcher.batching

    @property
    def states(self) -> list[EngineState]:
        return [engine.state for engine in self.engines]

    def caller(
        self, priority: Priority = Priority.LIVE, on_work: Callable[[float], None] | None = None
    ) -> Caller:
        """Return the runtime of one session or transcription."""
        self.count_caller(1)
        return Caller(self, priority, time.monotonic(), on_work)

    def count_caller(self, change: int) -> None:
        """Note that a caller is open, or no more."""
        with self.condition:
            self.n_callers += change
            self.condition.notify_all()

    def submit(self, request: Pending) -> None:
        """Queue a request. Raises: the error that the runtime was closed with."""
        with self.condition:
            if self.closed_by is not None:
                raise self.closed_by
            self.waiting.append(request)
            self.condition.notify()

    def run_beside(self, pending: Pending) -> None:
        """Run the work of a `RunBeside` in a thread, and queue the request again."""
        call = pending.call
        assert isinstance(call, RunBeside)

        def run() -> None:
            try:
                with one_torch_thread():
                    pending.next = partial(pending.answer, call.work())
            except BaseException as error:  # any of them is the result of the call
                pending.next = partial(pending.fail, error)
            try:
                self.submit(pending)
            except BaseException as error:
                pending.end(error)

        try:
            self._beside.submit(run)
        except RuntimeError as error:
            pending.end(self.closed_by or error)

    def stall_reason(self, stall_s: float) -> str | None:
        """Return why the engines make no progress, or None. stall_s: the longest round that makes some."""
        if not self._is_closed and not all(engine.is_alive() for engine in self.engines):
            return ENDED
        stalled_s = max(engine.stalled_s for engine in self.engines)
        return f"no progress for {stalled_s:.0f} s" if stalled_s > stall_s else None

    def close(self, error: BaseException | None = None) -> None:
        """End after the current rounds; waiting and later calls raise `error`."""
        self._is_closed = True
        self.end(error or RuntimeError("the runtime was closed"))

    def end(self, error: BaseException) -> None:
        with self.condition:
            self.closed_by = error
            waiting, self.waiting = self.waiting, []
            self.condition.notify_all()
        self._beside.shutdown(wait=False)
        for request in waiting:
            request.end(error)

    def join(self, timeout_s: float | None = None) -> None:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        for engine in self.engines:
            engine.join(None if end is None else max(0.0, end - time.monotonic()))


class _Engine(threading.Thread):
    def __init__(self, runtime: BatchingRuntime, batcher: CallBatcher, index: int) -> None:
        super().__init__(name=f"{THREAD_NAME}-{index}", daemon=True)
        self._runtime = runtime
        self.batcher = batcher
        self.is_at_work = False
        self._n_threads, self._n_threads_before = 0, threads_here()
        self._busy = _Utilisation(time.monotonic())
        self._round_since_s = math.nan
        atexit.register(self.end_at_exit)

    def end_at_exit(self) -> None:
        """End before the interpreter does: a thread that it finds in native code would abort the process."""
        self._runtime.close(SystemExit())  # threads that wait for a result end without a traceback
        # The interpreter waits so long for a round that has begun.
        self.join(10.0)

    @property
    def state(self) -> EngineState:
        """Its state now; from any thread."""
        requests = self.batcher.requests
        n_live = sum(request.priority is Priority.LIVE for request in requests)
        return EngineState(n_live, len(requests) > n_live, self._busy.now(time.monotonic()))

    @property
    def stalled_s(self) -> float:
        since_s = self._round_since_s
        return 0.0 if math.isnan(since_s) else time.monotonic() - since_s

    def run(self) -> None:
        runtime = self._runtime
        try:
            while True:
                with runtime.condition:
                    self.is_at_work = bool(self.batcher.requests)
                    while not (self._is_ready() or runtime.closed_by):
                        runtime.condition.wait()
                    self.is_at_work = True
                    if runtime.closed_by is not None:
                        break
                self._round()
        finally:
            if runtime.closed_by is None:  # this thread failed
                runtime.end(RuntimeError(ENDED))
            self.batcher.end_all(runtime.closed_by or RuntimeError(ENDED))
            atexit.unregister(self.end_at_exit)
            if runtime.n_threads is not None:
                use_threads(self._n_threads_before)  # new threads of PyTorch inherit what was set last

    def _is_ready(self) -> bool:
        runtime = self._runtime
        self._take()
        n_requests = len(self.batcher.requests)
        return n_requests > 0 and (not runtime.waits_for_all or n_requests >= runtime.n_callers)

    def _take(self) -> None:
        """Take waiting requests, as far as there is room; a recording waits at most PATIENCE_S for an engine
        without live calls.
        """
        waiting, batcher = self._runtime.waiting, self.batcher
        if not waiting:
            return
        is_alone = all(engine.is_at_work for engine in self._runtime.engines if engine is not self)
        now_s = time.monotonic()
        left = []
        for request in sorted(waiting, key=lambda request: (request.priority, request.order)):
            if request.priority is Priority.LIVE:
                n_live, most = batcher.n_live, self._runtime.most_live
                has_room = len(self._runtime.engines) == 1 or not n_live or batcher.has_room
                may_take = has_room and (most is None or n_live < most)
            else:
                is_free = not batcher.n_live or now_s - request.order[0] >= PATIENCE_S
                may_take = is_free and batcher.has_file_room and (is_alone or not batcher.n_files)
            if may_take:
                batcher.submit(request)
            else:
                left.append(request)
        self._runtime.waiting = left

    def _round(self) -> None:
        runtime = self._runtime
        self._use_threads()
        callers = [request.caller for request in self.batcher.requests if request.priority is Priority.LIVE]
        began_s, work_began_s = time.monotonic(), runtime.work_clock()
        self._round_since_s = began_s
        served: Priority | None = None
        try:
            served = self.batcher.round()
        except Exception as error:  # not of one call: of the batcher itself; the thread goes on
            log.exception("the engine failed")
            self.batcher.end_all(error)
        finally:
            self._round_since_s = math.nan
        now_s = time.monotonic()
        self._busy.add(now_s - began_s, now_s)
        if served is not Priority.LIVE:
            return
        worked_s = (runtime.work_clock() - work_began_s) / len(callers)
        for caller in callers:
            if caller.on_work is not None:
                caller.on_work(worked_s)
        if runtime.on_live_round is not None:
            runtime.on_live_round(now_s - began_s)

    def _use_threads(self) -> None:
        n_threads = self._runtime.n_threads
        if n_threads is None:
            return
        n_at_work = sum(engine.is_at_work for engine in self._runtime.engines)
        share = max(1, n_threads // max(1, n_at_work))
        if share != self._n_threads:
            use_threads(share)
            self._n_threads = share


class _Utilisation:
    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._sum_s = 0.0
        self._last = 0.0

    def add(self, seconds: float, now_s: float) -> None:
        self._sum_s += seconds
        if now_s - self._since_s >= JUDGED_EVERY_S:
            self._last = min(1.0, self._sum_s / (now_s - self._since_s))
            self._since_s, self._sum_s = now_s, 0.0

    def now(self, now_s: float) -> float:
        passed_s = now_s - self._since_s
        return self._last if passed_s < JUDGED_EVERY_S else min(1.0, self._sum_s / passed_s)
