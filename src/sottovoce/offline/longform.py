"""From a recording to segments, one after the other, in memory that does not grow with its length.

`transcribe` is the one door; the seek loop lives here, windows of speech in `batched`. Source of the seek
rules: openai-whisper 20250625, transcribe.py.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import NamedTuple

from torch import Tensor

from sottovoce.audio.features import RecordingFeatures
from sottovoce.audio.recording import Recording
from sottovoce.audio.silero import SpeechModel
from sottovoce.backends.base import Backend
from sottovoce.decoding.beam import Fusion
from sottovoce.decoding.decode import DecodingResult
from sottovoce.errors import OptionError
from sottovoce.language.probe import LanguageProbe
from sottovoce.offline.batched import transcribe_speech
from sottovoce.offline.context import Context
from sottovoce.offline.drafts import MEL_FRAMES_PER_SECOND, WindowCut, cut_window, end_of_speech
from sottovoce.offline.engine import Drafts, Engine, Progress, Request
from sottovoce.offline.hallucination import Verdict, WindowSpan, skip_hallucinations
from sottovoce.offline.options import TranscribeOptions
from sottovoce.offline.turns import first_turn, probe_for
from sottovoce.offline.words import place_words
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import EncoderOutput, Segment


class Transcription(Iterator[Segment]):
    """The segments of a recording as they are found, and what is known of it so far."""

    def __init__(self, segments: Iterator[Segment], progress: Progress) -> None:
        self._segments = segments
        self._progress = progress

    def __next__(self) -> Segment:
        return next(self._segments)

    @property
    def language(self) -> str | None:
        """Code of the recording's language; known when the first segment is, if not given."""
        return self._progress.language

    @property
    def language_probability(self) -> float | None:
        """Of the detected language among those allowed; None when it was given or is not known yet."""
        return self._progress.language_probability

    @property
    def duration(self) -> float | None:
        """Seconds of the recording: as the file declares, and exactly once its end was read."""
        return self._progress.duration

    @property
    def position(self) -> float:
        """Seconds that are transcribed."""
        return self._progress.position


def transcribe(
    backend: Backend,
    tokenizer: Tokenizer,
    recording: Recording,
    options: TranscribeOptions,
    *,
    speech_model: SpeechModel | None = None,
    fusion: Fusion[Tensor] | None = None,
) -> Transcription:
    """Transcribe a recording; the work is done while the segments are asked for.

    tokenizer: of the model; language and task come from the options. recording: open until the last
    segment came. speech_model: for mode "vad", Silero when None. fusion: language models beside the beam
    search, and beside the draws at temperatures above 0.

    Raises: OptionError for a language or task that the model does not have, or fusion without beam search;
        AudioError, while iterating, when the recording cannot be read.
    """
    if fusion is not None and options.decoding.beam_size is None:
        raise OptionError("language model fusion: needs beam search, got no beam_size")
    engine = Engine(backend, tokenizer, options, fusion)
    progress = Progress(language=engine.known_language)
    engine.tokenizer_of(engine.known_language or "en")
    if options.mode == "vad":
        segments = transcribe_speech(engine, recording, progress, speech_model)
    else:
        segments = _transcribe_seeking(engine, recording, progress)
    return Transcription(segments, progress)


def _transcribe_seeking(engine: Engine, recording: Recording, progress: Progress) -> Iterator[Segment]:
    normalization = engine.options.normalization
    dims, device = engine.backend.dims, engine.backend.device
    with RecordingFeatures(recording, dims.n_mels, device, normalization=normalization) as features:
        progress.duration = features.declared_duration_s
        yield from _SeekLoop(engine, features, progress).run()
        progress.duration = features.duration_s or progress.duration


class _Window(NamedTuple):
    """Frames (10 ms) [seek, seek + n_frames) of the recording, encoded."""

    seek: int
    n_frames: int
    encoded: EncoderOutput
    language: str | None = None
    """Of the speaker's turn, where turns are followed."""

    @property
    def end(self) -> int:
        return self.seek + self.n_frames

    @property
    def start_s(self) -> float:
        return self.seek / MEL_FRAMES_PER_SECOND


