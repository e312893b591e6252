"""The work of many live sessions on one model, put together: windows of about one length encoded in one call,
stretches probed in one, and everything that is read in one running decode.

Nothing waits for company: a round does what is there. A piece of work that fails ends or is caught in its own
session; what fails in company is done again alone. Everything runs in whoever calls `round`; nobody else may
touch the model meanwhile. Not known here: threads, clients, files, and when sessions have audio.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sottovoce.backends.base import Backend, GrowingWindow
from sottovoce.engine.tasks import Task
from sottovoce.errors import OptionError
from sottovoce.language.probe import hear_together
from sottovoce.models.encoder_mode import frames_of
from sottovoce.streaming.alignatt import RunningReadings
from sottovoce.streaming.reading import Reading
from sottovoce.streaming.vocabulary import LiveVocabulary
from sottovoce.streaming.work import Encode, Probe, Read, Steps

log = logging.getLogger(__name__)
Result = TypeVar("Result")

MELS_PER_FRAME = 2
USUAL_FRAMES = 350
"""That are computed of a window which grew."""


@dataclass(frozen=True, slots=True)
class Batching:
    """How much is put together.

    encoder_frames: of one call, the first window aside, which is always taken. unlike: a window joins a call
        if it is no longer, and no shorter, than by this part. rows: requests read at a time.

    Raises: OptionError for numbers out of range.
    """

    encoder_frames: int = 400
    unlike: float = 0.25
    rows: int = 64

    def __post_init__(self) -> None:
        if self.encoder_frames < 1 or self.rows < 1 or not 0.0 <= self.unlike <= 1.0:
            raise OptionError(f"batching: expected counts from 1 and a part from 0 to 1, got {self}")


ON_CPU = Batching()
"""A window alone keeps a processor's cores busy; another one in the same call saves next to nothing."""
ON_ACCELERATOR = Batching(encoder_frames=32 * USUAL_FRAMES, rows=512)


@dataclass(slots=True, eq=False)
class _Reading:
    """A piece of work that is being read: its readings so far, by the place of their requests."""

    task: Task[object]
    work: Read
    found: dict[int, Reading] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Decode:
    """A running decode, and whose requests are in it: ticket to work and the request's place in it."""

    readings: RunningReadings
    owners: dict[int, tuple[_Reading, int]] = field(default_factory=dict)


