"""What every mode does with encoded windows: detect, decode, align words, make segments.

Knows windows and where they lie in the recording, not how they were chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from sottovoce.backends.base import Backend
from sottovoce.decoding.beam import Fusion
from sottovoce.decoding.decode import DecodingResult
from sottovoce.decoding.detect import LanguageDetection, combine_detections, detect_language
from sottovoce.decoding.fallback import Attempt, decode_with_fallback, mix_seed
from sottovoce.offline.drafts import Draft
from sottovoce.offline.options import TranscribeOptions
from sottovoce.offline.words import TimedWord, WindowText, WordRules, align_windows
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import EncoderOutput, Segment


@dataclass(slots=True)
class Progress:
    """How far a transcription is; filled in while it runs.

    language, language_probability: of the recording, once they are known. duration: seconds, as the file
    declares at first and exactly once its end was read. position: seconds that are transcribed.
    """

    language: str | None = None
    language_probability: float | None = None
    duration: float | None = None
    position: float = 0.0
    n_segments: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class Request:
    """How to decode one window: its language, the prompt, and the log-mel frame where it begins."""

    language: str
    prompt: tuple[int, ...]
    start_frame: int


@dataclass(frozen=True, slots=True)
class Drafts:
    """Segments in the making of one window, and the log-mel frames of audio in it."""

    drafts: Sequence[Draft]
    n_frames: int


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
        return 2 * self.backend.dims.n_audio_ctx

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
        """The language of every window, among those allowed."""
        allowed = self.options.decoding.allowed_languages
        return detect_language(self.backend, self.tokenizer, encoded, allowed=allowed)

    def combine(self, detections: Sequence[LanguageDetection]) -> LanguageDetection:
        """The language of several windows together."""
        allowed = self.options.decoding.allowed_languages
        return combine_detections(detections, self.tokenizer, allowed=allowed)

    def decode(self, encoded: EncoderOutput, requests: Sequence[Request]) -> list[Attempt]:
        """Decode every window, with fallback; the draws of a window depend on where it begins."""
        base = self.options.decoding
        options = [
            replace(
                base,
                language=request.language,
                prompt=request.prompt or None,
                seed=mix_seed(base.seed, request.start_frame),
            )
            for request in requests
        ]
        fallback = self.options.fallback
        return decode_with_fallback(
            self.backend, self.tokenizer, encoded, options, fallback, fusion=self.fusion
        )

    def align(
        self, encoded: EncoderOutput, results: Sequence[DecodingResult], windows: Sequence[Drafts]
    ) -> list[list[TimedWord]]:
        """Time the words of every window's drafts."""
        eot = self.tokenizer.eot
        texts = [
            WindowText(
                tokenizer=self.tokenizer_of(result.language),
                tokens=tuple(token for draft in window.drafts for token in draft.tokens if token < eot),
                n_frames=window.n_frames,
            )
            for result, window in zip(results, windows, strict=True)
        ]
        return align_windows(self.backend, encoded, texts)

    @property
    def word_rules(self) -> WordRules:
        return WordRules(self.options.prepend_punctuations, self.options.append_punctuations)

    def segments(
        self, drafts: Sequence[Draft], result: DecodingResult, progress: Progress
    ) -> Iterator[Segment]:
        """Segments of what has text and some length; their ids count on."""
        for draft in drafts:
            text = self.tokenizer.decode(draft.tokens)
            if draft.start == draft.end or not text.strip():
                continue
            words = tuple(replace(word, language=result.language) for word in draft.words)
            yield Segment(
                id=progress.n_segments,
                start=draft.start,
                end=draft.end,
                text=text,
                language=result.language,
                tokens=draft.tokens,
                temperature=result.temperature,
                avg_logprob=result.avg_logprob,
                compression_ratio=result.compression_ratio,
                no_speech_prob=result.no_speech_prob,
                words=words if self.options.word_timestamps else None,
            )
            progress.n_segments += 1
