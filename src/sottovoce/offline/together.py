"""Several recordings at once: their windows share the batches of the model.

Every recording is at a place of its own and has its own prompt, so its text is that of the recording alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

from sottovoce.audio.recording import Recording
from sottovoce.offline.engine import Engine
from sottovoce.offline.longform import Transcription, Watch, transcription_of
from sottovoce.offline.result import transcript_of
from sottovoce.offline.work import FAILURES, Work, first_kind, perform_each
from sottovoce.types import Segment, Transcript

Source = TypeVar("Source")
Outcome: TypeAlias = Transcript | Exception

AHEAD = 4
"""So many batches of recordings may have ended and wait for one that came before them."""


def transcribe_together(
    engine: Engine,
    sources: Iterable[Source],
    open_source: Callable[[Source], Recording],
    *,
    batch_size: int,
    model: str,
) -> Iterator[tuple[Source, Outcome]]:
    """Transcribe recordings, batch_size of them at a time, and give them in the order in which they came.

    open_source: makes a recording of a source. model: its name, for the transcripts.
    A recording that fails gives its error in place of a transcript, and harms no other.
    """
    waiting = iter(sources)
    runs: deque[_Run[Source]] = deque()  # all from the first one that was not given away yet
    try:
        while True:
            while sum(run.outcome is None for run in runs) < batch_size and len(runs) < AHEAD * batch_size:
                source = list(islice(waiting, 1))
                if not source:
                    break
                runs.append(_Run(source[0], engine, model))
                runs[-1].begin(open_source)
            while runs and (outcome := runs[0].outcome) is not None:
                yield runs.popleft().source, outcome
            active = [run for run in runs if run.outcome is None]
            if active:
                _work_on(engine, active)
            elif not runs and not source:
                return
    finally:
        for run in runs:
            run.close()


class _Run(Generic[Source]):
    """One recording under way. work: to be done before it goes on; outcome: once it has ended."""

    def __init__(self, source: Source, engine: Engine, model: str) -> None:
        self.source = source
        self.work: Work | None = None
        self.outcome: Outcome | None = None
        self._engine = engine
        self._model = model
        self._segments: list[Segment] = []
        self._recording: Recording | None = None
        self._transcription: Transcription | None = None

    def begin(self, open_source: Callable[[Source], Recording]) -> None:
        """Open the recording, and go to its first piece of work."""
        try:
            self._recording = open_source(self.source)
            self._transcription = transcription_of(self._engine, self._recording, Watch())
        except FAILURES as error:
            self.end(error)
        else:
            self.advance()

    def advance(self) -> None:
        """Go on to the next piece of work, or to the end."""
        assert self._transcription is not None
        self.work = None
        try:
            while (step := self._transcription.next_step()) is not None:
                if not isinstance(step, Segment):
                    self.work = step
                    return
                self._segments.append(step)
        except FAILURES as error:
            self.end(error)
        else:
            self.end(transcript_of(self._segments, self._transcription, self._model))

    def end(self, outcome: Outcome) -> None:
        """End with a transcript, or with what went wrong."""
        self.work = None
        self.outcome = outcome
        self.close()

    def close(self) -> None:
        """Let go of the recording."""
        if self._transcription is not None:
            self._transcription.close()
        if self._recording is not None:
            self._recording.close()


def _work_on(engine: Engine, runs: Sequence[_Run[Source]]) -> None:
    """Do the work of one kind of all recordings that ask for it."""
    asking = [runs[place] for place in first_kind([run.work for run in runs])]
    failed = perform_each(engine, [run.work for run in asking if run.work is not None])
    for run, error in zip(asking, failed, strict=True):
        if error is not None:
            run.end(error)
        else:
            run.advance()
