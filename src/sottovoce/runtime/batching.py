"""One model for the calls of many threads: live sessions before recordings, in batches where it helps.

`CallBatcher` runs the calls of one engine in rounds, which do not wait for more calls. Live windows of
similar length are encoded in one batch, and stretches probed in one. Decoding runs in continuous batches, one
of live sessions and one of recordings. Calls of recordings run between live ones, a decoder pass at a time. A
failed batch is repeated call by call, so that an error only reaches its own caller.

`BatchingRuntime` runs engines in threads of its own, which alone use the model.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from types import TracebackType
from typing import TypeVar, cast

import torch

from sottovoce.errors import OptionError
from sottovoce.models.backend import Backend, IncrementalWindow
from sottovoce.models.dims import frames_of
from sottovoce.runtime.calls import (
    ContinuousBatch,
    ContinuousDecodeCall,
    ContinuousDecoder,
    EncodeCall,
    IncrementalEncodeCall,
    ModelCall,
    Result,
    Runtime,
    torch_threads_of,
)
from sottovoce.runtime.update_interval import JUDGED_EVERY_S
from sottovoce.threads import one_torch_thread
from sottovoce.types import Stepwise

log = logging.getLogger(__name__)
FILE_SHARE = 0.1
"""Least share of the time for recordings, however many live calls there are."""
MELS_PER_FRAME = 2
USUAL_FRAMES = 350
"""Frames usually computed of a window that grew."""
PATIENCE_S = 1.0
"""A recording waits this long for an engine without live calls; then it shares one, where live calls go
first.
"""


CallKind = TypeVar("CallKind", bound=ModelCall[object])
EXIT_S = 10.0
"""The interpreter waits this long for a round that has begun."""
THREAD_NAME = "sottovoce-model"
ENDED = "a thread of the model has ended"
THREADS = torch.get_num_threads()
"""PyTorch's for an operation, before any engine has set its own."""


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
        """When its first call since `begin` began; nan before."""
        self.on_work = on_work

    def begin(self, priority: Priority, since_s: float) -> None:
        self.priority, self.since_s, self.began_s = priority, since_s, math.nan

    def execute(self, call: ModelCall[Result]) -> Result:
        pending = PendingCall(call, self)
        self._shared.submit(pending)
        return cast(Result, pending.result())

    def torch_threads(self) -> AbstractContextManager[None]:
        return one_torch_thread()

    def __enter__(self) -> Caller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shared.count_caller(-1)


class PendingCall:
    """A call that waits for its result."""

    def __init__(self, call: ModelCall[object], caller: Caller) -> None:
        self.call = call
        self.caller = caller
        self.priority = caller.priority
        self.order = (caller.since_s, next(_numbers))
        self.error: BaseException | None = None
        self._result: object = None
        self._done = threading.Event()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def result(self) -> object:
        """Wait for the result and return it, or raise the error of the call."""
        self._done.wait()
        if self.error is not None:
            raise self.error
        return self._result

    def answer(self, result: object) -> None:
        self._result = result
        self._done.set()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._done.set()


_numbers = itertools.count()


@dataclass(slots=True, eq=False)
class _Batch:
    calls: Sequence[PendingCall]
    steps: Stepwise[Sequence[object]] | None = None


class InterleavedBatches:
    """Batches in order of arrival, each completed before the next.

    has_room: whether so many windows have room for their rows.
    """

    def __init__(self, backend: Backend, has_room: Callable[[int], bool]) -> None:
        self._backend = backend
        self._has_room = has_room
        self._batches: deque[_Batch] = deque()

    @property
    def is_empty(self) -> bool:
        return not self._batches

    @property
    def is_begun(self) -> bool:
        """Whether the first batch may hold rows."""
        return bool(self._batches) and self._batches[0].steps is not None

    def has(self, pending: PendingCall) -> bool:
        return any(pending in batch.calls for batch in self._batches)

    def add(self, calls: Sequence[PendingCall]) -> None:
        self._batches.append(_Batch(calls))

    def step(self) -> bool:
        """Advance the first batch to its next decoder pass or its end; False: it must wait for room."""
        batch = self._batches[0]
        if batch.steps is None:
            calls = [one.call for one in batch.calls]
            if not self._has_room(sum(call.n_windows for call in calls)):
                if len(calls) > 1:
                    self._split(batch)
                return len(calls) > 1
            batch.steps = type(calls[0]).run(self._backend, calls)
        try:
            next(batch.steps)
        except StopIteration as end:
            self._batches.popleft()
            for one, result in zip(batch.calls, end.value, strict=True):
                one.answer(result)
        except Exception as error:
            if len(batch.calls) == 1:
                self._batches.popleft()
                batch.calls[0].fail(error)
            else:
                log.warning("a batch of %d failed: %s", len(batch.calls), type(error).__name__)
                self._split(batch)
        return True

    def finish(self) -> bool:
        """Complete the batches that have room; return whether anything was done."""
        n_steps = 0
        while self._batches and self.step():
            n_steps += 1
        return n_steps > 0

    def _split(self, batch: _Batch) -> None:
        self._batches.remove(batch)
        self._batches.extendleft(_Batch([one]) for one in reversed(batch.calls))


