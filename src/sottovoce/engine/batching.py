"""Batching of the calls of many live sessions and recordings on one model.

Live windows of similar length are encoded in one batch, stretches probed in one, and AlignAtt requests
decoded in one running batch. Calls of recordings run between them, a step at a time. A round runs the
available calls without waiting for more. A failed batch is repeated call by call, and a failed call only
affects its own generator. Everything runs in the thread that calls `round`, which alone may use the model.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sottovoce.backends.base import Backend, IncrementalWindow
from sottovoce.decoding.decode import Stepwise
from sottovoce.engine.calls import (
    AlignAttCall,
    CallGenerator,
    ContinuousBatch,
    DecodeCall,
    DetectLanguageCall,
    EncodeCall,
    HostCall,
    IncrementalEncodeCall,
    LanguageProbeCall,
    ModelCall,
    Priority,
    Result,
    SpanProbeCall,
    Task,
    WordAlignCall,
)
from sottovoce.engine.executor import batch_key, run_batch, threads_of
from sottovoce.errors import OptionError
from sottovoce.models.dims import frames_of

log = logging.getLogger(__name__)
FILE_SHARE = 0.1
"""Least share of the time for recordings, however many live calls there are."""
LIVE_KINDS = (
    HostCall,
    EncodeCall,
    DetectLanguageCall,
    LanguageProbeCall,
    SpanProbeCall,
    DecodeCall,
    WordAlignCall,
)
"""Kinds of live calls that run at once, whatever their number."""
FILE_KINDS = (*LIVE_KINDS, IncrementalEncodeCall, AlignAttCall)
"""Kinds of calls of recordings: encoding first and aligning last, so that recordings share the next batch."""
MOST_PASSED = 4
"""Batches of other recordings before a call of any kind is done."""
MELS_PER_FRAME = 2
USUAL_FRAMES = 350
"""Frames usually computed of a window that grew."""


@dataclass(slots=True, eq=False)
class _Batch:
    tasks: Sequence[Task[Any]]
    steps: Stepwise[Sequence[Any]] | None = None


class SteppedBatches:
    """Batches in order of arrival, each completed before the next.

    A failed batch is repeated call by call.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._batches: deque[_Batch] = deque()

    @property
    def is_empty(self) -> bool:
        return not self._batches

    def add(self, tasks: Sequence[Task[Any]]) -> None:
        self._batches.append(_Batch(tasks))

    def step(self) -> None:
        """Advance the first batch to its next decoder pass, or to its end."""
        batch = self._batches[0]
        if batch.steps is None:
            batch.steps = run_batch(self._backend, [one.call for one in batch.tasks if one.call is not None])
        try:
            next(batch.steps)
        except StopIteration as end:
            self._batches.popleft()
            for task, result in zip(batch.tasks, end.value, strict=True):
                task.answer(result)
        except Exception as error:
            self._batches.popleft()
            self._retry_alone(batch, error)

    def finish(self) -> None:
        while self._batches:
            self.step()

    def forget(self) -> None:
        self._batches.clear()

    def _retry_alone(self, batch: _Batch, error: Exception) -> None:
        if len(batch.tasks) == 1:
            batch.tasks[0].fail(error)
            return
        log.warning("a batch of %d failed: %s", len(batch.tasks), type(error).__name__)
        self._batches.extendleft(_Batch([task]) for task in reversed(batch.tasks))