class _Span(NamedTuple):
    """Frames (10 ms) up to `end` are in one language; None: as far as the window reached."""

    language: str
    end: int | None

    def holds(self, seek: int) -> bool:
        """Whether enough of the turn is left at `seek` to go on with it."""
        return self.end is not None and self.end - seek >= MEL_FRAMES_PER_SECOND / 2


class _SeekLoop:
    """One pass over the clips of a recording."""

    def __init__(self, engine: Engine, features: RecordingFeatures, progress: Progress) -> None:
        self._engine = engine
        self._options = engine.options
        self._features = features
        self._progress = progress
        self._context = Context(engine.tokenizer, engine.options, engine.backend.dims.n_text_ctx)
        self._last_speech = 0.0
        self._first_window: _Window | None = None
        self._turn: _Span | None = None
        self._skipped = 0
        self._probe = probe_for(engine)

    def run(self) -> Iterator[Segment]:
        clips = self._clips()
        self._skip_to(clips[0][0])
        if self._progress.language is None and not self._options.per_window_language:
            self._detect(*clips[0])
        for seek, end in clips:
            self._skip_to(seek)
            while (end is None or seek < end) and self._features.has(seek):
                self._features.drop_before(seek)
                window = self._load(seek, end)
                seek = max(seek + 1, (yield from self._transcribe(window)))
                self._report(seek)

    def _skip_to(self, seek: int) -> None:
        """Read up to where a clip begins, forgetting on the way what lies between."""
        for frame in range(0, seek, self._engine.window_frames):
            if frame > self._skipped and self._features.has(frame):
                self._features.drop_before(frame)
                self._skipped = frame

    def _clips(self) -> list[tuple[int, int | None]]:
        """Frames where each clip begins and ends; None is the end of the recording."""
        points = [round(time * MEL_FRAMES_PER_SECOND) for time in self._options.clip_timestamps] or [0]
        ends: list[int | None] = [*points[1::2]]
        if len(points) % 2:
            ends.append(None)
        return list(zip(points[::2], ends, strict=True))

    def _load(self, seek: int, end: int | None) -> _Window:
        window = self._first_window
        self._first_window = None
        if window is not None and window.seek == seek:
            return window
        if self._turn is not None and self._turn.holds(seek):
            return self._encode(seek, self._turn.end)._replace(language=self._turn.language)
        window = self._encode(seek, end)
        return window if self._probe is None else self._cut_at_turn(window, self._probe)

    def _encode(self, seek: int, end: int | None) -> _Window:
        features = self._features.window(seek, end, n_frames=self._engine.window_frames)
        return _Window(seek, features.n_content_frames[0], self._engine.backend.encode(features))

    def _cut_at_turn(self, window: _Window, probe: LanguageProbe) -> _Window:
        """The part of a window before another language begins, encoded by itself."""
        even = window.n_frames + window.n_frames % 2
        mel = self._features.window(window.seek, window.end, n_frames=even).mel[0]
        turn = first_turn(probe, window.encoded, mel)
        if self._progress.language is None:
            self._progress.language_probability = turn.probability
        end = None if turn.n_frames is None else window.seek + 2 * turn.n_frames
        self._turn = _Span(turn.language, end)
        cut = window if end is None else self._encode(window.seek, end)
        return cut._replace(language=turn.language)

    def _detect(self, start: int, end: int | None) -> None:
        """Detect the language over the first windows of the first clip."""
        detections = []
        for index in range(self._options.language_windows):
            seek = start + index * self._engine.window_frames
            if (end is not None and seek >= end) or not self._features.has(seek):
                break
            window = self._load(seek, end)
            detections.extend(self._engine.detect(self._in_silence(window)))
            if index == 0:
                first_window = window
        if detections:
            self._first_window = first_window
            combined = self._engine.combine(detections)
            self._progress.language = combined.language
            self._progress.language_probability = combined.probability

    def _in_silence(self, window: _Window) -> EncoderOutput:
        """The window as openai-whisper hears it for detection: a short one goes on in silence, not in 0.0."""
        if window.n_frames == self._engine.window_frames or self._features.has(window.end):
            return window.encoded
        features = self._features.window(window.seek, n_frames=self._engine.window_frames, fill="silence")
        return self._engine.backend.encode(features)

    def _language(self, window: _Window) -> str:
        if not self._options.per_window_language or self._engine.known_language is not None:
            assert self._progress.language is not None
            return self._progress.language
        assert window.language is not None
        if self._progress.language not in (None, window.language):
            self._context.reset()
        self._progress.language = window.language
        return window.language

    def _transcribe(self, window: _Window) -> Generator[Segment, None, int]:
        """Decode one window, yield its segments and return the frame to go on from."""
        engine = self._engine
        request = Request(self._language(window), self._context.prompt(), window.seek)
        attempt = engine.decode(window.encoded, [request])[0]
        result = attempt.result
        if self._options.fallback.is_silence(result):
            return window.end
        tokenizer = engine.tokenizer_of(result.language)
        cut = cut_window(result.tokens, tokenizer, start_s=window.start_s, n_frames=window.n_frames)
        drafts, seek = cut.drafts, window.seek + cut.n_frames
        if self._options.word_timestamps:
            verdict = self._with_words(window, cut, result)
            if verdict.restarts:
                return verdict.seek or seek
            drafts, seek = verdict.drafts, verdict.seek or seek
        for segment in engine.segments(drafts, result, self._progress):
            self._context.remember(segment.tokens)
            yield segment
        self._context.end_window(attempt.last_temperature)
        return seek

    def _with_words(self, window: _Window, cut: WindowCut, result: DecodingResult) -> Verdict:
        """Time the words of a window, drop what was made up, and find where to go on."""
        engine = self._engine
        timed = engine.align(window.encoded, [result], [Drafts(cut.drafts, window.n_frames)])[0]
        place_words(
            cut.drafts,
            timed,
            engine.word_rules,
            eot=engine.tokenizer.eot,
            window_start=window.start_s,
            last_speech=self._last_speech,
        )
        seek = window.seek + cut.n_frames
        spoken_until = end_of_speech(cut.drafts)
        if not cut.ends_closed and spoken_until is not None and spoken_until > window.start_s:
            seek = self._after_speech(window, spoken_until)
        verdict = Verdict(cut.drafts, seek)
        threshold = self._options.hallucination_silence_threshold
        if threshold is not None:
            verdict = self._without_hallucinations(window, verdict, threshold)
        if not verdict.restarts:
            self._last_speech = end_of_speech(verdict.drafts) or self._last_speech
        return verdict

    def _after_speech(self, window: _Window, spoken_until: float) -> int:
        """Go on after the last word; after the window, if only a little of it is left and silence skipped."""
        threshold = self._options.hallucination_silence_threshold
        if threshold is not None and self._full_end_s(window) - spoken_until <= threshold:
            return window.end
        return round(spoken_until * MEL_FRAMES_PER_SECOND)

    def _without_hallucinations(self, window: _Window, verdict: Verdict, threshold: float) -> Verdict:
        span = WindowSpan(
            start=window.start_s,
            end=window.end / MEL_FRAMES_PER_SECOND,
            full_end=self._full_end_s(window),
            last_speech=self._last_speech,
        )
        found = skip_hallucinations(verdict.drafts, span, threshold)
        if found.seek is None:
            return verdict
        if found.dropped_end is not None:
            reach = math.floor((found.dropped_end + threshold) * MEL_FRAMES_PER_SECOND)
            if not self._features.has(reach):  # nothing but silence is left
                return found._replace(seek=self._features.n_frames)
        return found

    def _full_end_s(self, window: _Window) -> float:
        return (window.seek + self._engine.window_frames) / MEL_FRAMES_PER_SECOND

    def _report(self, seek: int) -> None:
        self._progress.duration = self._features.duration_s or self._progress.duration
        self._progress.position = seek / MEL_FRAMES_PER_SECOND
