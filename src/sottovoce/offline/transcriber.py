"""A model with the options of a transcription: language detection, decoding, word alignment and prompts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, TypedDict

import numpy as np

from sottovoce.audio.io import Recording
from sottovoce.audio.mel import MELS_PER_FRAME, PADDING_LOG_MEL, Fill, RecordingFeatures
from sottovoce.audio.vad import SpeechFinder, SpeechModel
from sottovoce.decoding.alignment import WindowText, place_words
from sottovoce.decoding.decode import (
    NO_PRIOR,
    Attempt,
    DecodingResult,
    LanguageDetection,
    combine_detections,
    mix_seed,
    opening_tokens,
)
from sottovoce.decoding.search import Fusion
from sottovoce.errors import OptionError
from sottovoce.models.backend import Backend, EncoderOutput, IncrementalWindow
from sottovoce.models.dims import EncoderMode
from sottovoce.offline.resume import ResumePoint, TranscriptionState
from sottovoce.offline.windows import SpeechSpan, Window, WindowCut, cut_window, with_english
from sottovoce.options.decoding import DecodingOptions, DeferralOptions, FallbackOptions
from sottovoce.options.schema import unchecked
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.calls import (
    AlignWordsCall,
    DetectLanguageCall,
    EncodeCall,
    IncrementalEncodeCall,
    Runtime,
    Steps,
    decode_with_fallback,
)
from sottovoce.text.disfluency import check_verbatim
from sottovoce.text.languages import LanguageChoice
from sottovoce.text.normalize import plain
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import HOP_SAMPLES, SAMPLE_RATE, Features, Floats, Segment, Task

if TYPE_CHECKING:
    from typing_extensions import Self

Segments: TypeAlias = Generator[Segment, None, None]


class RecordingTranscriber(ABC):
    """A model of any kind with the options of a transcription.

    tokenizer: None: its segments have no tokens. second: transcribes speech of which this one is uncertain.
    speech_model: None: Silero.
    """

    runtime: Runtime
    tokenizer: Tokenizer | None
    options: TranscribeOptions
    second: SecondModel | None
    speech_model: SpeechModel | None

    @property
    @abstractmethod
    def fixed_language(self) -> str | None:
        """The language of every recording; None if it is detected."""

    @abstractmethod
    def transcribe(
        self, recording: Recording, state: TranscriptionState, resume: ResumePoint | None = None
    ) -> Segments:
        """Yield the segments of the requested parts of a recording, from `resume` on, and update the state.

        Raises:
            AudioError: the recording cannot be read, or ends before the requested part.
        """

    @abstractmethod
    def with_runtime(self, runtime: Runtime) -> Self: ...

    @abstractmethod
    def with_options(self, options: TranscribeOptions, second: SecondModel | None) -> Self: ...


class Arguments(TypedDict, total=False):
    """Arguments of `Recogniser.transcribe` that override its options."""

    language: str | Sequence[str] | None
    task: Task | None
    word_timestamps: bool | None
    beam_size: int | None


def with_arguments(options: TranscribeOptions, codes: Sequence[str], given: Arguments) -> TranscribeOptions:
    """Return options with arguments, of which none is None.

    codes: languages of the model; empty for an English-only model. Several languages and "auto" imply
    following.

    Raises:
        OptionError: the model does not have the language.
    """
    decoding, language, beam_size = options.decoding, given.get("language"), given.get("beam_size")
    follow = options.follow_languages
    if language is not None or decoding.language is None:
        choice = LanguageChoice.parse(language or decoding.allowed_languages or "auto", codes or ("en",))
        fixed, allowed = choice.fixed, () if choice.fixed else choice.allowed or tuple(codes)
        if not codes:
            fixed, allowed = "en", ()
        decoding = replace(decoding, language=fixed, allowed_languages=allowed)
        if follow is None:
            follow = True if len(choice.allowed) > 1 else "auto"
    if beam_size is not None:
        decoding = replace(decoding, beam_size=None if beam_size == 1 else beam_size)
    decoding = replace(decoding, task=given.get("task") or decoding.task)
    words = given.get("word_timestamps", options.word_timestamps)
    return replace(options, decoding=decoding, word_timestamps=bool(words), follow_languages=follow)


LEAST_REPEATED_TOKENS = 8
"""Shorter text is repeated in any conversation. Source: `python -m benchmarks files said_again --fit`."""


class Context:
    """The initial prompt and the tokens of earlier windows, for the next prompt.

    initial: the prompt without the text of earlier windows.

    Source: openai-whisper 20250625, transcribe.py.
    """

    def __init__(self, tokenizer: Tokenizer, options: TranscribeOptions, n_text_ctx: int) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._room = n_text_ctx // 2 - 1
        text = options.initial_prompt
        initial = tokenizer.encode_prompt(text or "")
        self._carried = initial if options.carry_initial_prompt else []
        self.tokens: tuple[int, ...] = () if options.carry_initial_prompt else tuple(initial)
        self.initial = self.prompt()

    def prompt(self) -> tuple[int, ...]:
        room = max(0, self._room - len(self._carried))
        if self._options.max_context is not None:
            room = min(room, self._options.max_context)
        return (*self._carried, *(self.tokens[-room:] if room else ()))

    def remember(self, tokens: Sequence[int]) -> None:
        self.tokens = (*self.tokens, *tokens)[-self._room :]

    def holds(self, text: str, window: Sequence[int] = ()) -> bool:
        """Return whether the words of a text are in earlier windows, or in earlier tokens of this window."""
        words = plain(text).split()
        earlier = plain(self._tokenizer.decode((*self.tokens, *window))).split()
        n_words = len(words)
        starts = range(len(earlier) - n_words + 1) if words else ()
        return any(earlier[at : at + n_words] == words for at in starts)

    def repeats(self, segments: Sequence[Segment]) -> bool:
        """Return whether the text of a segment is in earlier windows, or in the segments before it."""
        window, eot = list[int](), self._tokenizer.eot
        for segment in segments:
            is_long = sum(token < eot for token in segment.tokens) >= LEAST_REPEATED_TOKENS
            if is_long and self.holds(segment.text, window):
                return True
            window += segment.tokens
        return False

    def end_window(self, temperature: float) -> None:
        too_hot = temperature > self._options.prompt_reset_on_temperature
        if too_hot or not self._options.is_conditioned:
            self.reset()

    def reset(self) -> None:
        self.tokens = ()


SHORT_TAIL_FRAMES = 20
"""Frames of silence (10 ms) behind the speech of a shortened window, without which the decoder finds no end.
"""


MOST_STRIDE = 10
"""Frames of padding for each computed one. A window of a file is computed once, so it can have more of them
than one of a live session. Source: docs/research/files.md, short windows.
"""


@dataclass(frozen=True, slots=True)
class WindowRequest:
    """How to decode one window that begins at a log-mel frame.

    n_frames: of the encoder. is_first: of the recording. may_split: repeated text is decoded in parts instead
    of at the next temperature.
    """

    language: str
    prompt: tuple[int, ...]
    start_frame: int
    n_frames: int
    is_first: bool = False
    may_split: bool = False


@dataclass(frozen=True, slots=True)
class SecondModel:
    """A model for the segments of which another is uncertain.

    transcriber: it has the options of the other, except for those that another kind of model does not have.
    """

    transcriber: RecordingTranscriber
    deferral: DeferralOptions = field(default_factory=DeferralOptions)

    def with_runtime(self, runtime: Runtime) -> SecondModel:
        return replace(self, transcriber=self.transcriber.with_runtime(runtime))

    def check(self, first: RecordingTranscriber) -> None:
        """Raises: OptionError if the first model reads clips, or languages that the second does not read."""
        if first.options.clip_timestamps:
            raise OptionError("clip_timestamps: cannot be combined with a second model")
        language = self.transcriber.fixed_language
        if language and first.fixed_language != language:
            raise OptionError(f"second model: reads '{language}' alone; expected language '{language}'")

    def with_options_of(self, first: RecordingTranscriber, language: str | None) -> RecordingTranscriber:
        """Return the transcriber of uncertain speech in a language; None: those of the first model."""
        options, ours = first.options, self.transcriber
        decoding = replace(options.decoding, prefix=None)
        if (first.tokenizer is None) != (ours.tokenizer is None):
            decoding = replace(decoding, beam_size=ours.options.decoding.beam_size)
            options = replace(
                options, read_again=ours.options.read_again, follow_languages=ours.options.follow_languages
            )
        if language:
            decoding = replace(decoding, language=language, allowed_languages=())
            options = replace(options, follow_languages=None)
        return ours.with_options(replace(options, decoding=decoding), None)


HELD_ON_CPU, HELD_FOR_ACCELERATOR = 60_000, 720_000
"""Log-mel frames of a recording that is read once: ten minutes, or two hours (230 MB with 80 mels), as an
accelerator would wait for a second reading.
"""


@dataclass(frozen=True, slots=True)
class Transcriber:
    runtime: Runtime
    tokenizer: Tokenizer
    options: TranscribeOptions
    fusion: Fusion | None = None
    second: SecondModel | None = None
    speech_model: SpeechModel | None = None
    """None: Silero."""

    @property
    def backend(self) -> Backend:
        return self.runtime.backend

    @property
    def window_frames(self) -> int:
        """Log-mel frames of a full window: 3000 for Whisper."""
        return 2 * (self.options.audio_ctx or self.backend.dims.n_audio_ctx)

    @property
    def window_mode(self) -> EncoderMode | None:
        """How a window that is not full is encoded: in the mode of the checkpoint, with denser padding.

        None: as a full window, as in openai-whisper: the checkpoint has no mode of sparse padding, or the
        options ask for openai-whisper's algorithm or for the number of frames.
        """
        mode = self.backend.encoder_mode
        is_open = self.options.read_again and self.options.audio_ctx is None
        if not (is_open and mode.has_sparse_padding):
            return None
        return mode.whole(MOST_STRIDE)

    def encode(
        self,
        features: RecordingFeatures,
        windows: Sequence[Window],
        *,
        is_part: bool = False,
        fill: Fill = "zero",
    ) -> Steps[list[EncoderOutput]]:
        """Encode windows to a batch of 1 each, which does not depend on the others.

        is_part: of windows, which are encoded with short padding without a mode too. fill: behind the audio
        of full windows, see `RecordingFeatures.window`.
        """
        encoded: dict[int, EncoderOutput] = {}
        mode, growing = self.window_mode, dict[int, IncrementalWindow]()
        by_length: dict[int, dict[int, Floats]] = {}
        for index, window in enumerate(windows):
            if mode is not None and window.n_frames < self.window_frames:
                growing[index] = IncrementalWindow(_log_mel(features, window), mode)
                continue
            n_frames = self._padded(window.n_frames) if is_part else self.window_frames
            by_length.setdefault(n_frames, {})[index] = _mel(features, window, n_frames, fill)
        if growing:
            results = yield from IncrementalEncodeCall([*growing.values()])
            encoded |= {index: result.encoded for index, result in zip(growing, results, strict=True)}
        for mels in by_length.values():
            n_content = tuple(windows[index].n_frames for index in mels)
            together = yield from EncodeCall(Features(np.concatenate([*mels.values()]), n_content))
            encoded |= {index: together.rows([row]) for row, index in enumerate(mels)}
        return [encoded[index] for index in range(len(windows))]

    def _padded(self, n_frames: int) -> int:
        """Return the log-mel frames of n_frames of audio and the padding that any checkpoint needs."""
        padded = n_frames + round(self.backend.tail_s * SAMPLE_RATE / HOP_SAMPLES)
        return min(self.window_frames, padded + padded % 2)

    @property
    def content_frames(self) -> int:
        """The maximum of log-mel frames of audio in a window; a shortened window ends in silence."""
        is_shortened = self.window_frames < 2 * self.backend.dims.n_audio_ctx
        return self.window_frames - SHORT_TAIL_FRAMES if is_shortened else self.window_frames

    @property
    def fixed_language(self) -> str | None:
        """The requested language, or English for an English-only model; None if it is detected."""
        language = self.options.decoding.language
        if language is None and not self.tokenizer.is_multilingual:
            language = "en"
        return None if language is None else self.tokenizer.with_language(language).language

    @property
    def may_follow(self) -> bool:
        return self.fixed_language is None and self.options.may_follow_languages

    def features(
        self, recording: Recording, observer: SpeechFinder | None = None, *, observes_first: bool = False
    ) -> RecordingFeatures:
        return RecordingFeatures(
            recording,
            self.backend.dims.n_mels,
            normalization=self.options.normalization,
            held_frames=HELD_ON_CPU if self.backend.device.type == "cpu" else HELD_FOR_ACCELERATOR,
            observer=observer,
            observes_first=observes_first,
        )

    def tokenizer_of(self, language: str) -> Tokenizer:
        return self.tokenizer.with_language(language).with_task(self.options.decoding.task)

    def detect(self, encoded: EncoderOutput) -> DetectLanguageCall:
        return DetectLanguageCall(self.tokenizer, encoded, self.options.decoding.allowed_languages)

    def combine(self, detections: Sequence[LanguageDetection], weights: Sequence[float]) -> LanguageDetection:
        allowed = self.options.decoding.allowed_languages
        is_listed = 0 < len(allowed) < len(self.tokenizer.language_codes)
        prior = NO_PRIOR if is_listed else self.options.language_prior
        return combine_detections(
            detections, self.tokenizer, allowed=allowed, weights=weights, log_prior=prior
        )

    def decode(
        self,
        encoded: EncoderOutput,
        requests: Sequence[WindowRequest],
        temperatures: tuple[float, ...] | None = None,
    ) -> Steps[list[Attempt]]:
        """Decode windows with fallback; temperatures: None: those of the options."""
        attempts: dict[int, Attempt] = {}
        fallback, prefix = self.options.fallback_of_window, self.options.decoding.prefix
        if temperatures is not None:
            fallback = replace(fallback, temperatures=temperatures)
        prefixed = [request.is_first and prefix is not None for request in requests]
        for has_prefix in dict.fromkeys(prefixed):
            rows = [row for row, is_prefixed in enumerate(prefixed) if is_prefixed == has_prefix]
            decoding = replace(self.options.decoding, prefix=prefix if has_prefix else None)
            decoded = yield from decode_with_fallback(
                self.backend,
                self.tokenizer,
                encoded.rows(rows),
                [self._decoding_of(requests[row], decoding) for row in rows],
                fallback,
                divisible=[requests[row].may_split for row in rows],
                fusion=self.fusion,
            )
            opening = opening_tokens(decoding, self.tokenizer)
            for row, attempt in zip(rows, decoded, strict=True):
                tokens = (*opening, *attempt.result.tokens)
                attempts[row] = replace(attempt, result=replace(attempt.result, tokens=tokens))
        if self.options.with_english:
            foreign = [
                row
                for row, attempt in attempts.items()
                if attempt.result.language != "en" and not fallback.is_silence(attempt.result)
            ]
            english = yield from self._in_english(encoded, foreign, requests, fallback)
            attempts |= {row: replace(attempts[row], english=result) for row, result in english.items()}
        return [attempts[row] for row in range(len(requests))]

    def _in_english(
        self,
        encoded: EncoderOutput,
        rows: Sequence[int],
        requests: Sequence[WindowRequest],
        fallback: FallbackOptions,
    ) -> Steps[dict[int, DecodingResult]]:
        """Translate windows by row, without loops. Prompts are in the spoken language, and are left out."""
        if not rows:
            return {}
        decoding = replace(
            self.options.decoding, task="translate", prefix=None, verbatim=False, speaker_turns=False
        )
        options = [self._decoding_of(replace(requests[row], prompt=()), decoding) for row in rows]
        of_rows = encoded.rows(rows)
        decoded = yield from decode_with_fallback(self.backend, self.tokenizer, of_rows, options, fallback)
        results = zip(rows, (attempt.result for attempt in decoded), strict=True)
        return {row: result for row, result in results if not fallback.repeats(result)}

    def _decoding_of(self, request: WindowRequest, decoding: DecodingOptions) -> DecodingOptions:
        if decoding.verbatim:
            check_verbatim(request.language)
        return unchecked(
            decoding,
            sample_len=self.sample_len(request.n_frames),
            language=request.language,
            prompt=request.prompt or None,
            seed=mix_seed(decoding.seed, request.start_frame),
        )

    def sample_len(self, n_frames: int) -> int | None:
        """Return the most tokens of a window of so many encoder frames; None: half of the text context.

        A shortened window has twice its share, as the decoder may loop; sparse padding stands for all of it.
        """
        requested, dims = self.options.decoding.sample_len, self.backend.dims
        if requested is not None or n_frames >= dims.n_audio_ctx or self.window_mode is not None:
            return requested
        return max(1, dims.n_text_ctx * n_frames // dims.n_audio_ctx)

    def cut(self, attempt: Attempt, origin: int, n_frames: int, *, keep_open: bool) -> WindowCut:
        """Return the segments of a window as `cut_window`, with their translations."""
        result = attempt.result
        tokenizer = self.tokenizer_of(result.language)
        cut = cut_window(result.tokens, tokenizer, origin, n_frames, keep_open=keep_open)
        if attempt.english is None:
            return cut
        tokens = attempt.english.tokens
        return with_english(cut, cut_window(tokens, tokenizer, origin, n_frames, keep_open=True).segments)

    def with_words(
        self,
        encoded: EncoderOutput,
        texts: Sequence[tuple[WindowCut, DecodingResult, int]],
        *,
        window_start: float = 0.0,
        last_speech: float = 0.0,
    ) -> Steps[list[WindowCut]]:
        """Return each window, given its text and log-mel frames of audio, with words as of `place_words`."""
        eot = self.tokenizer.eot
        windows = [
            WindowText(self.tokenizer_of(result.language), cut.text_tokens(eot), n_frames)
            for cut, result, n_frames in texts
        ]
        speech = {"window_start": window_start, "last_speech": last_speech}
        aligned = yield from AlignWordsCall(encoded, windows)
        return [
            replace(cut, segments=place_words(cut.segments, words, self.options, eot=eot, **speech))
            for (cut, _, _), words in zip(texts, aligned, strict=True)
        ]

    def segments(self, cut: WindowCut, result: DecodingResult) -> Iterator[Segment]:
        for segment in cut.segments:
            if segment.start == segment.end or not segment.text.strip():
                continue
            words = tuple(replace(word, language=result.language) for word in segment.words or ())
            yield replace(
                segment,
                temperature=result.temperature,
                avg_logprob=result.avg_logprob,
                compression_ratio=result.compression_ratio,
                no_speech_prob=result.no_speech_prob,
                words=words if self.options.needs_words else None,
            )


def _pieces(features: RecordingFeatures, window: Window) -> list[SpeechSpan]:
    return [piece for piece in window.pieces if features.has(piece.start)]


def _log_mel(features: RecordingFeatures, window: Window) -> Floats:
    """Return the clamped log-mel of a window, its pieces joined, an even number of frames."""
    pieces = _pieces(features, window)
    parts = [features.clamped(piece.start, piece.end) for piece in pieces]
    n_missing = sum(part.shape[1] for part in parts) % MELS_PER_FRAME
    parts.append(np.full((len(parts[0]), n_missing), PADDING_LOG_MEL, np.float32))
    return np.concatenate(parts, axis=1)


def _mel(features: RecordingFeatures, window: Window, n_frames: int, fill: Fill) -> Floats:
    """Return the normalised log-mel (1, n_mels, n_frames) of a window, its pieces joined."""
    pieces, parts = _pieces(features, window), []
    for piece in pieces:
        part = features.window(piece.start, piece.end, n_frames=n_frames, fill=fill)
        n_content = None if piece is pieces[-1] else part.n_content_frames[0]
        parts.append(part.mel[..., :n_content])
    mel: Floats = np.concatenate(parts, axis=-1)
    return mel[..., :n_frames]
