"""Options of the transcription of a recording."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Literal, TypeAlias

from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.schema import ApiField, Option, check_options
from sottovoce.options.speakers import Diarizer, SpeakerOptions, check_speaker_names
from sottovoce.options.vad import VadOptions
from sottovoce.text.disfluency import check_cleanable
from sottovoce.text.languages import find_language

PREPENDED = "\"'“¿([{-"
APPENDED = "\"'.。,，!！?？:：”)]}、"
LANGUAGE_WINDOWS = 4
LANGUAGE_PRIOR: Mapping[str, float] = MappingProxyType(
    dict.fromkeys(("br", "cy", "fo", "haw", "la", "mi", "nn", "oc", "sa"), math.log(0.2))
)
"""Natural log of prior factors of languages: Whisper takes frequent languages for rarely recorded relatives.
"""
VERBATIM_LOOPS = 5
"""A text that ends with more repetitions is decoded again: the prompt of `verbatim` makes loops likelier, and
the compression ratio misses short ones.
"""

Mode: TypeAlias = Literal["seek", "vad"]
FollowLanguages: TypeAlias = bool | Literal["auto"] | None
Channels: TypeAlias = Literal["mixed", "apart", "energy"]
Normalization: TypeAlias = Literal["recording", "running", "window"]

_signs = partial(
    Option,
    unset="openai-whisper's",
    group="Words",
    metavar="SIGNS",
    cli_default=None,
)


@dataclass(frozen=True, slots=True)
class TranscribeOptions:
    """How to transcribe a recording. Names and defaults are openai-whisper's where it has them.

    Raises: OptionError for values out of range or that exclude each other.
    """

    decoding: DecodingOptions = field(default_factory=DecodingOptions)
    """Of each window; earlier text is set by `initial_prompt`."""
    fallback: FallbackOptions = field(default_factory=FallbackOptions)
    mode: Mode = Option(
        "Detect speech first, and decode only speech.",
        group="Speech",
        flag="--vad",
        kind="flag",
        reads=lambda on: "vad" if on else None,
        choices=("seek", "vad"),
        apis={
            "whisper_cpp": ApiField(
                "vad", "detect speech first", kind="flag", reads=lambda on: "vad" if on else None
            )
        },
    ).as_field("seek")
    """ "seek" advances by the model's timestamps; "vad" packs speech into windows."""
    vad: VadOptions | None = None
    batch_size: int = Option(
        "Windows decoded together; above 1 implies --vad, as do all --vad-… options.",
        group="Speech",
        least=1,
    ).as_field(1)
    """Above 1, windows cannot be conditioned on each other."""
    follow_languages: FollowLanguages = Option(
        "Follow all changes of language within a recording, or keep its first language.",
        unset="with a list all changes, else clear ones",
        group="Language",
        kind="flag",
        switch=True,
    ).as_field(None)
    """ "auto": once another language is surely spoken. None: True if several are allowed, else "auto"."""
    read_again: bool = Option(
        "Decode skipped speech again and report what remains; remove text without speech. "
        "Without this, the text equals openai-whisper's.",
        group="Speech",
        switch=True,
    ).as_field(True)
    language_windows: int = Option(
        "Most windows of 30 s with speech used to detect the language; fewer if they agree.",
        flag=None,
        least=1,
    ).as_field(LANGUAGE_WINDOWS)
    language_prior: Mapping[str, float] = field(default_factory=lambda: dict(LANGUAGE_PRIOR), hash=False)
    """See `combine_detections`."""
    initial_prompt: str | None = Option(
        "Text before the recording: names, spelling, style.",
        group="Context",
        metavar="TEXT",
        apis={
            "openai": ApiField("prompt", "text before the recording"),
            "whisper_cpp": ApiField("prompt", "text before the recording"),
        },
    ).as_field(None)
    carry_initial_prompt: bool = Option(
        "Give the initial prompt to every window.",
        group="Context",
        apis={"whisper_cpp": ApiField("carry_initial_prompt")},
    ).as_field(False)
    condition_on_previous_text: bool = Option(
        "Decode each window without the text of the one before.",
        group="Context",
        flag="--no-condition-on-previous-text",
        negated=True,
    ).as_field(True)
    max_context: int | None = Option(
        "Most tokens of earlier text for a window.",
        unset="as many as the model allows",
        group="Context",
        metavar="TOKENS",
        least=0,
        apis={
            "whisper_cpp": ApiField(
                "max_context", "tokens of earlier text; -1: all", least=-1, most=100_000, none_upto=-1
            )
        },
    ).as_field(None)
    prompt_reset_on_temperature: float = Option(
        "Text decoded at a higher temperature is not given to the next window.",
        group="Context",
        least=0.0,
    ).as_field(0.5)
    clip_timestamps: tuple[float, ...] = Option(
        "Transcribe only these parts; times as for --offset, the last end is optional.",
        group="Times",
        kind="times",
        metavar="START,END,…",
    ).as_field(())
    """Start, end, start, … in ascending seconds; the last end may be left out."""
    audio_ctx: int | None = Option(
        "Encoder frames (20 ms) of a window; fewer than the model's lose words.",
        unset="1500",
        group="Speech",
        metavar="FRAMES",
        least=50,
        expected="at least 50 (a second)",
        apis={
            "whisper_cpp": ApiField(
                "audio_ctx",
                "frames (20 ms) of a window, 50 to 1500; 0: all; fewer than the model's lose words",
                least=0,
                most=1_500,
                none_upto=0,
            )
        },
    ).as_field(None)
    """None: the trained length (1500). Fewer are faster and lose words; the last 0.2 s of such a window are
    silence.
    """
    offset_s: float = Option(
        "Start of the part to read: seconds, m:ss or h:mm:ss.",
        unset="the beginning",
        group="Times",
        key="offset",
        kind="time",
        metavar="TIME",
        cli_default=None,
        least=0.0,
        expected="seconds from 0",
        apis={
            "whisper_cpp": ApiField(
                "offset_t",
                "start of the part to read, in milliseconds",
                most=1e9,
                per_unit=1000.0,
                kind="number",
            )
        },
    ).as_field(0.0)
    duration_s: float | None = Option(
        "Length of the part to read.",
        unset="to the end",
        group="Times",
        key="duration",
        kind="time",
        metavar="TIME",
        above=0.0,
        expected="more than 0 seconds",
        apis={
            "whisper_cpp": ApiField(
                "duration",
                "length of the part to read, in milliseconds",
                least=0.0,
                most=1e9,
                per_unit=1000.0,
                none_upto=0,
                kind="number",
            )
        },
    ).as_field(None)
    """A part is read as a recording of its own, with times of the whole; clips are read within the whole."""
    word_timestamps: bool = Option(
        "Add times and probabilities of words.",
        group="Words",
        short="-w",
    ).as_field(False)
    word_threshold: float = Option(
        "Less probable words take their times from their neighbours.",
        group="Words",
        metavar="P",
        least=0.0,
        most=1.0,
        apis={"whisper_cpp": ApiField("word_thold", "probability of a word (whisper.cpp: of a timestamp)")},
    ).as_field(0.0)
    """See `interpolate_improbable`; 0 keeps all times."""
    prepend_punctuations: str = _signs("Punctuation that belongs to the next word.").as_field(PREPENDED)
    append_punctuations: str = _signs("Punctuation that belongs to the previous word.").as_field(APPENDED)
    hallucination_silence_threshold: float | None = Option(
        "Skip longer silences around likely hallucinations (needs --word-timestamps).",
        group="Times",
        metavar="SECONDS",
        above=0.0,
        expected="more than 0 s",
    ).as_field(None)
    """None keeps all segments."""
    audio_filter: str | None = Option(
        "FFmpeg filters applied first, such as 'highpass=f=100,afftdn'.",
        group="Speech",
        metavar="FILTERS",
    ).as_field(None)
    audio_track: int | str | None = Option(
        "Audio track of a file with several: its number, from 1, or its language.",
        unset="FFmpeg's choice",
        group="Speech",
        metavar="N|LANGUAGE",
        kind="text",
    ).as_field(None)
    input_format: str | None = Option(
        "Format of samples without a header: FFmpeg's name, rate and channels, such as mulaw "
        "or s16le:44100:2.",
        unset="by the file's extension",
        group="Speech",
        metavar="NAME[:RATE[:CHANNELS]]",
    ).as_field(None)
    normalization: Normalization = Option(
        "Range of the log-mel's maximum, see `audio.features`.", flag=None
    ).as_field("recording")
    clean: bool = Option(
        "Remove fillers, repetitions and broken-off words (en, de, es, fr, it, nl, pl, pt, ru).",
        group="Style",
    ).as_field(False)
    """By `text.disfluency`; words keep their times, and empty segments are dropped."""
    speakers: SpeakerOptions | Diarizer | None = Option(
        "Identify speakers: their number, or auto. Implies word times.",
        group="Speakers",
        metavar="auto|N",
        kind="text",
    ).as_field(None)
    """Options or a diarizer. None: no diarization."""
    speaker_names: tuple[str, ...] = Option(
        "Names of the speakers, in the order in which they first speak (with --channels: of the channels).",
        group="Speakers",
        metavar="NAME[,NAME…]",
        kind="texts",
    ).as_field(())
    """For A, B and so on, without the known speakers (`SpeakerOptions.known`)."""
    channels: Channels = Option(
        "For one speaker a channel. apart: transcribe each channel separately (implies "
        "--vad); energy: together, the loudest channel speaks.",
        group="Speakers",
        choices=("mixed", "apart", "energy"),
        apis={
            "whisper_cpp": ApiField(
                "diarize",
                "identify speakers by channels or [voices](speakers.md): see below",
                kind="flag",
                reads=lambda on: "energy" if on else None,
            )
        },
    ).as_field("mixed")
    """ "apart" needs mode "vad"; "energy" times words."""

    def __post_init__(self) -> None:
        self._check_mode()
        check_options(self)
        prior = {find_language(language): value for language, value in self.language_prior.items()}
        object.__setattr__(self, "language_prior", prior)
        self._check_decoding()
        self._check_clips()
        self._check_speakers()

    def _check_mode(self) -> None:
        if self.vad is not None and not isinstance(self.vad, VadOptions):
            names = ", ".join(one.name for one in fields(VadOptions))
            raise OptionError(f"vad: expected VadOptions, whose fields are {names}, got {self.vad!r}")
        if self.vad is not None and self.mode == "seek":
            raise OptionError("vad options: need mode 'vad', got 'seek'")

    def _check_decoding(self) -> None:
        decoding = self.decoding
        if self.batch_size > 1 and self.mode != "vad":
            raise OptionError(f"batch_size {self.batch_size}: needs mode 'vad', got '{self.mode}'")
        is_seeking_words = self.needs_words and self.mode == "seek"
        if self.hallucination_silence_threshold is not None and not is_seeking_words:
            raise OptionError("hallucination_silence_threshold: needs word_timestamps and mode 'seek'")
        if decoding.prompt is not None:
            raise OptionError("prompt: use initial_prompt for a recording")
        if self.follow_languages is True and decoding.language is not None:
            raise OptionError(f"follow_languages: expected no language, got '{decoding.language}'")
        if self.clean and decoding.language is not None and decoding.task == "transcribe":
            check_cleanable(decoding.language)

    def _check_clips(self) -> None:
        times = self.clip_timestamps
        if not all(0 <= time < math.inf for time in times) or list(times) != sorted(times):
            raise OptionError(f"clip_timestamps: expected ascending seconds, got {times}")
        if times and self.mode == "vad":
            raise OptionError("clip_timestamps: need mode 'seek', got 'vad'")
        if times and self.is_part:
            raise OptionError("clip_timestamps: cannot be combined with offset_s or duration_s")

    def _check_speakers(self) -> None:
        is_diarized, has_channels = self.speakers is not None, self.channels != "mixed"
        if self.speaker_names:
            check_speaker_names(self.speaker_names, self.speakers)
            if not is_diarized and not has_channels:
                raise OptionError("speaker_names: need speakers or channels")
        if has_channels and is_diarized:
            raise OptionError(f"channels '{self.channels}': say who speaks; expected no speakers beside")
        if self.decoding.speaker_turns and (has_channels or is_diarized):
            raise OptionError("speaker_turns: expected neither speakers nor channels beside")
        if self.channels == "apart" and self.mode == "seek":
            raise OptionError("channels 'apart': need mode 'vad', since each is silent half of the time")

    @property
    def is_resumable(self) -> bool:
        tells_speakers = self.speakers is not None or self.decoding.speaker_turns
        return self.channels == "mixed" and not tells_speakers

    @property
    def is_part(self) -> bool:
        return self.offset_s > 0 or self.duration_s is not None

    @property
    def needs_words(self) -> bool:
        tells_speakers = self.speakers is not None or self.channels == "energy"
        return self.word_timestamps or tells_speakers or self.decoding.speaker_turns

    @property
    def follows_languages(self) -> bool:
        if self.decoding.language is not None:
            return False
        if self.follow_languages is None:
            return len(self.decoding.allowed_languages) > 1
        return self.follow_languages is True

    @property
    def may_follow_languages(self) -> bool:
        if self.decoding.language is not None or len(self.decoding.allowed_languages) == 1:
            return False
        return self.follow_languages is not False

    @property
    def fallback_of_window(self) -> FallbackOptions:
        """The fallback of these options, with the temperature of `decoding` if that is above 0."""
        given = self.decoding.temperature
        fallback = self.fallback
        if self.decoding.verbatim and fallback.max_loops is None:
            fallback = replace(fallback, max_loops=VERBATIM_LOOPS)
        return replace(fallback, temperatures=(given,)) if given > 0.0 else fallback

    @property
    def clips(self) -> tuple[tuple[float, float | None], ...]:
        """Start and end (s) of the parts to transcribe; None: the end of the recording."""
        if not self.clip_timestamps:
            end = None if self.duration_s is None else self.offset_s + self.duration_s
            return ((self.offset_s, end),)
        ends: list[float | None] = [*self.clip_timestamps[1::2]]
        if len(self.clip_timestamps) % 2:
            ends.append(None)
        return tuple(zip(self.clip_timestamps[::2], ends, strict=True))

    @property
    def is_conditioned(self) -> bool:
        return self.condition_on_previous_text and self.batch_size == 1