@dataclass(slots=True, eq=False)
class _Decoding:
    """A call whose requests are being decoded. results: so far, by ticket."""

    pending: PendingCall
    call: ContinuousDecodeCall[object, object]
    tickets: list[int] = field(default_factory=list)
    results: dict[int, object] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Running:
    """A running batch. owners: the call of each ticket."""

    batch: ContinuousBatch[ContinuousDecoder[object, object], object, object]
    owners: dict[int, _Decoding] = field(default_factory=dict)

    def admit(self, decoding: _Decoding) -> None:
        decoding.tickets = decoding.call.admit_to(self.batch)
        decoding.results = {}
        self.owners |= dict.fromkeys(decoding.tickets, decoding)


ALONE = object()
"""The key of a call that is decoded in a batch of its own."""


class ContinuousDecoding:
    """The running batches of one priority, one for each `batch_key`.

    has_room: whether so many windows have room in a new batch.
    """

    def __init__(self, has_room: Callable[[int], bool]) -> None:
        self._has_room = has_room
        self._running: dict[Hashable, _Running] = {}
        self._again: deque[_Decoding] = deque()
        """Calls of failed batches, to be decoded again, one at a time."""
        self._under_way: set[PendingCall] = set()

    @property
    def n_requests(self) -> int:
        return sum(one.batch.n_requests for one in self._running.values())

    @property
    def is_running(self) -> bool:
        return bool(self._running or self._again)

    def has(self, pending: PendingCall) -> bool:
        return pending in self._under_way

    def admit(self, pending: PendingCall, call: ContinuousDecodeCall[object, object]) -> bool:
        """Add the requests of a call; False: it must wait for room."""
        decoding = _Decoding(pending, call)
        key = call.decoder.batch_key
        running = self._running.get(key)
        has_room = self._has_room if running is None else running.batch.has_room
        if not has_room(call.n_windows):
            return False
        self._begin(key, decoding)
        return True

    def _begin(self, key: Hashable, decoding: _Decoding) -> None:
        try:
            running = self._running.get(key) or _Running(decoding.call.decoder.new_batch())
            self._running[key] = running
            self._under_way.add(decoding.pending)
            running.admit(decoding)
        except Exception as error:
            self._end(decoding, error)
            if key in self._running and not running.batch.n_requests:
                del self._running[key]

    def step(self) -> None:
        """Decode one step. A failed batch is decoded again from its beginning, call by call."""
        if self._again and ALONE not in self._running:
            self._begin(ALONE, self._again.popleft())
        for key, running in list(self._running.items()):
            try:
                finished = running.batch.step()
            except Exception as error:
                del self._running[key]
                self._repeat(running, error)
                continue
            for ticket, result in finished:
                self._note(running.owners.pop(ticket, None), ticket, result)
            if not running.batch.n_requests:
                del self._running[key]

    def _note(self, decoding: _Decoding | None, ticket: int, result: object) -> None:
        if decoding is None:  # its call failed while its requests were admitted
            return
        decoding.results[ticket] = result
        if len(decoding.results) == len(decoding.tickets):
            self._under_way.discard(decoding.pending)
            decoding.pending.answer([decoding.results[one] for one in decoding.tickets])

    def _end(self, decoding: _Decoding, error: Exception) -> None:
        self._under_way.discard(decoding.pending)
        decoding.pending.fail(error)

    def _repeat(self, running: _Running, error: Exception) -> None:
        decodings = list(dict.fromkeys(running.owners.values()))
        if len(decodings) == 1:
            self._end(decodings[0], error)
            return
        log.warning("decoding %d calls together failed: %s", len(decodings), type(error).__name__)
        self._again += decodings


