"""What a caller can ask of the transcription of a whole recording."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

from sottovoce.audio.features import Normalization
from sottovoce.audio.filters import AudioFilter
from sottovoce.audio.vad import VadOptions
from sottovoce.decoding.fallback import FallbackOptions
from sottovoce.decoding.options import DecodingOptions
from sottovoce.errors import OptionError
from sottovoce.speakers.base import Diarizer
from sottovoce.speakers.options import SpeakerOptions

Mode: TypeAlias = Literal["seek", "vad"]
Channels: TypeAlias = Literal["mixed", "apart", "energy"]

PREPENDED = "\"'“¿([{-"
APPENDED = "\"'.。,，!！?？:：”)]}、"
LANGUAGE_WINDOWS = 4
LANGUAGE_PRIOR: Mapping[str, float] = MappingProxyType(
    dict.fromkeys(("br", "cy", "fo", "haw", "la", "mi", "nn", "oc", "sa"), math.log(0.2))
)
"""Natural log-probabilities of languages before anything was heard: Whisper hears languages that few people
record (Latin, Nynorsk, Welsh) in the speech of their neighbours. Training hours as a prior were tried, and
cost more than they gave (docs/log.md)."""
WINDOW_VAD = VadOptions(min_silence_ms=160.0, max_speech_s=30.0, speech_pad_ms=200.0)
"""Speech cut into pieces that fit a window. Source: faster-whisper 1.2.1, batched pipeline, which pads with
400 ms; 200 cost no word on development clips (docs/benchmarks.md)."""


@dataclass(frozen=True, slots=True)
class TranscribeOptions:
    """How to transcribe a recording. Names and defaults are openai-whisper's where it has the option.

    decoding: of each window. A temperature above 0 is the only one that is tried; 0 leaves the temperatures
        to the fallback. Its prefix begins the first window; earlier text is set here.
    fallback: see `FallbackOptions`.
    mode: "seek" moves on by the timestamps that the model writes; "vad" packs speech into windows.
    vad: how speech is found in mode "vad"; None is `WINDOW_VAD`.
    batch_size: windows decoded together ("vad" only); above 1 they cannot be conditioned on each other.
    follow_languages: follow changes of language within the recording, among those allowed; None does so
        where several are listed as allowed. Otherwise the language is found once and kept.
    language_windows: most windows of 30 s with speech over which it is found; fewer where they agree.
    language_prior: what is common, see `combine_detections`; where the language is found once, among all.
    condition_on_previous_text: give what was said before as a prompt. prompt_reset_on_temperature: but
        not after a window that needed a temperature above this. max_context: tokens of it at most; None is as
        many as the model has room for.
    initial_prompt: of the first window; with carry_initial_prompt of every window.
    clip_timestamps: start, end, start, ... in seconds, ascending; without a last end up to the end.
    audio_ctx: encoder frames of 20 ms in a window, None: as many as the model was trained on (1500). Fewer
        take less time, and lose words and times: other lengths were never seen in training.
    offset_s, duration_s: the one part of the recording to transcribe, None: to its end. Times stay those of
        the recording.
    word_timestamps: times of words. prepend_punctuations, append_punctuations: signs that belong to the
        following or the preceding word. word_threshold: words less probable than this take their times from
        the words around them (`interpolate_improbable`); 0 leaves each where it was heard.
    hallucination_silence_threshold: silence in seconds around improbable words that makes them
        hallucinations, with word_timestamps; None keeps them.
    audio_filter: what the recording goes through before anything hears it: a chain of FFmpeg's filters, as
        "highpass=f=100,afftdn" (see `AudioFilter`). None: it is heard as it is.
    normalization: over what the log-mel's maximum is taken, see `audio.features`.
    speakers: how speakers are told apart, or what does it; words are then timed too. None: they are not.
    channels: "mixed" reads them as one; "apart" transcribes each by itself, as one speaker (mode "vad");
        "energy" reads them as one, and whoever's channel is the loudest speaks (words are timed).

    Raises: OptionError for values out of range or that exclude each other.
    """

    decoding: DecodingOptions = field(default_factory=DecodingOptions)
    fallback: FallbackOptions = field(default_factory=FallbackOptions)
    mode: Mode = "seek"
    vad: VadOptions | None = None
    batch_size: int = 1
    follow_languages: bool | None = None
    language_windows: int = LANGUAGE_WINDOWS
    language_prior: Mapping[str, float] = field(default_factory=lambda: dict(LANGUAGE_PRIOR), hash=False)
    condition_on_previous_text: bool = True
    prompt_reset_on_temperature: float = 0.5
    max_context: int | None = None
    initial_prompt: str | None = None
    carry_initial_prompt: bool = False
    clip_timestamps: tuple[float, ...] = ()
    audio_ctx: int | None = None
    offset_s: float = 0.0
    duration_s: float | None = None
    word_timestamps: bool = False
    prepend_punctuations: str = PREPENDED
    append_punctuations: str = APPENDED
    word_threshold: float = 0.0
    hallucination_silence_threshold: float | None = None
    audio_filter: str | None = None
    normalization: Normalization = "recording"
    speakers: SpeakerOptions | Diarizer | None = None
    channels: Channels = "mixed"

    def __post_init__(self) -> None:
        self._check_mode()
        self._check_prompts()
        self._check_times()
        self._check_channels()
        if self.audio_filter is not None:
            AudioFilter(self.audio_filter)

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
        if self.follow_languages and self.decoding.language is not None:
            raise OptionError(f"follow_languages: expected no language, got '{self.decoding.language}'")

    def _check_prompts(self) -> None:
        if self.decoding.prompt is not None:
            raise OptionError("prompt: use initial_prompt for a recording")
        if self.max_context is not None and self.max_context < 0:
            raise OptionError(f"max_context: expected at least 0, got {self.max_context}")
        if self.carry_initial_prompt and self.initial_prompt is None:
            raise OptionError("carry_initial_prompt: needs an initial_prompt")

    def _check_times(self) -> None:
        times = self.clip_timestamps
        if not all(0 <= time < math.inf for time in times) or list(times) != sorted(times):
            raise OptionError(f"clip_timestamps: expected ascending seconds, got {times}")
        if times and self.mode == "vad":
            raise OptionError("clip_timestamps: need mode 'seek', got 'vad'")
        if self.audio_ctx is not None and self.audio_ctx < 50:
            raise OptionError(f"audio_ctx: expected at least 50 (a second), got {self.audio_ctx}")
        if not 0 <= self.offset_s < math.inf:
            raise OptionError(f"offset_s: expected seconds from 0, got {self.offset_s}")
        if self.duration_s is not None and not 0 < self.duration_s < math.inf:
            raise OptionError(f"duration_s: expected more than 0 seconds, got {self.duration_s}")
        if times and (self.offset_s or self.duration_s is not None):
            raise OptionError("clip_timestamps: cannot be combined with offset_s or duration_s")
        self._check_words()

    def _check_words(self) -> None:
        if not 0 <= self.word_threshold <= 1:
            raise OptionError(f"word_threshold: expected 0 to 1, got {self.word_threshold}")
        if self.word_threshold and not self.needs_words:
            raise OptionError("word_threshold: needs word_timestamps")
        threshold = self.hallucination_silence_threshold
        if threshold is None:
            return
        if not threshold > 0:
            raise OptionError(f"hallucination_silence_threshold: expected more than 0 s, got {threshold}")
        if not self.needs_words or self.mode == "vad":
            raise OptionError("hallucination_silence_threshold: needs word_timestamps and mode 'seek'")

    def _check_channels(self) -> None:
        if self.channels not in get_args(Channels):
            raise OptionError(f"channels: expected 'mixed', 'apart' or 'energy', got '{self.channels}'")
        if self.channels != "mixed" and self.speakers is not None:
            raise OptionError(f"channels '{self.channels}': say who speaks; expected no speakers beside")
        if self.decoding.speaker_turns and (self.channels != "mixed" or self.speakers is not None):
            raise OptionError("speaker_turns: expected neither speakers nor channels beside")
        if self.channels == "apart" and self.mode == "seek":
            raise OptionError("channels 'apart': need mode 'vad', since each is silent half of the time")

    @property
    def needs_words(self) -> bool:
        """Whether words are timed: speakers are those of words."""
        tells_speakers = self.speakers is not None or self.channels == "energy"
        return self.word_timestamps or tells_speakers or self.decoding.speaker_turns

    @property
    def follows_languages(self) -> bool:
        """Whether the language may change within the recording."""
        if self.decoding.language is not None:
            return False
        if self.follow_languages is None:
            return len(self.decoding.allowed_languages) > 1
        return self.follow_languages

    @property
    def fallback_of_window(self) -> FallbackOptions:
        """The fallback, with the one temperature of the decoding options where that is above 0."""
        given = self.decoding.temperature
        return replace(self.fallback, temperatures=(given,)) if given > 0.0 else self.fallback

    @property
    def clips(self) -> tuple[tuple[float, float | None], ...]:
        """The parts to transcribe: where each begins and ends, seconds; None is the end of the recording."""
        if not self.clip_timestamps:
            end = None if self.duration_s is None else self.offset_s + self.duration_s
            return ((self.offset_s, end),)
        ends: list[float | None] = [*self.clip_timestamps[1::2]]
        if len(self.clip_timestamps) % 2:
            ends.append(None)
        return tuple(zip(self.clip_timestamps[::2], ends, strict=True))

    @property
    def is_conditioned(self) -> bool:
        """Whether a window sees the text before it."""
        return self.condition_on_previous_text and self.batch_size == 1
