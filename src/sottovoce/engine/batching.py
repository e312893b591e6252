"""The calls of many live sessions and recordings on one model, put together.

Of live calls, windows of about one length are encoded in one batch, stretches probed in one, and
everything that AlignAtt decodes in one running batch. Calls of recordings are done between them, a step
at a time.

Nothing waits for company: a round does what is there. A call that fails ends or is caught in its own
generator; what fails in company is done again alone. Everything runs in whoever calls `round`; nobody
else may touch the model meanwhile. Not known here: threads, clients, and when sessions have audio.
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
"""Of the time recordings have at least, however many live calls there are."""
LIVE_KINDS = (
    HostCall,
    EncodeCall,
    DetectLanguageCall,
    LanguageProbeCall,
    SpanProbeCall,
    DecodeCall,
    WordAlignCall,
)
"""Kinds of live calls that are done at once, whatever their number."""
FILE_KINDS = (*LIVE_KINDS, IncrementalEncodeCall, AlignAttCall)
"""Kinds of calls of recordings: encoding goes first and aligning last, so that recordings wait for each other
and share the next batch."""
MOST_PASSED = 4
"""Batches of other recordings before a call of any kind is done."""
MELS_PER_FRAME = 2
USUAL_FRAMES = 350
"""That are computed of a window which grew."""


@dataclass(slots=True, eq=False)
class _Batch:
    tasks: Sequence[Task[Any]]
    steps: Stepwise[Sequence[Any]] | None = None


class SteppedBatches:
    """Batches in the order in which they were added, each done to its end before the next.

    A batch that fails is done again call by call; only what fails by itself has failed.
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
        """Go on with the first batch up to its next pass of the decoder, or to its end."""
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
    """A call whose requests are being decoded; results: those so far, by the place of their requests."""

    task: Task[Any]
    call: AlignAttCall
    results: dict[int, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.task.call is not self.call


@dataclass(slots=True, eq=False)
class _Running:
    """A running batch. owners: by ticket, the call of a request and the request's place in it."""

    batch: ContinuousBatch
    owners: dict[int, tuple[_PendingCall, int]] = field(default_factory=dict)


class ContinuousDecoding:
    """The running batches, one for each `batch_key`, and whose requests are in them."""

    def __init__(self) -> None:
        self._running: dict[Hashable, _Running] = {}
        self._under_way: set[int] = set()  # numbers of tasks

    @property
    def n_requests(self) -> int:
        return sum(one.batch.n_requests for one in self._running.values())

    def has(self, task: Task[Any]) -> bool:
        return task.number in self._under_way

    def admit(self, task: Task[Any], call: AlignAttCall) -> None:
        """Let the requests of a task's call join."""
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
        """Decode on by a step, and answer the calls that are done with it.

        What can no longer go on together is decoded again from its beginning, call by call.
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
    """Limits of what is put together.

    encoder_frames: of one call, the first window aside, which is always taken. max_length_ratio: a window
        joins a call if it is no longer, and no shorter, than by this part. rows: requests decoded at a time.
    files: recordings at a time. encodes_files_together: whether their windows are encoded in one batch too,
        which takes an accelerator little longer than one; on a CPU live calls would wait for all of them.

    Raises: OptionError for numbers out of range.
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
"""A window alone keeps a processor's cores busy; another one in the same call saves next to nothing."""
ON_ACCELERATOR = Batching(encoder_frames=32 * USUAL_FRAMES, rows=512, files=16, encodes_files_together=True)


class BatchingExecutor:
    """Does the calls of many generators together, those of live sessions before those of recordings.

    batching: how much at a time; None: by the device. file_share: of the time recordings have at least,
    however many live calls there are. clock: seconds, also for when tasks began.
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
        """Whether the next call of the encoder could take another live window of usual length."""
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
        """Take a generator; on_end: called in `round` when it is done.

        A session has one task at a time, and so has a recording.
        """
        task = Task(calls, deadline_s, on_end, priority)
        self._tasks.append(task)
        return task

    def run(self, calls: CallGenerator[Result]) -> Result:
        """Do rounds until this generator is done, whatever else there is; return what it returns.

        Raises: what it ended with.
        """
        task = self.begin(calls)
        while not task.is_done:
            self.round()
        return task.result

    def advance(self) -> None:
        """Let new tasks yield their first calls; those that yield none are done."""
        with threads_of(self._backend):
            self._advance()

    def _advance(self) -> None:
        for task in self._tasks:
            if task.call is None:
                task.begin()
        self._drop_done()

    def round(self) -> Priority | None:
        """Do what there is of live calls: a call of the encoder, the probes, a step of what is decoded.

        Without any, or when recordings have waited for their share, do a step of theirs: a call, or a pass of
        the decoder within one. Return whose calls were done; None: there were none.
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
        """Drop everything that is under way, without answers."""
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
        """Tasks that wait for a call of a kind, what is due first before others."""
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
        """Encode the windows that are due first, and others of about their length, up to the budget."""
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
        """Do the live calls that wait for no budget and join no running batch."""
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
        """Do a step of the calls of recordings, and note when the next one is due at the latest."""
        began_s = self._clock()
        if self._files.is_empty:
            self._add_file_batches()
        self._files.step()
        now_s = self._clock()
        self._file_due_s = now_s + (now_s - began_s) * (1.0 / self._file_share - 1.0)

    def _add_file_batches(self) -> None:
        """Add batches of the first kind that any recording waits for, or that one was passed over for."""
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
