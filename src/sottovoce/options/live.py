"""Options of live speech."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias, get_args

from sottovoce.errors import OptionError
from sottovoce.options.decoding import VadStreamOptions
from sottovoce.options.schema import ApiField, Option, check_options, in_python
from sottovoce.options.text import TextOptions
from sottovoce.types import Task

Switching: TypeAlias = Literal["off", "restart"]
"""How a change of language is followed."""
Captions: TypeAlias = Literal["firm", "revisable"]
Finals: TypeAlias = Literal["committed", "read"]
Latency: TypeAlias = Literal["low", "balanced", "sure"]
Eagerness: TypeAlias = Literal["low", "medium", "high"]
_in_policy = partial(Option, group="When words are said")
_in_language = partial(Option, group="Language")


@dataclass(frozen=True, slots=True)
class LiveDecodingOptions:
    """How live speech is decoded. Names and defaults are SimulStreaming's where it has them.

    Raises: OptionError.
    """

    latency: Latency = _in_policy(
        "Certainty of a word before it is committed: low is earlier, with more errors; sure is later.",
        choices=get_args(Latency),
        sottovoce=ApiField(
            "latency",
            "certainty of words before they are committed: `low` is earlier, with more errors; "
            "`balanced` is the default; `sure` is later",
        ),
    ).as_field("balanced")
    frame_threshold: float | None = _in_policy(
        "Distance (20 ms frames) from the end of the audio within which words wait.",
        unset="that of --latency",
        least=0.0,
        may_be_infinite=True,
    ).as_field(None)
    """inf holds all words back until the end."""
    rewind_threshold: int = _in_policy(
        "An update is discarded if attention jumps back by more frames.", least=0
    ).as_field(200)
    final_frame_threshold: float = in_python(
        "frame_threshold at the end of the audio.", least=0.0, may_be_infinite=True
    ).as_field(0)
    """0 decodes to the end of text."""
    eagerness: Eagerness | None = _in_policy(
        "End a turn sooner if its text is complete, later if not; high is the soonest.",
        unset="turns end after a fixed pause",
        choices=get_args(Eagerness),
        sottovoce=ApiField(
            "eagerness",
            "end turns by their text instead of a fixed pause: `low` waits longest, `high` least; "
            "sends `turn_ended`",
        ),
    ).as_field(None)
    chunk_s: float = in_python(
        "Seconds between two updates.", least=0.01, expected="at least 0.01 seconds"
    ).as_field(0.25)
    audio_min_len_s: float = _in_policy(
        "Seconds of audio before the first update.", key="audio_min_len", least=0.0
    ).as_field(0.0)
    audio_max_len_s: float = _in_policy(
        "Most seconds of audio that are kept.",
        key="audio_max_len",
        least=1.0,
        most=30.0,
        expected="1 to 30 seconds",
    ).as_field(30.0)
    audio_trim_s: float | None = in_python(
        "Seconds removed when the audio is full.", unset="a third, at most 10"
    ).as_field(None)
    beam_size: int = in_python("Hypotheses of the beam search; 1 is greedy.", least=1).as_field(5)
    task: Task = in_python(
        "translate: translate into English.",
        choices=("transcribe", "translate"),
        sottovoce=ApiField("task", "`transcribe`, the default, or `translate` into English"),
    ).as_field("transcribe")
    init_prompt: str = _in_policy(
        "Text before the session; dropped as text is added.",
        sottovoce=ApiField("prompt", "text before the session"),
    ).as_field("")
    static_prompt: str = _in_policy(
        "Terms and names; kept for the whole session.",
        sottovoce=ApiField(
            "terms", "names and expected words, separated by commas", kind="texts", reads=", ".join
        ),
    ).as_field("")
    max_context_tokens: int = _in_policy(
        "Most tokens of prompts and earlier text for an update.", least=0, most=223
    ).as_field(223)
    tail_s: float | None = Option(
        "Seconds of padding after the audio.",
        unset="as the model needs",
        group="Padding",
        key="tail",
        least=0.0,
        most=30.0,
    ).as_field(None)
    max_pause_s: float = in_python(
        "Longest pause after which an utterance continues with its audio and text as context.",
        least=0.0,
        may_be_infinite=True,
    ).as_field(3.0)
    stall_timeout_s: float = in_python(
        "Most seconds of audio in the buffer without words.", least=1.0, may_be_infinite=True
    ).as_field(5.0)
    sentence_s: float = in_python(
        "Speech without a pause becomes final at the end of a sentence after this many seconds.",
        least=1.0,
        may_be_infinite=True,
    ).as_field(10.0)
    longest_final_s: float = in_python(
        "Speech without a pause becomes final after this many seconds at the latest.",
        least=1.0,
        may_be_infinite=True,
    ).as_field(30.0)
    max_repeats: int = in_python("How often words may repeat themselves.", least=1).as_field(4)
    no_speech_threshold: float = in_python(
        "An update with a higher no-speech probability and an improbable text is empty.", least=0.0, most=1.0
    ).as_field(0.6)
    logprob_threshold: float = in_python("A text with a lower mean log-probability is improbable.").as_field(
        -1.0
    )
    recompute_tokens: int | None = in_python(
        "Newest tokens of the prefix that each update computes again.",
        unset="all",
        least=1,
        expected="a whole number of at least 1 or None",
    ).as_field(16)

    def __post_init__(self) -> None:
        check_options(self)
        if not 0.0 <= self.trim_step_s < self.audio_max_len_s:
            raise OptionError(f"audio_trim_s: expected less than audio_max_len_s, got {self.audio_trim_s}")
        if self.chunk_s > self.audio_max_len_s:
            raise OptionError(f"chunk_s: expected at most audio_max_len_s, got {self.chunk_s}")
        if math.isnan(self.logprob_threshold):
            raise OptionError("logprob_threshold: expected a number, got nan")

    @property
    def trim_step_s(self) -> float:
        """Seconds that are removed when the audio is full."""
        return min(10.0, self.audio_max_len_s / 3) if self.audio_trim_s is None else self.audio_trim_s


@dataclass(frozen=True, slots=True)
class LiveOptions(TextOptions):
    """Options of a live session that clients may set; named as in `Model.session`. Raises: OptionError."""

    languages: tuple[str, ...] = _in_language(
        "Languages that may be spoken.",
        kind="languages",
        short="-l --language",
        cli_default="auto",
        metavar="auto|CODE[,CODE…]",
        sottovoce=ApiField(
            "languages",
            "languages that may be spoken: codes (pt, por), tags (pt-BR) or names, separated by "
            "commas; default `auto`: all",
            kind="languages",
        ),
    ).as_field(())
    """Empty: all of the model."""
    switching: Switching = _in_language(
        "restart: follow changes of language between sentences; off: do not.",
        choices=get_args(Switching),
        sottovoce=ApiField(
            "switching", "`restart` (default): follow changes of language between sentences; `off`: do not"
        ),
    ).as_field("restart")
    switch_certainty: float = _in_language(
        "Posterior of another language at which the session switches; higher is later and more certain.",
        least=0.5,
        most=1.0,
        sottovoce=ApiField(
            "switch_certainty", "posterior of another language, 0.5 to 1, at which the session switches"
        ),
    ).as_field(0.8)
    captions: Captions = Option(
        "firm: only committed words; revisable: also later words, which may change.",
        group="Captions",
        choices=get_args(Captions),
        sottovoce=ApiField(
            "captions", "`firm` (default): only committed words; `revisable`: also text that may change"
        ),
    ).as_field("firm")
    finals: Finals = Option(
        "committed: finals have the committed words; read: each utterance is transcribed again at its end.",
        group="Captions",
        choices=get_args(Finals),
        sottovoce=ApiField(
            "finals",
            "text of finals: `committed` (default): the words so far; `read`: each utterance is transcribed "
            "again at its end, as a recording is",
        ),
    ).as_field("committed")
    final_wait_s: float = in_python(
        "Most seconds that the end of a session waits for finals of a second pass.",
        least=0.0,
        may_be_infinite=True,
    ).as_field(2.0)
    vad: bool | VadStreamOptions = in_python(
        "Decode only where speech is.", kind="flag", sottovoce=ApiField("vad", "`false`: decode silence too")
    ).as_field(True)
    """True uses the default options."""
    speakers: str = Option(
        "Identify the speaker of each word: auto, or the largest number. Finals may correct it.",
        group="Speakers",
        metavar="auto|N",
        cli_default=None,
        sottovoce=ApiField(
            "speakers",
            "identify the speaker of each word: `auto`, or the largest number; default `false`",
            kind="speakers",
        ),
    ).as_field("")
    """Empty: no diarization."""
    decoding: LiveDecodingOptions = field(default_factory=LiveDecodingOptions)

    def __post_init__(self) -> None:
        TextOptions.__post_init__(self)
