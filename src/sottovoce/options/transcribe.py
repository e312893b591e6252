"""Options of recordings: transcription, speakers, alignment, layout of subtitles, pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Literal, Protocol, TypeAlias, get_args

from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions, FallbackOptions, VadOptions
from sottovoce.options.schema import ApiField, Option, check_options, in_python
from sottovoce.options.text import TextOptions
from sottovoce.text.disfluency import check_cleanable
from sottovoce.text.languages import find_language
from sottovoce.types import Samples, Turn

PREPENDED = "\"'“¿([{-"
APPENDED = "\"'.。,，!！?？:：”)]}、"
LANGUAGE_PRIOR: Mapping[str, float] = MappingProxyType(
    dict.fromkeys(("br", "cy", "fo", "haw", "la", "mi", "nn", "oc", "sa"), math.log(0.2))
)
"""Natural logs of factors: Whisper takes frequent languages for these rarely recorded relatives."""
VERBATIM_LOOPS = 5
"""`max_loops` of `verbatim`, whose prompt makes loops likelier; the compression ratio misses short ones."""

Mode: TypeAlias = Literal["seek", "vad"]
FollowLanguages: TypeAlias = bool | Literal["auto"] | None
Channels: TypeAlias = Literal["mixed", "apart", "energy"]
Layout: TypeAlias = Literal["reading", "segments"]
Normalization: TypeAlias = Literal["recording", "running", "window"]

_context = partial(Option, group="Context")
_speakers = partial(Option, group="Speakers")
_times = partial(Option, group="Times")
_speech = partial(Option, group="Speech")
_words = partial(Option, group="Words")
_layout = partial(Option, group="Layout")
_style = partial(Option, group="Style")
_signs = partial(_words, unset="openai-whisper's", metavar="SIGNS", cli_default=None)
_RAW = ApiField("input_format", "format of samples without a header, such as `mulaw` or `s16le:44100:2`")


Engine: TypeAlias = Literal["own", "pyannote"]
VoiceName: TypeAlias = Literal["ge2e", "campplus"]
_bound = partial(Option, group="Speakers", cli_default=None, metavar="N", least=1)


class Diarizer(Protocol):
    """Finds the speaker turns of a recording."""

    @property
    def turns(self) -> Callable[..., list[Turn]]:
        """Return the turns of a `Recording`; speakers are A, B, … by appearance. Raises: AudioError."""
        ...


@dataclass(frozen=True, slots=True)
class SpeakerOptions:
    """Options of speaker diarization, chosen on development voices. Raises: OptionError."""

    n_speakers: int | None = in_python(
        "Number of speakers.", unset="unknown", least=1, called="speakers", expected="'auto' or at least 1"
    ).as_field(None)
    least: int = _bound("Smallest number that `auto` finds.", unset="1", key="min_speakers").as_field(1)
    most: int = _bound("Largest number that `auto` finds.", unset="10", key="max_speakers").as_field(10)
    engine: Engine = _speakers(
        "own, or pyannote's pipeline from the Hugging Face hub (extra `pyannote`).",
        key="speaker_engine",
        choices=("own", "pyannote"),
        called="speakers",
        expected="the engine 'own' or 'pyannote'",
    ).as_field("own")
    voices: VoiceName = _speakers(
        "Network that compares voices; campplus is more accurate and five times as slow.",
        key="speaker_voices",
        choices=("ge2e", "campplus"),
    ).as_field("ge2e")
    distance: float | None = in_python(
        "Largest cosine distance (0 to 2) of two voices of one speaker.", unset="that of the network"
    ).as_field(None)
    """If the number of speakers is unknown."""
    least_speech_s: float = in_python(
        "Speakers with less speech in the whole recording are merged into others.",
        least=0.0,
        expected="0 or more seconds",
    ).as_field(3.0)
    """If the number of speakers is unknown."""
    known: Mapping[str, Samples] = field(default_factory=dict, hash=False, compare=False)
    """Enrolment speech (n,) by name: voices within `distance` get the name (engine "own")."""

    def __post_init__(self) -> None:
        self._check_bounds()
        check_options(self)
        if self.voices != "ge2e" and self.engine != "own":
            raise OptionError(f"voices '{self.voices}': expected the engine 'own', got '{self.engine}'")
        if self.distance is not None and not 0 < self.distance < 2:
            raise OptionError(f"distance of voices: expected between 0 and 2, got {self.distance}")
        if self.known and self.engine != "own":
            raise OptionError(f"known speakers: expected the engine 'own', got '{self.engine}'")

    def _check_bounds(self) -> None:
        if self.most < 1:
            raise OptionError(f"most speakers: expected at least 1, got {self.most}")
        if not 1 <= self.least <= self.most:
            raise OptionError(f"least speakers: expected 1 to {self.most}, the most, got {self.least}")
        if self.n_speakers is not None and 1 <= self.n_speakers < self.least:
            raise OptionError(f"speakers: expected at least {self.least}, the least, got {self.n_speakers}")


Speakers: TypeAlias = "SpeakerOptions | Diarizer | int | str"
"""Options, a diarizer, the number of speakers, or "auto"."""


def parse_speakers(request: Speakers) -> SpeakerOptions | Diarizer:
    """Raises: OptionError for other values."""
    if isinstance(request, int):
        return SpeakerOptions(n_speakers=request)
    if isinstance(request, str):
        if request != "auto" and not (request.isascii() and request.isdecimal()):
            raise OptionError(f"speakers: expected 'auto' or how many there are, got '{request}'")
        return SpeakerOptions() if request == "auto" else SpeakerOptions(n_speakers=int(request))
    if not isinstance(request, SpeakerOptions) and not hasattr(request, "turns"):
        raise OptionError(f"speakers: expected 'auto', a number, options or a diarizer, got {request!r}")
    return request


def check_speaker_names(names: Sequence[str], speakers: SpeakerOptions | Diarizer | None) -> None:
    """Raises: OptionError for a name that is empty, duplicate, not one line, or known, and for too many."""
    for name in names:
        if not name.strip() or not name.isprintable():
            raise OptionError(f"speaker names: expected a name, got '{name}'")
        if names.count(name) > 1:
            raise OptionError(f"speaker names: expected different ones, got '{name}' twice")
    if not isinstance(speakers, SpeakerOptions):
        return
    for name in names:
        if name in speakers.known:
            raise OptionError(f"speaker_names: '{name}' is a known voice already")
    most = speakers.n_speakers or speakers.most
    if len(names) + len(speakers.known) > most:
        enrolled = f" beside {len(speakers.known)} known voices" if speakers.known else ""
        raise OptionError(
            f"speaker_names: expected at most {most}, as there are speakers, got {len(names)}{enrolled}"
        )


@dataclass(frozen=True, slots=True)
class TranscribeOptions(TextOptions):
    """How to transcribe a recording. Names and defaults are openai-whisper's where it has them.

    Raises: OptionError.
    """

    decoding: DecodingOptions = field(default_factory=DecodingOptions)
    """Of each window; earlier text is set by `initial_prompt`."""
    fallback: FallbackOptions = field(default_factory=FallbackOptions)
    mode: Mode = _speech(
        "Detect speech first, and decode only speech.",
        flag="--vad",
        kind="flag",
        reads=lambda on: "vad" if on else None,
        choices=("seek", "vad"),
        whisper_cpp=ApiField(
            "vad", "detect speech first", kind="flag", reads=lambda on: "vad" if on else None
        ),
        whisper_asr=ApiField(
            "vad_filter", "detect speech first", kind="flag", reads=lambda on: "vad" if on else None
        ),
    ).as_field("seek")
    """ "seek" advances by the model's timestamps; "vad" packs speech into windows."""
    vad: VadOptions | None = None
    batch_size: int = _speech(
        "Windows decoded together; above 1 implies --vad, as do all --vad-… options.", least=1
    ).as_field(1)
    """Above 1, windows cannot be conditioned on each other."""
    follow_languages: FollowLanguages = Option(
        "Follow all changes of language within a recording, or keep its first language.",
        unset="with a list all changes, else clear ones",
        group="Language",
        kind="flag",
        switch=True,
    ).as_field(None)
    """"auto": clear changes. None: True if several are allowed, else "auto"."""
    read_again: bool = _speech(
        "Decode skipped speech again and report what remains; remove text without speech. "
        "Without this, the text equals openai-whisper's.",
        switch=True,
    ).as_field(True)
    language_windows: int = in_python(
        "Most windows of 30 s with speech used to detect the language; fewer if they agree.", least=1
    ).as_field(4)
    language_prior: Mapping[str, float] = field(default_factory=lambda: dict(LANGUAGE_PRIOR), hash=False)
    """See `combine_detections`."""
    initial_prompt: str | None = _context(
        "Text before the recording: names, spelling, style.",
        metavar="TEXT",
        openai=ApiField("prompt", "text before the recording"),
        whisper_cpp=ApiField("prompt", "text before the recording"),
        whisper_asr=ApiField("initial_prompt", "text before the recording"),
    ).as_field(None)
    carry_initial_prompt: bool = _context(
        "Give the initial prompt to every window.", whisper_cpp=ApiField("carry_initial_prompt")
    ).as_field(False)
    condition_on_previous_text: bool = _context(
        "Decode each window without the text of the one before.",
        flag="--no-condition-on-previous-text",
        negated=True,
    ).as_field(True)
    max_context: int | None = _context(
        "Most tokens of earlier text for a window.",
        unset="as many as the model allows",
        metavar="TOKENS",
        least=0,
        whisper_cpp=ApiField(
            "max_context", "tokens of earlier text; -1: all", least=-1, most=100_000, none_upto=-1
        ),
    ).as_field(None)
    prompt_reset_on_temperature: float = _context(
        "Text decoded at a higher temperature is not given to the next window.", least=0.0
    ).as_field(0.5)
    clip_timestamps: tuple[float, ...] = _times(
        "Transcribe only these parts; times as for --offset, the last end is optional.",
        kind="times",
        metavar="START,END,…",
    ).as_field(())
    """Start, end, start, … in ascending seconds."""
    audio_ctx: int | None = _speech(
        "Encoder frames (20 ms) of every window, full or not; fewer than the model's lose words.",
        unset="1500, fewer where less is left",
        metavar="FRAMES",
        least=50,
        expected="at least 50 (a second)",
        whisper_cpp=ApiField(
            "audio_ctx",
            "frames (20 ms) of a window, 50 to 1500; 0: all; fewer than the model's lose words",
            least=0,
            most=1_500,
            none_upto=0,
        ),
    ).as_field(None)
    """The last 0.2 s of a shorter window are silence."""
    offset_s: float = _times(
        "Start of the part to read: seconds, m:ss or h:mm:ss.",
        unset="the beginning",
        key="offset",
        kind="time",
        metavar="TIME",
        cli_default=None,
        least=0.0,
        expected="seconds from 0",
        whisper_cpp=ApiField(
            "offset_t", "start of the part to read, in milliseconds", most=1e9, per_unit=1000.0, kind="number"
        ),
    ).as_field(0.0)
    duration_s: float | None = _times(
        "Length of the part to read.",
        unset="to the end",
        key="duration",
        kind="time",
        metavar="TIME",
        above=0.0,
        expected="more than 0 seconds",
        whisper_cpp=ApiField(
            "duration",
            "length of the part to read, in milliseconds",
            least=0.0,
            most=1e9,
            per_unit=1000.0,
            none_upto=0,
            kind="number",
        ),
    ).as_field(None)
    """A part is read as a recording of its own, with times of the whole."""
    word_timestamps: bool = _words(
        "Add times and probabilities of words.",
        short="-w",
        whisper_asr=ApiField("word_timestamps", "words in `json`"),
    ).as_field(False)
    word_threshold: float = _words(
        "Less probable words take their times from their neighbours.",
        metavar="P",
        least=0.0,
        most=1.0,
        whisper_cpp=ApiField("word_thold", "probability of a word (whisper.cpp: of a timestamp)"),
    ).as_field(0.0)
    """See `interpolate_improbable`; 0 keeps all times."""
    prepend_punctuations: str = _signs("Punctuation that belongs to the next word.").as_field(PREPENDED)
    append_punctuations: str = _signs("Punctuation that belongs to the previous word.").as_field(APPENDED)
    hallucination_silence_threshold: float | None = _times(
        "Skip longer silences around likely hallucinations.",
        metavar="SECONDS",
        above=0.0,
        expected="more than 0 s",
    ).as_field(None)
    audio_filter: str | None = _speech(
        "FFmpeg filters applied first, such as 'highpass=f=100,afftdn'.", metavar="FILTERS"
    ).as_field(None)
    audio_track: int | str | None = _speech(
        "Audio track of a file with several: its number, from 1, or its language.",
        unset="FFmpeg's choice",
        metavar="N|LANGUAGE",
        kind="text",
    ).as_field(None)
    input_format: str | None = _speech(
        "Format of samples without a header: FFmpeg's name, rate and channels, such as mulaw "
        "or s16le:44100:2.",
        unset="by the file's extension",
        metavar="NAME[:RATE[:CHANNELS]]",
        openai=_RAW,
        whisper_cpp=_RAW,
        whisper_asr=_RAW,
    ).as_field(None)
    normalization: Normalization = in_python("Range of the log-mel's maximum, see `audio.mel`.").as_field(
        "recording"
    )
    clean: bool = _style(
        "Remove fillers, repetitions and broken-off words (en, de, es, fr, it, nl, pl, pt, ru)."
    ).as_field(False)
    """Words keep their times, and empty segments are dropped."""
    mark_pauses: float | None = _style(
        "Write pauses of at least so many seconds as (2.0), for research. Implies word times.",
        metavar="SECONDS",
        above=0.0,
        openai=ApiField("mark_pauses", "write pauses of at least so many seconds as (2.0)"),
    ).as_field(None)
    only_languages: tuple[str, ...] = _style(
        "Keep segments in these languages alone, such as those of a film that are not its main one.",
        metavar="CODE[,CODE…]",
        kind="texts",
        openai=ApiField("only_languages[]", "keep segments in these languages alone", examples=("de",)),
    ).as_field(())
    except_languages: tuple[str, ...] = _style(
        "Leave out segments in these languages.",
        metavar="CODE[,CODE…]",
        kind="texts",
        openai=ApiField("except_languages[]", "leave out segments in these languages", examples=("en",)),
    ).as_field(())
    with_english: bool = in_python(
        "Translate segments into English too, from the same encoder states.",
        openai=ApiField(
            "translate_to",
            "`en`: segments in other languages also have a `translation`",
            kind="choice",
            choices=("en",),
            reads=bool,
        ),
    ).as_field(False)
    speakers: SpeakerOptions | Diarizer | None = _speakers(
        "Identify speakers: their number, or auto. Implies word times.", metavar="auto|N", kind="text"
    ).as_field(None)
    """Options or a diarizer; a number and "auto" become options. None: no diarization."""
    speaker_names: tuple[str, ...] = _speakers(
        "Names of the speakers, in the order in which they first speak (with --channels: of the channels).",
        metavar="NAME[,NAME…]",
        kind="texts",
    ).as_field(())
    """Without the known speakers (`SpeakerOptions.known`)."""
    channels: Channels = _speakers(
        "For one speaker a channel. apart: transcribe each channel separately (implies "
        "--vad); energy: together, the loudest channel speaks.",
        choices=("mixed", "apart", "energy"),
        whisper_cpp=ApiField(
            "diarize",
            "identify speakers by channels or [voices](speakers.md): see below",
            kind="flag",
            reads=lambda on: "energy" if on else None,
        ),
    ).as_field("mixed")
    """ "apart" needs mode "vad"; "energy" times words."""

    def __post_init__(self) -> None:
        self._check_mode()
        TextOptions.__post_init__(self)
        prior = {find_language(language): value for language, value in self.language_prior.items()}
        object.__setattr__(self, "language_prior", prior)
        for name in ("only_languages", "except_languages"):
            object.__setattr__(self, name, tuple(map(find_language, getattr(self, name))))
        if self.only_languages and self.except_languages:
            raise OptionError("only_languages: expected no except_languages beside them")
        if self.speakers is not None:
            object.__setattr__(self, "speakers", parse_speakers(self.speakers))
        self._check_decoding()
        self._check_clips()
        self._check_speakers()

    def _check_mode(self) -> None:
        if self.vad is not None and not isinstance(self.vad, VadOptions):
            names = ", ".join(field.name for field in fields(VadOptions))
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
        if self.with_english and decoding.task == "translate":
            raise OptionError("with_english: needs task 'transcribe', got 'translate'")
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
    def is_part(self) -> bool:
        return self.offset_s > 0 or self.duration_s is not None

    @property
    def is_diarized(self) -> bool:
        return self.speakers is not None or self.channels == "energy"

    @property
    def needs_words(self) -> bool:
        has_pauses = self.mark_pauses is not None
        return self.word_timestamps or self.is_diarized or self.decoding.speaker_turns or has_pauses

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