class LiveEngine:
    """Drives the generators of many sessions.

    clock: seconds, for when tasks began.
    """

    def __init__(
        self,
        backend: Backend,
        batching: Batching | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._given = batching
        self._clock = clock
        self._tasks: list[Task[object]] = []
        self._decodes: dict[LiveVocabulary, _Decode] = {}
        self._under_way: set[int] = set()  # numbers of tasks whose requests are being read

    @property
    def n_tasks(self) -> int:
        """Tasks that are not done."""
        return len(self._tasks)

    @property
    def has_room(self) -> bool:
        """Whether the next call of the encoder could take another window of usual length."""
        n_asking = sum(not isinstance(task.work, Read) for task in self._tasks)
        return (n_asking + 1) * USUAL_FRAMES <= max(USUAL_FRAMES, self._batching.encoder_frames)

    def begin(
        self,
        steps: Steps[Result],
        deadline_s: float = 0.0,
        on_end: Callable[[Task[Result]], None] | None = None,
    ) -> Task[Result]:
        """Take a generator; on_end: told in `round` when it is done.

        A session has one task at a time.
        """
        task = Task(steps, deadline_s, on_end)
        self._tasks.append(task)  # type: ignore[arg-type]
        return task

    def run(self, steps: Steps[Result]) -> Result:
        """Do rounds until this generator is done, whatever else there is; what it returns.

        Raises: what it ended with.
        """
        task = self.begin(steps)
        while not task.is_done:
            self.round()
        return task.result

    def advance(self) -> None:
        """Have new tasks say what they ask for; those that ask for nothing are done."""
        for task in self._tasks:
            if task.work is None:
                task.advance()
        self._settle()

    def round(self) -> None:
        """Do a call of the encoder, the probes, and a step of what is read, of what there is."""
        self.advance()
        self._encode()
        self._probe()
        self._read()
        self._settle()

    def forget(self) -> None:
        """Let go of everything that is under way, and tell nobody."""
        self._tasks, self._decodes, self._under_way = [], {}, set()

    def _settle(self) -> None:
        self._tasks = [task for task in self._tasks if not task.is_done]

    def _asking(self, kind: type[Encode] | type[Probe] | type[Read]) -> list[Task[object]]:
        """Tasks that ask for work of a kind, what is due first before others."""
        return sorted((one for one in self._tasks if isinstance(one.work, kind)), key=lambda one: one.order)

    def _note(self, tasks: Sequence[Task[object]]) -> None:
        now_s = self._clock()
        for task in tasks:
            if math.isnan(task.began_s):
                task.began_s = now_s

    @property
    def _batching(self) -> Batching:
        return self._given or (ON_CPU if self._backend.device.type == "cpu" else ON_ACCELERATOR)

    def _encode(self) -> None:
        """Encode the windows that are due first, and others of about their length, up to the budget."""
        tasks = self._asking(Encode)
        if not tasks:
            return
        batching = self._batching
        chosen: list[tuple[Task[object], Encode]] = []
        first = n_frames = 0
        for task in tasks:
            assert isinstance(task.work, Encode)
            own = [_frames(window) for window in task.work.windows]
            longest = max(own, default=0)
            if chosen and (
                n_frames + sum(own) > batching.encoder_frames
                or abs(longest - first) > batching.unlike * max(first, 1)
            ):
                continue
            first = first or longest
            n_frames += sum(own)
            chosen.append((task, task.work))
        self._note([task for task, _ in chosen])
        self._each(chosen, self._encode_together)

    def _encode_together(self, works: Sequence[Encode]) -> None:
        grown = iter(self._backend.encode_growing([window for work in works for window in work.windows]))
        for work in works:
            work.grown = [next(grown) for _ in work.windows]

    def _probe(self) -> None:
        """Probe stretches, those together that are filled up to the same length."""
        alike: dict[object, list[tuple[Task[object], Probe]]] = {}
        for task in self._asking(Probe):
            assert isinstance(task.work, Probe)
            alike.setdefault(task.work.probe.batch_of(task.work.log_mels), []).append((task, task.work))
        for some in alike.values():
            self._note([task for task, _ in some])
            self._each(some, _probe_together)

    def _each(
        self, asked: Sequence[tuple[Task[object], _W]], together: Callable[[Sequence[_W]], None]
    ) -> None:
        """Do work together; where that fails, each by itself, and only what fails by itself has failed."""
        try:
            together([work for _, work in asked])
        except Exception as error:
            if len(asked) == 1:
                asked[0][0].advance(error)
                return
            log.warning("a batch of %d failed: %s", len(asked), type(error).__name__)
            for one in asked:
                self._each([one], together)
            return
        for task, _ in asked:
            task.advance()

    def _read(self) -> None:
        """Admit what is to be read, and go on by a step with all that is being read."""
        n_rows = sum(decode.readings.n_requests for decode in self._decodes.values())
        for task in self._asking(Read):
            if task.number in self._under_way or n_rows >= self._batching.rows:
                continue
            assert isinstance(task.work, Read)
            self._note([task])
            n_rows += len(task.work.requests)
            self._admit(task, task.work)
        for vocabulary, decode in list(self._decodes.items()):
            try:
                finished = decode.readings.step()
            except Exception as error:
                del self._decodes[vocabulary]
                self._read_alone(decode, error)
                continue
            for ticket, reading in finished:
                self._found(*decode.owners.pop(ticket), reading)
            if not decode.readings.n_requests:
                del self._decodes[vocabulary]

    def _admit(self, task: Task[object], work: Read) -> None:
        reader = work.reader
        decode = self._decodes.get(reader.vocabulary)
        if decode is None:
            decode = _Decode(RunningReadings(self._backend, reader.vocabulary))
            self._decodes[reader.vocabulary] = decode
        under_way = _Reading(task, work)
        self._under_way.add(task.number)
        for place, (heard, request) in enumerate(zip(work.heard, work.requests, strict=True)):
            try:
                ticket = decode.readings.admit(reader, heard, request)
            except Exception as error:
                self._end_reading(under_way, error)
                return
            decode.owners[ticket] = (under_way, place)

    def _found(self, under_way: _Reading, place: int, reading: Reading) -> None:
        under_way.found[place] = reading
        if len(under_way.found) == len(under_way.work.requests) and under_way.task.work is under_way.work:
            under_way.work.readings = [under_way.found[i] for i in range(len(under_way.found))]
            self._end_reading(under_way)

    def _end_reading(self, under_way: _Reading, error: Exception | None = None) -> None:
        self._under_way.discard(under_way.task.number)
        under_way.task.advance(error)

    def _read_alone(self, decode: _Decode, error: Exception) -> None:
        """Read again from the beginning, one after the other, what could not go on together."""
        log.warning("reading %d together failed: %s", len(decode.owners), type(error).__name__)
        for under_way in dict.fromkeys(owner for owner, _ in decode.owners.values()):
            work = under_way.work
            if under_way.task.work is not work:  # it has failed already
                continue
            try:
                work.readings = work.reader.read(work.heard, work.requests)
            except Exception as failure:
                self._end_reading(under_way, failure)
            else:
                self._end_reading(under_way)


_W = TypeVar("_W", Encode, Probe)


def _probe_together(works: Sequence[Probe]) -> None:
    probed = hear_together([(work.probe, work.log_mels) for work in works])
    for work, found in zip(works, probed, strict=True):
        work.probed = found


def _frames(window: GrowingWindow) -> int:
    """About how many frames of audio are computed of a window."""
    n_frames = int(window.log_mel.shape[1]) // MELS_PER_FRAME
    if window.state is None or window.mode.recompute_s is None:
        return n_frames
    return min(n_frames, frames_of(window.mode.recompute_s))
