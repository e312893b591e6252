"""What a caller holds of one recording: its segments as they come, or all of them as a transcript."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Lock
from types import TracebackType

from sottovoce.audio.recording import Recording
from sottovoce.offline.engine import Engine
from sottovoce.offline.longform import Transcription, Watch
from sottovoce.offline.work import Step, perform
from sottovoce.types import Segment, Transcript, Turn


class FileTranscription:
    """The segments of one recording, as they are found; closes the recording at the end.

    Iterate once; the segments stay, for `text` and `collect`. What else is known grows with the iteration.
    """

    def __init__(self, recording: Recording, transcription: Transcription, watch: Watch, model: str) -> None:
        self._recording = recording
        self._transcription = transcription
        self._watch = watch
        self._model = model
        self._segments: list[Segment] = []
        self._busy = Lock()

    def __iter__(self) -> Iterator[Segment]:
        return self

    def __next__(self) -> Segment:
        while (step := self.next_step()) is not None:
            if isinstance(step, Segment):
                return step
            try:
                perform(self.engine, [step])
            except BaseException:
                self.close()
                raise
        raise StopIteration

    @property
    def engine(self) -> Engine:
        """The model, and what is asked of it."""
        return self._transcription.engine

    def next_step(self) -> Step | None:
        """The next segment, or work to be done before this is asked again (see `perform`); None at the end.

        For who does the work of several recordings together. Raises: AudioError, as the iteration.
        """
        with self._busy:
            try:
                step = self._transcription.next_step()
            except BaseException:
                self._watch.stopped.set()
                self._release()
                raise
            if step is None:
                self._watch.stopped.set()
                self._release()
        if isinstance(step, Segment):
            self._segments.append(step)
        return step

    def prepare(self) -> bool:
        """Do a few seconds' share of what comes before the first segment: who speaks when is found first.

        Whether to call again; iterating does what is left, so nobody needs it but who has other work too.
        Raises: AudioError, as the iteration.
        """
        with self._busy:
            try:
                return self._transcription.prepare()
            except BaseException:
                self._watch.stopped.set()
                self._release()
                raise

    def __enter__(self) -> FileTranscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop, from any thread: the iteration ends after the window that is being read.

        Harmless when it has ended; what was transcribed stays.
        """
        self._watch.stopped.set()
        if self._busy.acquire(blocking=False):  # else whoever iterates lets go of the recording
            try:
                self._release()
            finally:
                self._busy.release()

    def _release(self) -> None:
        self._transcription.close()
        self._recording.close()

    def collect(self) -> Transcript:
        """Transcribe what is left, and give all of it; after `close`, what there is.

        Raises: AudioError, OptionError, as the iteration.
        """
        for _ in self:
            pass
        return transcript_of(self._segments, self._transcription, self._model)

    @property
    def text(self) -> str:
        """The whole text; transcribes what is left."""
        return self.collect().text

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Those found so far."""
        return tuple(self._segments)

    @property
    def language(self) -> str | None:
        """The language spoken most in the segments so far; before the first one, that detected."""
        return spoken_most(self._segments) or self._transcription.language

    @property
    def language_probability(self) -> float | None:
        """Of the language detected first, among those allowed; None when given, or not known yet."""
        return self._transcription.language_probability

    @property
    def language_probabilities(self) -> Mapping[str, float]:
        """Of every language of the model, at that detection; empty when given, or not known yet."""
        return self._transcription.language_probabilities

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Who speaks when, known before the first segment; empty where that was not asked for."""
        return self._transcription.turns

    @property
    def duration(self) -> float | None:
        """Seconds: as the recording declares, and exactly once its end was read; None if unknown."""
        return self._transcription.duration

    @property
    def position(self) -> float:
        """Seconds transcribed so far."""
        return self._transcription.position


def spoken_most(segments: list[Segment]) -> str | None:
    """The language with the most seconds; None without segments."""
    seconds: dict[str, float] = {}
    for segment in segments:
        seconds[segment.language] = seconds.get(segment.language, 0.0) + segment.end - segment.start
    return max(seconds, key=lambda language: seconds[language], default=None)


def transcript_of(segments: list[Segment], transcription: Transcription, model: str) -> Transcript:
    """The transcript of a recording, as far as it has come."""
    duration = transcription.duration
    return Transcript(
        segments=tuple(segments),
        language=spoken_most(segments) or transcription.language or "",
        duration=transcription.position if duration is None else duration,
        model=model,
        language_probability=transcription.language_probability,
        language_probabilities=transcription.language_probabilities,
        turns=transcription.turns,
    )