AlignMethod: TypeAlias = Literal["attention", "ctc"]


@dataclass(frozen=True, slots=True)
class AlignOptions:
    """Options of forced alignment. Raises: OptionError."""

    method: AlignMethod | None = Option(
        "attention of Whisper's decoder, or ctc, for Whisper by its CTC head.",
        group="Alignment",
        choices=("attention", "ctc"),
        unset="attention; CTC networks ctc",
    ).as_field(None)
    keep_to_speech: bool = Option(
        "Move word bounds out of silence to the nearest speech.", group="Alignment", switch=True
    ).as_field(True)
    least_found: float = in_python(
        "Share of the words of a long text that must be recognised, else the text is of another recording.",
        least=0.0,
        most=1.0,
        expected="a share from 0 to 1",
    ).as_field(0.1)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Layout of subtitles; its limits need word times. Raises: OptionError."""

    layout: Layout | None = _layout(
        "reading: two lines that end with sentences and clauses; segments: Whisper's segments.",
        choices=("reading", "segments"),
        unset="reading; segments with words per line or highlighted words",
    ).as_field(None)
    max_line_width: int | None = _layout(
        "Characters in a subtitle line; wide ones count twice.",
        unset="42; Korean and Chinese 32, Japanese 26",
        least=1,
    ).as_field(None)
    max_line_count: int | None = _layout("Lines in a subtitle.", unset="2", least=1).as_field(None)
    """With the layout "segments", lets subtitles run across segments."""
    max_words_per_line: int | None = _layout("Words in a subtitle.", least=1).as_field(None)
    """Only if subtitles end with their segments."""
    reading_speed: float | None = _layout(
        "Characters that people read in a second: how long a subtitle stays, if the next one begins later.",
        unset="17",
        metavar="CHARACTERS",
        least=1.0,
        expected="at least 1 a second",
    ).as_field(None)
    highlight_words: bool = _layout("Underline each word of a subtitle as it is spoken.").as_field(False)
    dialogue: bool = _layout(
        "Short turns of two speakers share a subtitle, a line each behind a hyphen; nobody is named."
    ).as_field(False)
    """For reading. Source: Netflix, Timed Text Style Guide, "Dual Speakers"."""
    at_top: bool = _layout("Put subtitles at the top of the picture, not over text at its bottom.").as_field(
        False
    )
    offset_n: int = _layout(
        "srt: number the subtitles from N + 1.",
        metavar="N",
        least=0,
        whisper_cpp=ApiField("offset_n", "added to the numbers of `srt`", most=100_000),
    ).as_field(0)

    def __post_init__(self) -> None:
        check_options(self)
        if self.max_words_per_line is not None and self.max_line_count is not None:
            raise OptionError("max_words_per_line: cannot be combined with max_line_count")
        if self.is_for_reading and (self.highlight_words or self.max_words_per_line is not None):
            wanted = "reading_speed" if self.layout is None else "layout 'reading'"
            raise OptionError(f"{wanted}: cannot be combined with highlight_words or max_words_per_line")
        if self.dialogue and not self.is_for_reading:
            raise OptionError("dialogue: needs layout 'reading', got 'segments'")
        if self.reading_speed is not None and not self.is_for_reading:
            raise OptionError("reading_speed: needs layout 'reading', got 'segments'")
        if self.max_line_count is not None and self.max_line_width is None and not self.is_for_reading:
            raise OptionError(f"max_line_count {self.max_line_count}: needs max_line_width too")

    @property
    def is_for_reading(self) -> bool:
        if self.layout is None and self.reading_speed is None:
            return not self.highlight_words and self.max_words_per_line is None
        return self.layout != "segments"

    @property
    def need_words(self) -> bool:
        limits = (self.max_line_width, self.max_line_count, self.max_words_per_line, self.reading_speed)
        return self.highlight_words or any(limit is not None for limit in limits)


SHORTEST_PICTURE_S, LONGEST_PICTURE_S = 0.1, 30.0
Panel: TypeAlias = Literal["mel", "speech", "language", "attention", "confidence"]
PANELS: tuple[Panel, ...] = get_args(Panel)


def panels_of(names: str) -> tuple[Panel, ...]:
    """Parse a list of panels such as "mel,attention", or "all".

    Raises: OptionError.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in (*PANELS, "all")]
    if unknown or not wanted:
        got = f"'{unknown[0]}'" if unknown else "none"
        raise OptionError(f"panels: expected some of {', '.join(PANELS)} or all, got {got}")
    return PANELS if "all" in wanted else tuple(panel for panel in PANELS if panel in wanted)


@dataclass(frozen=True, slots=True)
class PictureOptions:
    panels: tuple[Panel, ...] = Option(
        "mel, speech, language, attention, confidence or all.",
        metavar="PANEL[,PANEL…]",
        cli_default="all",
        reads=panels_of,
    ).as_field(PANELS)
    offset: float | None = Option(
        "Start of the part.", unset="the beginning", kind="time", metavar="TIME"
    ).as_field(None)
    duration: float | None = Option(
        "Length of the part, at most 30 s.",
        unset="30",
        kind="time",
        metavar="TIME",
        least=SHORTEST_PICTURE_S,
        most=LONGEST_PICTURE_S,
        expected=f"{SHORTEST_PICTURE_S:g} to {LONGEST_PICTURE_S:g} s",
    ).as_field(None)
    text: str | None = Option(
        "Text of the part; it is aligned instead of transcribed.", metavar="FILE"
    ).as_field(None)

    def __post_init__(self) -> None:
        check_options(self)
