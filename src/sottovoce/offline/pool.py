"""Recordings of several people at once: who asks for a segment shares batches with all who wait then.

Each is at a place of its own, so its text is that of the recording alone. Asked from any thread; the work is
done in those that `serve`. Not known here: who asks, and what goes before recordings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field

from sottovoce.offline.result import FileTranscription
from sottovoce.offline.work import Encode, Listen, Work, first_kind, perform_each
from sottovoce.types import Segment


@dataclass(slots=True, eq=False)
class Ask:
    """Somebody waits for the next segment of a recording, None at its end; work: to be done before."""

    recording: FileTranscription
    segment: Future[Segment | None] = field(default_factory=Future)
    work: Work | None = None

    def advance(self) -> None:
        """Go on to the next piece of work, or to the segment."""
        self.work = None
        try:
            step = self.recording.next_step()
        except BaseException as error:  # whatever it is, it belongs to who asked
            self.segment.set_exception(error)
            return
        if step is None or isinstance(step, Segment):
            self.segment.set_result(step)
        else:
            self.work = step

    def fail(self, error: BaseException) -> None:
        """End the recording with what went wrong."""
        self.work = None
        self.recording.close()
        self.segment.set_exception(error)


class FilePool:
    """Who waits for segments.

    most: recordings in a batch. encodes_together: whether windows are encoded in one batch too, which takes
    an accelerator little longer than one; on a CPU live work would wait for all of them.
    """

    def __init__(self, most: int, *, encodes_together: bool) -> None:
        self._most = most
        self._encodes_together = encodes_together
        self._waiting: list[Ask] = []
        self._lock = threading.Lock()

    def ask(self, recording: FileTranscription) -> Ask:
        """Wait for the next segment, which a thread is to `serve`. Nobody else asks the recording then."""
        asked = Ask(recording)
        with self._lock:
            self._waiting.append(asked)
        return asked

    def serve(self, asked: Ask, again: Callable[[Ask], object]) -> None:
        """Work until this segment is found, and on those of others who wait; nothing where that is under way.

        again: called for those whose segment is not found by then, each to be served in its turn.
        """
        under_way = self._taken([asked])
        try:
            while any(one is asked for one in under_way):
                under_way += self._taken(self._waiting_now(self._most - len(under_way)))
                self._round(under_way)
                under_way = [one for one in under_way if not one.segment.done()]
        except BaseException as error:
            for one in under_way:
                if not one.segment.done():
                    one.fail(error)
            return
        with self._lock:
            self._waiting = under_way + self._waiting
        for one in under_way:
            try:
                again(one)
            except BaseException as error:
                self.leave(one, error)

    def leave(self, asked: Ask, error: BaseException | None = None) -> None:
        """Nobody will serve it any more; harmless where it is under way or found."""
        if self._taken([asked]):
            asked.fail(error or CancelledError())

    def _waiting_now(self, most: int) -> list[Ask]:
        with self._lock:
            return self._waiting[:most]

    def _taken(self, wanted: Sequence[Ask]) -> list[Ask]:
        """Those of the wanted that still wait and that nobody has cancelled; they wait no more."""
        with self._lock:
            taken = [one for one in wanted if any(one is other for other in self._waiting)]
            self._waiting = [one for one in self._waiting if not any(one is other for other in taken)]
        return [one for one in taken if one.segment.running() or one.segment.set_running_or_notify_cancel()]

    def _round(self, under_way: Sequence[Ask]) -> None:
        """Do the work of one kind of all that ask for it."""
        for one in under_way:
            if one.work is None:
                one.advance()
        asking = [under_way[place] for place in first_kind([one.work for one in under_way])]
        for some in self._batches(asking):
            failed = perform_each(
                some[0].recording.engine, [one.work for one in some if one.work is not None]
            )
            for one, error in zip(some, failed, strict=True):
                if error is not None:
                    one.fail(error)
                else:
                    one.advance()

    def _batches(self, asking: Sequence[Ask]) -> list[list[Ask]]:
        """Those whose work is done in one batch."""
        batches: list[list[Ask]] = []
        for one in asking:
            is_alone = isinstance(one.work, Listen) or (
                isinstance(one.work, Encode) and not self._encodes_together
            )
            alike = (some for some in batches if some[0].recording.engine.is_like(one.recording.engine))
            batch = None if is_alone else next(alike, None)
            if batch is None:
                batches.append([one])
            else:
                batch.append(one)
        return batches