@dataclass(frozen=True, slots=True)
class Batching:
    """Limits of batches.

    encoder_frames: of one call; the first window is always taken. max_length_ratio: relative difference in
    length of its windows. rows: requests decoded at a time. sessions, files: at work at a time in an engine.
    files_together: encode and decode windows of recordings in one batch; on a CPU live calls would wait
    longer for each step.

    Raises:
        OptionError: a number is out of range.
    """

    encoder_frames: int = 400
    max_length_ratio: float = 0.25
    rows: int = 64
    sessions: int = 1
    files: int = 2
    files_together: bool = False

    def __post_init__(self) -> None:
        if (
            min(self.encoder_frames, self.rows, self.sessions, self.files) < 1
            or not 0.0 <= self.max_length_ratio <= 1.0
        ):
            raise OptionError(f"batching: expected counts from 1 and a part from 0 to 1, got {self}")


ON_CPU = Batching()
"""A single window keeps a processor's cores busy; batching saves hardly anything."""
ON_ACCELERATOR = Batching(
    encoder_frames=32 * USUAL_FRAMES, rows=512, sessions=32, files=16, files_together=True
)


class CallBatcher:
    """The pending calls of one engine, which runs them in batches, live calls before those of recordings.

    Everything runs in the thread that calls `round`. batching: None: by the device. file_share: least share
    of the time for recordings. clock: in seconds.
    """

    def __init__(
        self,
        backend: Backend,
        batching: Batching | None = None,
        *,
        file_share: float = FILE_SHARE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self.batching = batching or (ON_CPU if backend.device.type == "cpu" else ON_ACCELERATOR)
        self._file_share = file_share
        self._file_due_s = -math.inf
        self._clock = clock
        self.calls: tuple[PendingCall, ...] = ()
        """Without results yet; replaced, never changed, so that other threads may read it."""
        self._forget()

    def _forget(self) -> None:
        self._live = InterleavedBatches(self._backend, self._has_row_memory)
        self._files = InterleavedBatches(self._backend, self._has_row_memory)
        self._decoding = {priority: ContinuousDecoding(self._has_row_memory) for priority in Priority}
        self._has_decoded = True
        """Whether recordings were to decode since their other calls ran."""

    def _has_row_memory(self, n_windows: int) -> bool:
        """Return whether new rows have room for so many windows, or nothing holds any."""
        is_held = self._files.is_begun or any(one.is_running for one in self._decoding.values())
        return not (n_windows and is_held) or self._backend.rows().has_room(n_windows)

    @property
    def n_live(self) -> int:
        return sum(one.priority is Priority.LIVE for one in self.calls)

    @property
    def n_files(self) -> int:
        return len(self.calls) - self.n_live

    @property
    def has_room(self) -> bool:
        """Whether the next encoder call could take another live window of usual length."""
        n_asking = sum(
            one.priority is Priority.LIVE and not isinstance(one.call, ContinuousDecodeCall)
            for one in self.calls
        )
        return (n_asking + 1) * USUAL_FRAMES <= max(USUAL_FRAMES, self.batching.encoder_frames)

    @property
    def has_file_room(self) -> bool:
        return self.n_files < self.batching.files

    def submit(self, call: PendingCall) -> None:
        self.calls = (*self.calls, call)

    def round(self) -> Priority | None:
        """Run the available live calls: one encoder call, the probes, one decoding step.

        Without any, or when recordings have waited for their share, run a step of theirs. Return the priority
        of the calls that ran, or None.
        """
        with torch_threads_of(self._backend):
            served = self._first_priority()
            if served is Priority.LIVE and not self._step_live():
                served = Priority.FILE  # live calls wait for the rows of recordings
            if served is Priority.FILE:
                self._step_files()
        self.calls = tuple(one for one in self.calls if not one.is_done)
        return served

    def fail_all(self, error: BaseException) -> None:
        """End all calls with an error."""
        calls, self.calls = self.calls, ()
        self._forget()
        for one in calls:
            if not one.is_done:
                one.fail(error)

    def _first_priority(self) -> Priority | None:
        kinds = {one.priority for one in self.calls}
        if Priority.FILE in kinds and (len(kinds) == 1 or self._clock() >= self._file_due_s):
            return Priority.FILE
        return Priority.LIVE if kinds else None

    def _pending(
        self, kind: type[CallKind], priority: Priority = Priority.LIVE
    ) -> list[tuple[PendingCall, CallKind]]:
        return [(one, one.call) for one in self._in_order(priority) if isinstance(one.call, kind)]

    def _in_order(self, priority: Priority) -> list[PendingCall]:
        pending = [one for one in self.calls if one.priority is priority and not one.is_done]
        return sorted(pending, key=lambda one: one.order)

    def _note_begun(self, calls: Sequence[PendingCall]) -> None:
        now_s = self._clock()
        for one in calls:
            if math.isnan(one.caller.began_s):
                one.caller.began_s = now_s

    def _step_live(self) -> bool:
        was_encoded = self._encode()
        self._add_batches(self._live, Priority.LIVE)
        was_called = self._live.finish()
        return self._decode(Priority.LIVE) or was_called or was_encoded

    def _encode(self) -> bool:
        batching = self.batching
        chosen: list[PendingCall] = []
        first = n_frames = 0
        for one, call in self._pending(IncrementalEncodeCall):
            own = [_frames(window) for window in call.windows]
            longest = max(own, default=0)
            if chosen and (
                n_frames + sum(own) > batching.encoder_frames
                or abs(longest - first) > batching.max_length_ratio * max(first, 1)
            ):
                continue
            first = first or longest
            n_frames += sum(own)
            chosen.append(one)
        if chosen:
            self._note_begun(chosen)
            encoding = InterleavedBatches(self._backend, self._has_row_memory)
            encoding.add(chosen)
            encoding.finish()
        return bool(chosen)

    def _decode(self, priority: Priority) -> bool:
        decoding = self._decoding[priority]
        is_apart = priority is Priority.FILE and not self.batching.files_together
        most = 1 if is_apart else self.batching.rows
        n_requests = decoding.n_requests
        for one, call in self._pending(ContinuousDecodeCall, priority):
            if decoding.has(one) or n_requests >= most:
                continue
            if decoding.admit(one, call):
                self._note_begun([one])
                n_requests += len(call.requests)
        if not decoding.is_running:
            return False
        decoding.step()
        return True

    def _step_files(self) -> None:
        """Run a step of the calls of recordings, and set the deadline of the next one.

        After a decoder step, other calls run once they are as many as the requests that decode, so that
        several share a batch.
        """
        began_s = self._clock()
        n_decoding = self._decoding[Priority.FILE].n_requests
        if self._has_decoded and len(self._others(self._files, Priority.FILE)) >= n_decoding:
            self._has_decoded = False
            self._add_batches(self._files, Priority.FILE)
        if self._files.is_empty or not self._files.step():
            self._decode(Priority.FILE)
            self._has_decoded = True
        now_s = self._clock()
        self._file_due_s = now_s + (now_s - began_s) * (1.0 / self._file_share - 1.0)

    def _others(self, to: InterleavedBatches, priority: Priority) -> list[PendingCall]:
        """Return the calls of a priority that neither decode nor, if live, are encoded by `_encode`."""
        is_live = priority is Priority.LIVE
        apart = (ContinuousDecodeCall, IncrementalEncodeCall) if is_live else ContinuousDecodeCall
        return [one for one in self._in_order(priority) if not (isinstance(one.call, apart) or to.has(one))]

    def _add_batches(self, to: InterleavedBatches, priority: Priority) -> None:
        for some in self._batches(self._others(to, priority)):
            self._note_begun(some)
            to.add(some)

    def _batches(self, calls: Sequence[PendingCall]) -> list[list[PendingCall]]:
        batches: dict[object, list[PendingCall]] = {}
        for one in calls:
            is_apart = isinstance(one.call, EncodeCall) and not self.batching.files_together
            key = None if is_apart else one.call.batch_key
            batches.setdefault((type(one.call), one.order if key is None else key), []).append(one)
        return list(batches.values())


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

    An engine takes calls from a common queue as far as it has room. Each session or transcription has its own
    `caller`.

    batching: None: by the device. n_engines: one suffices for an accelerator. n_threads: of PyTorch for an
    operation, shared among the busy engines; None: as they are set. waits_for_all: begin a round once every
    open caller waits for a call. work_clock: seconds of work of the calling thread, for `Caller.on_work`.
    on_live_round: called with the seconds of each round of live calls.
    """

    def __init__(
        self,
        backend: Backend,
        batching: Batching | None = None,
        *,
        n_engines: int = 1,
        n_threads: int | None = None,
        waits_for_all: bool = False,
        work_clock: Callable[[], float] = time.thread_time,
        on_live_round: Callable[[float], None] | None = None,
    ) -> None:
        self.backend = backend
        self.condition = threading.Condition()
        self.waiting: list[PendingCall] = []
        self.closed_by: BaseException | None = None
        self._is_closed = False
        self.n_threads = n_threads
        self.waits_for_all = waits_for_all
        self.n_callers = 0
        self.work_clock = work_clock
        self.on_live_round = on_live_round
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

    def submit(self, call: PendingCall) -> None:
        """Queue a call. Raises: the error that the runtime was closed with."""
        with self.condition:
            if self.closed_by is not None:
                raise self.closed_by
            self.waiting.append(call)
            self.condition.notify()

    def trouble(self, stall_s: float) -> str | None:
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
        for call in waiting:
            call.fail(error)

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
        self._n_threads = 0
        self._busy = _Utilisation(time.monotonic())
        self._round_since_s = math.nan
        atexit.register(self.end_at_exit)

    def end_at_exit(self) -> None:
        """End before the interpreter does: a thread that it finds in native code would abort the process."""
        self._runtime.close(SystemExit())  # threads that wait for a result end without a traceback
        self.join(EXIT_S)

    @property
    def state(self) -> EngineState:
        """Its state now; from any thread."""
        calls = self.batcher.calls
        n_live = sum(one.priority is Priority.LIVE for one in calls)
        return EngineState(n_live, len(calls) > n_live, self._busy.now(time.monotonic()))

    @property
    def stalled_s(self) -> float:
        since_s = self._round_since_s
        return 0.0 if math.isnan(since_s) else time.monotonic() - since_s

    def run(self) -> None:
        runtime = self._runtime
        try:
            while True:
                with runtime.condition:
                    self.is_at_work = bool(self.batcher.calls)
                    while not (self._is_ready() or runtime.closed_by):
                        runtime.condition.wait()
                    self.is_at_work = True
                    if runtime.closed_by is not None:
                        break
                self._round()
        finally:
            if runtime.closed_by is None:  # this thread failed
                runtime.end(RuntimeError(ENDED))
            self.batcher.fail_all(runtime.closed_by or RuntimeError(ENDED))
            atexit.unregister(self.end_at_exit)
            if runtime.n_threads is not None:
                torch.set_num_threads(THREADS)  # new threads inherit what was set last

    def _is_ready(self) -> bool:
        runtime = self._runtime
        self._take()
        n_calls = len(self.batcher.calls)
        return n_calls > 0 and (not runtime.waits_for_all or n_calls >= runtime.n_callers)

    def _take(self) -> None:
        """Take waiting calls, as far as there is room; a recording waits at most PATIENCE_S for an engine
        without live calls.
        """
        waiting, batcher = self._runtime.waiting, self.batcher
        is_alone = all(engine.is_at_work for engine in self._runtime.engines if engine is not self)
        now_s = time.monotonic()
        taken = []
        for one in sorted(waiting, key=lambda one: (one.priority, one.order)):
            if one.priority is Priority.LIVE:
                may_take = not batcher.n_live or batcher.has_room or len(self._runtime.engines) == 1
            else:
                is_free = not batcher.n_live or now_s - one.order[0] >= PATIENCE_S
                may_take = is_free and batcher.has_file_room and (is_alone or not batcher.n_files)
            if may_take:
                batcher.submit(one)
                taken.append(one)
        self._runtime.waiting = [one for one in waiting if one not in taken]

    def _round(self) -> None:
        runtime = self._runtime
        self._use_threads()
        callers = [one.caller for one in self.batcher.calls if one.priority is Priority.LIVE]
        began_s, work_began_s = time.monotonic(), runtime.work_clock()
        self._round_since_s = began_s
        served: Priority | None = None
        try:
            served = self.batcher.round()
        except Exception as error:  # not of one call: of the batcher itself; the thread goes on
            log.exception("the engine failed")
            self.batcher.fail_all(error)
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
            torch.get_num_threads()  # a thread that has not asked would take over what others set last
            torch.set_num_threads(share)
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
