"""One recording being transcribed: a generator that yields segments, and between them the calls that it
needs; its segments as they are found, or all of them as a transcript.

A stage that changes segments on their way (speakers, names, style) is a generator around another one: it
takes the next segment with `next_segment`, which lets the calls through and their results back.
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
"""Yields segments, and calls whose results are sent back into it."""


def next_segment(
    segments: SegmentGenerator, on_step: Callable[[], object] | None = None
) -> CallGenerator[Segment | None]:
    """Yield the calls up to the next segment; return that segment, None at the end.

    on_step: called each time that the generator has gone on, to a call, a segment or its end.
    """
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

    on_progress: called with the seconds that are done and those of the recording (None while unknown), each
        time that they grow. abort: called before every call of the model, at least once a window; True ends
        the transcription, as does setting `stopped` from anywhere. What was found so far stays.
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

    Iterate once; the segments stay, for `text` and `collect`. What else is known grows with the iteration.
    Where an executor does the calls of several, it runs `next_segment` or `collected` instead.

    model: its name, for the transcript. recording: closed at the end; None: its owner does that.
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
        """The backend that runs the calls of `next_segment`."""
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

        on_step: called each time that the transcription has gone on, to a call, a segment or its end.
        Raises: AudioError, as the iteration, and what a call failed with.
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
            except BaseException:  # nobody will send the result
                self.close()
                raise
        if on_step is not None:
            on_step()
        return None

    def _advance(self, result: Any, failure: Exception | None) -> Segment | ModelCall | None:
        """Send the result of a call, or throw what it failed with; return the next step, None at the end."""
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
        """Stop, from any thread: the iteration ends after the call that is being done.

        Harmless when it has ended; what was transcribed stays.
        """
        self._control.stopped.set()
        if self._busy.acquire(blocking=False):  # else whoever iterates lets go of the recording
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
        """Transcribe what is left, and return all of it; after `close`, what there is.

        Raises: AudioError, OptionError, as the iteration.
        """
        return LocalExecutor(self.backend).run(self.collected())

    def collected(self) -> CallGenerator[Transcript]:
        """Yield the calls for what is left; return all of it, as `collect`.

        Raises: AudioError, as the iteration, and what a call failed with.
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
        """The whole text; transcribes what is left."""
        return self.collect().text

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Those found so far."""
        return tuple(self._segments)

    @property
    def language(self) -> str | None:
        """The language spoken most in the segments so far; before the first one, that detected."""
        return spoken_most(self._segments) or self._state.language

    @property
    def detection(self) -> LanguageDetection | None:
        """The detection of the first language; None when it was given or is not known yet."""
        return self._state.detection

    @property
    def language_probability(self) -> float | None:
        """Of the language detected first, among those allowed; None when given, or not known yet."""
        return None if self.detection is None else self.detection.probability

    @property
    def language_probabilities(self) -> Mapping[str, float]:
        """Of every language of the model, at that detection; empty when given, or not known yet."""
        return {} if self.detection is None else self.detection.probabilities

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Turns of speakers, known before the first segment; empty unless speakers were requested."""
        return self._state.turns

    @property
    def unread(self) -> tuple[Span, ...] | None:
        """Speech without words so far; None where skipped speech is not searched for."""
        return tuple(self._state.unread) if self._transcriber.options.read_again else None

    @property
    def second_s(self) -> float:
        """Seconds that a second model read so far, as the first was not sure of them."""
        return self._state.second_s

    @property
    def outside_languages(self) -> Mapping[str, float]:
        """Seconds of speech by language, where languages were listed and it is surely none of them."""
        return self._state.outside_languages

    @property
    def duration(self) -> float | None:
        """Seconds: as the recording declares, and exactly once its end was read; None if unknown."""
        return self._state.duration

    @property
    def position(self) -> float:
        """Seconds transcribed so far."""
        return self._state.position

    @property
    def resume_point(self) -> ResumePoint | None:
        """Where `Model.transcribe(resume=…)` can go on, as plain values (`to_json`).

        None before the first window is done, and where speakers or channels are told apart.

        Asked while segments come, it lies behind all but the last windows' segments: those that came since it
        changed come again.
        """
        return self._state.resume_point if self._transcriber.options.is_resumable else None


def spoken_most(segments: list[Segment]) -> str | None:
    """Return the language with the most seconds; None without segments."""
    seconds: dict[str, float] = {}
    for segment in segments:
        seconds[segment.language] = seconds.get(segment.language, 0.0) + segment.end - segment.start
    return max(seconds, key=lambda language: seconds[language], default=None)
