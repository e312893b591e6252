"""The transcription of one recording: a generator of segments and of the backend calls between them.

Stages that change segments (speakers, names, style) wrap another generator; `next_segment` passes calls
and results through.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Event, Lock
from types import TracebackType
from typing import Any, TypeAlias

from sottovoce.audio.recording import Recording
from sottovoce.decoding.detect import LanguageDetection
from sottovoce.engine.calls import CallGenerator, ModelCall
from sottovoce.engine.executor import LocalExecutor
from sottovoce.offline.resume import ResumePoint
from sottovoce.offline.transcriber import Transcriber, TranscriptionState
from sottovoce.types import Segment, Span, Transcript, Turn

SegmentGenerator: TypeAlias = Generator[Segment | ModelCall, Any, None]
"""Yields segments, and calls whose results are sent back."""


def next_segment(
    segments: SegmentGenerator, on_step: Callable[[], object] | None = None
) -> CallGenerator[Segment | None]:
    result: Any = None
    failure: Exception | None = None
    while True:
        try:
            step = segments.send(result) if failure is None else segments.throw(failure)
        except StopIteration:
            step = None
        result = failure = None
        if on_step is not None:
            on_step()
        if step is None or isinstance(step, Segment):
            return step
        try:
            result = yield step
        except Exception as error:
            failure = error


@dataclass(frozen=True, slots=True)
class RunControl:
    """Progress and cancellation of a transcription.

    on_progress: called with the seconds done and those of the recording (None while unknown) when they
    grow. abort: called before every backend call; True ends the transcription, as does setting `stopped`
    from any thread. Segments found so far stay.
    """

    on_progress: Callable[[float, float | None], None] | None = None
    abort: Callable[[], bool] | None = None
    stopped: Event = field(default_factory=Event)

    def is_over(self) -> bool:
        if self.abort is not None and self.abort():
            self.stopped.set()
        return self.stopped.is_set()


class FileTranscription(Iterator[Segment]):
    """The segments of one recording, as they are found.

    Iterate once; `text` and `collect` use all segments, and the other properties grow with the iteration.
    An executor runs `next_segment` or `collected` instead.

    model: its name, for the transcript. recording: closed at the end; None: its owner closes it.
    """

    def __init__(
        self,
        transcriber: Transcriber,
        generator: SegmentGenerator,
        state: TranscriptionState,
        control: RunControl,
        *,
        model: str = "",
        recording: Recording | None = None,
    ) -> None:
        self.backend = transcriber.backend
        self._transcriber = transcriber
        self._generator = generator
        self._state = state
        self._control = control
        self._model = model
        self._recording = recording
        self._segments: list[Segment] = []
        self._reported_s = 0.0
        self._busy = Lock()

    def __next__(self) -> Segment:
        segment = LocalExecutor(self.backend).run(self.next_segment())
        if segment is None:
            raise StopIteration
        return segment

    def next_segment(self, on_step: Callable[[], object] | None = None) -> CallGenerator[Segment | None]:
        """Yield the calls up to the next segment; return that segment, None at the end.

        on_step: called after each step: a call, a segment or the end.

        Raises:
            AudioError: as the iteration; also the error of a failed call.
        """
        result: Any = None
        failure: Exception | None = None
        while (step := self._advance(result, failure)) is not None:
            result = failure = None
            if on_step is not None:
                on_step()
            if isinstance(step, Segment):
                self._segments.append(step)
                return step
            try:
                result = yield step
            except Exception as error:
                failure = error
            except BaseException:  # no result will be sent
                self.close()
                raise
        if on_step is not None:
            on_step()
        return None

    def _advance(self, result: Any, failure: Exception | None) -> Segment | ModelCall | None:
        with self._busy:
            try:
                step = self._next_step(result, failure)
            except BaseException:
                self._end()
                raise
            if step is None:
                self._end()
        return step

    def _next_step(self, result: Any, failure: Exception | None) -> Segment | ModelCall | None:
        if failure is None and self._control.is_over():
            return None
        try:
            step = self._generator.send(result) if failure is None else self._generator.throw(failure)
        except StopIteration:
            step = None
        on_progress = self._control.on_progress
        if on_progress is not None and self.position > self._reported_s:
            self._reported_s = self.position
            on_progress(self.position, self.duration)
        return step

    def __enter__(self) -> FileTranscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop, from any thread: the iteration ends after the current call; segments stay."""
        self._control.stopped.set()
        if self._busy.acquire(blocking=False):  # otherwise the iterating thread closes the recording
            try:
                self._end()
            finally:
                self._busy.release()

    def _end(self) -> None:
        self._control.stopped.set()
        self._generator.close()
        if self._recording is not None:
            self._recording.close()

    def collect(self) -> Transcript:
        """Transcribe the rest and return the whole transcript; after `close`, the part that exists.

        Raises:
            AudioError, OptionError: as the iteration.
        """
        return LocalExecutor(self.backend).run(self.collected())

    def collected(self) -> CallGenerator[Transcript]:
        """Yield the calls for the rest; return the transcript, as `collect`.

        Raises:
            AudioError: as the iteration; also the error of a failed call.
        """
        while (yield from self.next_segment()) is not None:
            pass
        return self._transcript()

    def _transcript(self) -> Transcript:
        text = self._transcriber.tokenizer.token_text
        return Transcript(
            segments=self.segments,
            language=self.language or "",
            duration=self.position if self.duration is None else self.duration,
            model=self._model,
            language_probability=self.language_probability,
            language_probabilities=self.language_probabilities,
            turns=self.turns,
            unread=self.unread,
            token_texts={token: text(token) for segment in self._segments for token in segment.tokens},
        )

    @property
    def text(self) -> str:
        """The whole text; transcribes the rest."""
        return self.collect().text

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._segments)

    @property
    def language(self) -> str | None:
        """The most spoken language of the segments so far; before the first segment, the detected one."""
        return spoken_most(self._segments) or self._state.language

    @property
    def detection(self) -> LanguageDetection | None:
        """The detection of the first language; None if it was given or is not known yet."""
        return self._state.detection

    @property
    def language_probability(self) -> float | None:
        """Probability of the first detected language among those allowed, or None."""
        return None if self.detection is None else self.detection.probability

    @property
    def language_probabilities(self) -> Mapping[str, float]:
        """Probabilities of all languages of the model at the first detection, or empty."""
        return {} if self.detection is None else self.detection.probabilities

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Speaker turns, known before the first segment; empty without diarization."""
        return self._state.turns

    @property
    def unread(self) -> tuple[Span, ...] | None:
        """Skipped speech so far; None if it is not searched for."""
        return self._state.unread if self._transcriber.options.read_again else None

    @property
    def second_s(self) -> float:
        """Seconds that a second model transcribed so far."""
        return self._state.second_s

    @property
    def outside_languages(self) -> Mapping[str, float]:
        """Seconds of speech by detected language, for languages that are not listed."""
        return self._state.outside_languages

    @property
    def duration(self) -> float | None:
        """Seconds as the recording declares, and exactly once its end was read; None if unknown."""
        return self._state.duration

    @property
    def position(self) -> float:
        return self._state.position

    @property
    def resume_point(self) -> ResumePoint | None:
        """Where `Model.transcribe(resume=…)` can go on, as plain values (`to_json`).

        None before the first window is done, and with diarization or separate channels. Segments that came
        since the point last changed come again after resuming.
        """
        return self._state.resume_point if self._transcriber.options.is_resumable else None


def spoken_most(segments: list[Segment]) -> str | None:
    seconds: dict[str, float] = {}
    for segment in segments:
        seconds[segment.language] = seconds.get(segment.language, 0.0) + segment.end - segment.start
    return max(seconds, key=lambda language: seconds[language], default=None)
