"""What a caller can ask of the transcription of a whole recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from sottovoce.audio.features import Normalization
from sottovoce.audio.vad import VadOptions
from sottovoce.decoding.fallback import FallbackOptions
from sottovoce.decoding.options import DecodingOptions
from sottovoce.errors import OptionError

Mode: TypeAlias = Literal["seek", "vad"]

PREPENDED = "\"'“¿([{-"
APPENDED = "\"'.。,，!！?？:：”)]}、"
WINDOW_VAD = VadOptions(min_silence_ms=160.0, max_speech_s=30.0)
"""Speech cut into pieces that fit a window. Source: faster-whisper 1.2.1, batched pipeline."""


@dataclass(frozen=True, slots=True)
class TranscribeOptions:
    """How to transcribe a recording. Names and defaults are openai-whisper's where it has the option.

    decoding: of each window; its temperature and prompt are set here. fallback: see `FallbackOptions`.
    mode: "seek" moves on by the timestamps that the model writes; "vad" packs speech into windows.
    vad: how speech is found in mode "vad"; None is `WINDOW_VAD`.
    batch_size: windows decoded together ("vad" only); above 1 they cannot be conditioned on each other.
    per_window_language: detect the language of every window anew, for recordings in several languages.
    language_windows: windows of 30 s over which the first detection is averaged.
    condition_on_previous_text: give what was said before as a prompt. prompt_reset_on_temperature: but
        not after a window that needed a temperature above this.
    initial_prompt: of the first window; with carry_initial_prompt of every window.
    clip_timestamps: start, end, start, ... in seconds, ascending; without a last end up to the end.
    word_timestamps: times of words. prepend_punctuations, append_punctuations: signs that belong to the
        following or the preceding word.
    hallucination_silence_threshold: silence in seconds around improbable words that makes them
        hallucinations, with word_timestamps; None keeps them.
    normalization: over what the log-mel's maximum is taken, see `audio.features`.

    Raises: OptionError for values out of range or that exclude each other.
    """

    decoding: DecodingOptions = field(default_factory=DecodingOptions)
    fallback: FallbackOptions = field(default_factory=FallbackOptions)
    mode: Mode = "seek"
    vad: VadOptions | None = None
    batch_size: int = 1
    per_window_language: bool = False
    language_windows: int = 1
    condition_on_previous_text: bool = True
    prompt_reset_on_temperature: float = 0.5
    initial_prompt: str | None = None
    carry_initial_prompt: bool = False
    clip_timestamps: tuple[float, ...] = ()
    word_timestamps: bool = False
    prepend_punctuations: str = PREPENDED
    append_punctuations: str = APPENDED
    hallucination_silence_threshold: float | None = None
    normalization: Normalization = "recording"

    def __post_init__(self) -> None:
        self._check_mode()
        self._check_prompts()
        self._check_times()

    def _check_mode(self) -> None:
        if self.mode not in get_args(Mode):
            raise OptionError(f"mode: expected 'seek' or 'vad', got '{self.mode}'")
        if self.batch_size < 1 or self.language_windows < 1:
            raise OptionError(
                "batch_size and language_windows: expected at least 1, "
                f"got {self.batch_size} and {self.language_windows}"
            )
        if self.vad is not None and self.mode == "seek":
            raise OptionError("vad options: need mode 'vad', got 'seek'")
        if self.batch_size > 1 and self.mode == "seek":
            raise OptionError(f"batch_size {self.batch_size}: needs mode 'vad', got 'seek'")
        if self.per_window_language and self.decoding.language is not None:
            raise OptionError(f"per_window_language: expected no language, got '{self.decoding.language}'")

    def _check_prompts(self) -> None:
        if self.decoding.prompt is not None:
            raise OptionError("prompt: use initial_prompt for a recording")
        if self.carry_initial_prompt and self.initial_prompt is None:
            raise OptionError("carry_initial_prompt: needs an initial_prompt")

    def _check_times(self) -> None:
        times = self.clip_timestamps
        if any(time < 0 for time in times) or list(times) != sorted(times):
            raise OptionError(f"clip_timestamps: expected ascending seconds, got {times}")
        if times and self.mode == "vad":
            raise OptionError("clip_timestamps: need mode 'seek', got 'vad'")
        threshold = self.hallucination_silence_threshold
        if threshold is None:
            return
        if not threshold > 0:
            raise OptionError(f"hallucination_silence_threshold: expected more than 0 s, got {threshold}")
        if not self.word_timestamps or self.mode == "vad":
            raise OptionError("hallucination_silence_threshold: needs word_timestamps and mode 'seek'")

    @property
    def is_conditioned(self) -> bool:
        """Whether a window sees the text before it."""
        return self.condition_on_previous_text and self.batch_size == 1