@dataclass(slots=True, eq=False)
class _PendingCall:
    """A call with requests in decoding; results: so far, by request index."""

    task: Task[Any]
    call: AlignAttCall
    results: dict[int, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.task.call is not self.call


@dataclass(slots=True, eq=False)
class _Running:
    """A running batch. owners: by ticket, the call of a request and the request's index in it."""

    batch: ContinuousBatch
    owners: dict[int, tuple[_PendingCall, int]] = field(default_factory=dict)


class ContinuousDecoding:
    """The running batches, one for each `batch_key`, with the owners of their requests."""

    def __init__(self) -> None:
        self._running: dict[Hashable, _Running] = {}
        self._under_way: set[int] = set()  # numbers of tasks

    @property
    def n_requests(self) -> int:
        return sum(one.batch.n_requests for one in self._running.values())

    def has(self, task: Task[Any]) -> bool:
        return task.number in self._under_way

    def admit(self, task: Task[Any], call: AlignAttCall) -> None:
        running = self._running.get(call.decoder.batch_key)
        if running is None:
            running = self._running[call.decoder.batch_key] = _Running(call.decoder.new_batch())
        decoding = _PendingCall(task, call)
        self._under_way.add(task.number)
        for place, (encoded, request) in enumerate(zip(call.encoded, call.requests, strict=True)):
            try:
                ticket = running.batch.admit(call.decoder, encoded, request)
            except Exception as error:
                self._leave(decoding)
                task.fail(error)
                return
            running.owners[ticket] = (decoding, place)

    def step(self) -> None:
        """Decode one step, and return the results of finished calls.

        A failed batch is decoded again from its beginning, call by call.
        """
        for key, running in list(self._running.items()):
            try:
                finished = running.batch.step()
            except Exception as error:
                del self._running[key]
                self._decode_alone(running, error)
                continue
            for ticket, result in finished:
                self._note(*running.owners.pop(ticket), result)
            if not running.batch.n_requests:
                del self._running[key]

    def forget(self) -> None:
        self._running, self._under_way = {}, set()

    def _note(self, decoding: _PendingCall, place: int, result: Any) -> None:
        decoding.results[place] = result
        if len(decoding.results) == len(decoding.call.requests) and not decoding.is_over:
            self._leave(decoding)
            decoding.task.answer([decoding.results[i] for i in range(len(decoding.results))])

    def _leave(self, decoding: _PendingCall) -> None:
        self._under_way.discard(decoding.task.number)

    def _decode_alone(self, running: _Running, error: Exception) -> None:
        log.warning("decoding %d requests together failed: %s", len(running.owners), type(error).__name__)
        for decoding in dict.fromkeys(owner for owner, _ in running.owners.values()):
            if decoding.is_over:
                continue
            call = decoding.call
            self._leave(decoding)
            try:
                results = call.decoder.decode(call.encoded, call.requests)
            except Exception as failure:
                decoding.task.fail(failure)
            else:
                decoding.task.answer(results)


@dataclass(frozen=True, slots=True)
class Batching:
    """Limits of batches.

    encoder_frames: of one call; the first window is always taken. max_length_ratio: relative difference in
    length of windows in a call. rows: requests decoded at a time. files: recordings at a time.
    encodes_files_together: encode their windows in one batch, which is cheap on an accelerator; on a CPU
    live calls would wait.

    Raises:
        OptionError: a number is out of range.
    """

    encoder_frames: int = 400
    max_length_ratio: float = 0.25
    rows: int = 64
    files: int = 2
    encodes_files_together: bool = False

    def __post_init__(self) -> None:
        if min(self.encoder_frames, self.rows, self.files) < 1 or not 0.0 <= self.max_length_ratio <= 1.0:
            raise OptionError(f"batching: expected counts from 1 and a part from 0 to 1, got {self}")


ON_CPU = Batching()
"""A single window keeps a processor's cores busy; batching saves hardly anything."""
ON_ACCELERATOR = Batching(encoder_frames=32 * USUAL_FRAMES, rows=512, files=16, encodes_files_together=True)


class BatchingExecutor:
    """Executes the calls of many generators in batches, live sessions before recordings.

    batching: limits; None: by the device. file_share: least share of the time for recordings. clock:
    seconds, also for when tasks began.
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
        self._given = batching
        self._file_share = file_share
        self._file_due_s = -math.inf
        self._clock = clock
        self._tasks: list[Task[Any]] = []
        self._continuous = ContinuousDecoding()
        self._live = SteppedBatches(backend)
        self._files = SteppedBatches(backend)

    @property
    def n_tasks(self) -> int:
        return len(self._tasks)

    @property
    def has_room(self) -> bool:
        """Whether the next encoder call could take another live window of usual length."""
        n_asking = sum(
            task.priority is Priority.LIVE and not isinstance(task.call, AlignAttCall) for task in self._tasks
        )
        return (n_asking + 1) * USUAL_FRAMES <= max(USUAL_FRAMES, self._batching.encoder_frames)

    @property
    def has_file_room(self) -> bool:
        """Whether another recording may be begun."""
        n_files = sum(task.priority is Priority.FILE for task in self._tasks)
        return n_files < self._batching.files

    def begin(
        self,
        calls: CallGenerator[Result],
        deadline_s: float = 0.0,
        on_end: Callable[[Task[Result]], None] | None = None,
        priority: Priority = Priority.LIVE,
    ) -> Task[Result]:
        """Add a generator; on_end: called in `round` when it is done.

        A session or recording has one task at a time.
        """
        task = Task(calls, deadline_s, on_end, priority)
        self._tasks.append(task)
        return task

    def run(self, calls: CallGenerator[Result]) -> Result:
        """Run rounds until this generator is done; return its result.

        Raises:
            Exception: that ended the generator.
        """
        task = self.begin(calls)
        while not task.is_done:
            self.round()
        return task.result

    def advance(self) -> None:
        """Advance new tasks to their first calls; tasks without calls are done."""
        with threads_of(self._backend):
            self._advance()

    def _advance(self) -> None:
        for task in self._tasks:
            if task.call is None:
                task.begin()
        self._drop_done()

    def round(self) -> Priority | None:
        """Run the available live calls: one encoder call, the probes, one decoding step.

        Without any, or when recordings have waited for their share, run a step of theirs. Return the
        owners of finished calls; None: there were no calls.
        """
        with threads_of(self._backend):
            self._advance()
            served = self._first_priority()
            if served is Priority.LIVE:
                self._encode()
                self._do_live_batches()
                self._decode()
            elif served is Priority.FILE:
                self._step_files()
            self._drop_done()
        return served

    def forget(self) -> None:
        """Drop all tasks without results."""
        tasks, self._tasks = self._tasks, []
        self._continuous.forget()
        self._live.forget()
        self._files.forget()
        for task in tasks:
            task.close()

    def _drop_done(self) -> None:
        self._tasks = [task for task in self._tasks if not task.is_done]

    def _first_priority(self) -> Priority | None:
        kinds = {task.priority for task in self._tasks}
        if Priority.FILE in kinds and (len(kinds) == 1 or self._clock() >= self._file_due_s):
            return Priority.FILE
        return Priority.LIVE if kinds else None

    def _asking(self, kind: type[ModelCall], priority: Priority = Priority.LIVE) -> list[Task[Any]]:
        """Return the tasks that wait for a call of a kind, by deadline."""
        asking = [one for one in self._tasks if one.priority is priority and isinstance(one.call, kind)]
        return sorted(asking, key=lambda one: one.order)

    def _note_begun(self, tasks: Sequence[Task[Any]]) -> None:
        now_s = self._clock()
        for task in tasks:
            if math.isnan(task.began_s):
                task.began_s = now_s

    @property
    def _batching(self) -> Batching:
        return self._given or (ON_CPU if self._backend.device.type == "cpu" else ON_ACCELERATOR)

    def _encode(self) -> None:
        """Encode the windows with the earliest deadlines and others of similar length, up to the budget."""
        batching = self._batching
        chosen: list[Task[Any]] = []
        first = n_frames = 0
        for task in self._asking(IncrementalEncodeCall):
            assert isinstance(task.call, IncrementalEncodeCall)
            own = [_frames(window) for window in task.call.windows]
            longest = max(own, default=0)
            if chosen and (
                n_frames + sum(own) > batching.encoder_frames
                or abs(longest - first) > batching.max_length_ratio * max(first, 1)
            ):
                continue
            first = first or longest
            n_frames += sum(own)
            chosen.append(task)
        if chosen:
            self._note_begun(chosen)
            self._live.add(chosen)
            self._live.finish()

    def _do_live_batches(self) -> None:
        """Run the live calls without a budget or a running batch."""
        for kind in LIVE_KINDS:
            for some in self._batches(self._asking(kind)):
                self._note_begun(some)
                self._live.add(some)
        self._live.finish()

    def _decode(self) -> None:
        n_rows = self._continuous.n_requests
        for task in self._asking(AlignAttCall):
            if self._continuous.has(task) or n_rows >= self._batching.rows:
                continue
            assert isinstance(task.call, AlignAttCall)
            self._note_begun([task])
            n_rows += len(task.call.requests)
            self._continuous.admit(task, task.call)
        self._continuous.step()

    def _step_files(self) -> None:
        """Run a step of the calls of recordings, and set the deadline of the next one."""
        began_s = self._clock()
        if self._files.is_empty:
            self._add_file_batches()
        self._files.step()
        now_s = self._clock()
        self._file_due_s = now_s + (now_s - began_s) * (1.0 / self._file_share - 1.0)

    def _add_file_batches(self) -> None:
        """Add batches of the first kind that a recording waits for, or that was passed over for too long."""
        waiting = [task for task in self._tasks if task.priority is Priority.FILE and task.call is not None]
        passed = max(waiting, key=lambda task: task.n_passed, default=None)
        if passed is None:
            return
        kinds = [kind for kind in FILE_KINDS if any(isinstance(task.call, kind) for task in waiting)]
        is_due = passed.n_passed >= MOST_PASSED
        chosen = next(kind for kind in kinds if not is_due or isinstance(passed.call, kind))
        for task in waiting:
            task.n_passed = 0 if isinstance(task.call, chosen) else task.n_passed + 1
        for some in self._batches(self._asking(chosen, Priority.FILE)):
            self._note_begun(some)
            self._files.add(some)

    def _batches(self, tasks: Sequence[Task[Any]]) -> list[list[Task[Any]]]:
        batches: dict[object, list[Task[Any]]] = {}
        for task in tasks:
            assert task.call is not None
            is_apart = isinstance(task.call, EncodeCall) and not self._batching.encodes_files_together
            key = None if is_apart else batch_key(task.call)
            batches.setdefault(("alone", task.number) if key is None else key, []).append(task)
        return list(batches.values())


def _frames(window: IncrementalWindow) -> int:
    n_frames = int(window.log_mel.shape[1]) // MELS_PER_FRAME
    if window.state is None or window.mode.recompute_s is None:
        return n_frames
    return min(n_frames, frames_of(window.mode.recompute_s))
