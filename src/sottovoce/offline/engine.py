"""What every mode does with encoded windows: detect, decode, align words, make segments.

Knows windows and where they lie in the recording, not how they were chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from sottovoce.backends.base import Backend
from sottovoce.decoding.beam import Fusion
from sottovoce.decoding.decode import DecodingResult, select_windows
from sottovoce.decoding.detect import NO_PRIOR, LanguageDetection, combine_detections, detect_language
from sottovoce.decoding.fallback import Attempt, decode_with_fallback, mix_seed
from sottovoce.offline.cut import WindowCut
from sottovoce.offline.options import TranscribeOptions
from sottovoce.offline.words import WindowText, WordRules
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import EncoderOutput, Segment, Turn


@dataclass(slots=True)
class Progress:
    """How far a transcription is; filled in while it runs.

    language: being spoken; of the recording, where it has one. detection: what named the first one, None
    while that is not known and where it was given. duration: seconds, as the file declares at first and
    exactly once its end was read. position: seconds that are transcribed. turns: of speakers, once they are
    known.
    """

    language: str | None = None
    detection: LanguageDetection | None = None
    duration: float | None = None
    position: float = 0.0
    turns: tuple[Turn, ...] = ()
    n_segments: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class Request:
    """How to decode one window: its language, the prompt, and the log-mel frame where it begins.

    is_first: of the recording; it begins with the prefix, if one was given. is_divisible: it would be read in
    parts where its text repeats itself, and not be tried again as it is.
    """

    language: str
    prompt: tuple[int, ...]
    start_frame: int
    is_first: bool = False
    is_divisible: bool = False


@dataclass(frozen=True, slots=True)
class Engine:
    """A model and what is asked of it; fusion: language models beside its beam search."""

    backend: Backend
    tokenizer: Tokenizer
    options: TranscribeOptions
    fusion: Fusion[Tensor] | None = None

    @property
    def window_frames(self) -> int:
        """Log-mel frames of a full window: 3000 for Whisper."""
        return 2 * (self.options.audio_ctx or self.backend.dims.n_audio_ctx)

    @property
    def known_language(self) -> str | None:
        """The language that needs no detection: the one asked for, or that of an English-only model."""
        if not self.tokenizer.is_multilingual:
            return self.tokenizer.with_language(self.options.decoding.language or "en").language
        asked = self.options.decoding.language
        return None if asked is None else self.tokenizer.with_language(asked).language

    def tokenizer_of(self, language: str) -> Tokenizer:
        """The tokenizer for text in a language, with the task asked for."""
        return self.tokenizer.with_language(language).with_task(self.options.decoding.task)

    def detect(self, encoded: EncoderOutput) -> list[LanguageDetection]:
        """The language of every window, among those allowed; see `languages` for a recording's."""
        allowed = self.options.decoding.allowed_languages
        return detect_language(self.backend, self.tokenizer, encoded, allowed=allowed)

    def combine(self, detections: Sequence[LanguageDetection], weights: Sequence[float]) -> LanguageDetection:
        """The language of several windows together; given what is common, unless languages were listed."""
        allowed = self.options.decoding.allowed_languages
        is_listed = 0 < len(allowed) < len(self.tokenizer.language_codes)
        prior = NO_PRIOR if is_listed else self.options.language_prior
        return combine_detections(
            detections, self.tokenizer, allowed=allowed, weights=weights, log_prior=prior
        )

    def decode(self, encoded: EncoderOutput, requests: Sequence[Request]) -> list[Attempt]:
        """Decode every window, with fallback; the draws of a window depend on where it begins."""
        if self.options.decoding.prefix is None:
            return self._decode(encoded, requests)
        attempts: dict[int, Attempt] = {}
        for is_first in (True, False):
            rows = [row for row, request in enumerate(requests) if request.is_first == is_first]
            if rows:
                found = self._decode(select_windows(encoded, rows), [requests[row] for row in rows])
                attempts.update(zip(rows, found, strict=True))
        return [attempts[row] for row in range(len(requests))]

    def _decode(self, encoded: EncoderOutput, requests: Sequence[Request]) -> list[Attempt]:
        base = self.options.decoding
        options = [
            replace(
                base,
                language=request.language,
                prompt=request.prompt or None,
                prefix=base.prefix if request.is_first else None,
                seed=mix_seed(base.seed, request.start_frame),
            )
            for request in requests
        ]
        return decode_with_fallback(
            self.backend,
            self.tokenizer,
            encoded,
            options,
            self.options.fallback_of_window,
            divisible=[request.is_divisible for request in requests],
            fusion=self.fusion,
        )

    def is_like(self, other: Engine) -> bool:
        """Whether windows of both may be read in one batch: each has its own language, prompt and place."""
        return (
            self.backend is other.backend
            and self.fusion is other.fusion
            and self.window_frames == other.window_frames
            and self.options.fallback_of_window == other.options.fallback_of_window
            and replace(self.options.decoding, language=None, prompt=None)
            == replace(other.options.decoding, language=None, prompt=None)
        )

    def text_of(self, cut: WindowCut, result: DecodingResult, n_frames: int) -> WindowText:
        """What is said in a window with n_frames log-mel frames of audio, for its words to be timed."""
        return WindowText(self.tokenizer_of(result.language), cut.text_tokens(self.tokenizer.eot), n_frames)

    @property
    def word_rules(self) -> WordRules:
        options = self.options
        return WordRules(options.prepend_punctuations, options.append_punctuations, options.word_threshold)

    def segments(self, cut: WindowCut, result: DecodingResult, progress: Progress) -> Iterator[Segment]:
        """Segments that have text and some length, with what the decoder knows; their ids count on."""
        for segment in cut.segments:
            if segment.start == segment.end or not segment.text.strip():
                continue
            words = tuple(replace(word, language=result.language) for word in segment.words or ())
            yield replace(
                segment,
                id=progress.n_segments,
                temperature=result.temperature,
                avg_logprob=result.avg_logprob,
                compression_ratio=result.compression_ratio,
                no_speech_prob=result.no_speech_prob,
                words=words if self.options.needs_words else None,
            )
            progress.n_segments += 1
