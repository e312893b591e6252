"""Options of a live session, and the rule of `eagerness`: a complete text ends a turn after a shorter pause.

Early in every pause the decoder predicts the token after the last word. These probabilities and the length of
the pause give the probability that the turn is over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from sottovoce.errors import OptionError
from sottovoce.models.dims import EXACT, EncoderMode
from sottovoce.options.decoding import LONGEST_UTTERANCE_S, VadStreamOptions
from sottovoce.options.schema import ApiField, Option, check_options, in_python
from sottovoce.options.text import TextOptions
from sottovoce.text.languages import find_language
from sottovoce.types import Task

if TYPE_CHECKING:  # options load no model
    from sottovoce.decoding.search import Fusion
    from sottovoce.language.probe import ProbeOptions

Switching: TypeAlias = Literal["off", "restart"]
"""How a change of language is followed."""
Captions: TypeAlias = Literal["firm", "revisable"]
Finals: TypeAlias = Literal["committed", "read"]
Latency: TypeAlias = Literal["low", "balanced", "sure"]
Eagerness: TypeAlias = Literal["low", "medium", "high"]
_in_policy = partial(Option, group="When words are said")
_in_language = partial(Option, group="Language")


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """Which words are stable.

    commit_prob: those of at least this probability. agreed_s: others after so many seconds in consecutive
    hypotheses.

    Raises:
        OptionError: a value is out of range.
    """

    commit_prob: float = 0.7
    agreed_s: float = 0.5

    def __post_init__(self) -> None:
        for name in ("commit_prob", "agreed_s"):
            if not getattr(self, name) >= 0:
                raise OptionError(f"{name}: expected 0 or more, got {getattr(self, name)}")


LATENCIES: Mapping[Latency, tuple[float, CommitOptions]] = {
    "low": (10.0, CommitOptions(commit_prob=0.6)),
    "balanced": (25.0, CommitOptions()),
    "sure": (50.0, CommitOptions(commit_prob=0.9, agreed_s=1.0)),
}
"""`frame_threshold` and `commit` by latency (docs/research/live.md)."""


PAUSE_MS = 192.0
"""Silence after which the decoder predicts: six windows of voice activity detection."""
USUAL_PAUSE_S = VadStreamOptions().hangover_ms / 1000
"""The pause that ends a turn if the decoder failed."""
FLOOR = 1e-4
"""Least probability of a continuation."""


def vad_with_pauses(option: bool | VadStreamOptions) -> VadStreamOptions:
    """Return options of voice activity detection that finds pauses of `PAUSE_MS`.

    Raises:
        OptionError: without detection, or with a fixed pause.
    """
    if isinstance(option, VadStreamOptions):
        if option.hangover_ms != VadStreamOptions().hangover_ms:
            raise OptionError(
                f"hangover_ms: expected none with an eagerness, which ends turns, got {option.hangover_ms:g}"
            )
        return replace(option, hangover_ms=PAUSE_MS)
    if not option:
        raise OptionError("vad: expected voice activity detection with an eagerness, got False")
    return VadStreamOptions(hangover_ms=PAUSE_MS)


@dataclass(frozen=True, slots=True)
class TextEnd:
    """Probabilities that a sentence mark, another mark or <|endoftext|> follows the last word."""

    sentence_mark: float
    other_mark: float
    end_of_text: float

    @property
    def features(self) -> tuple[float, float]:
        """Log-probabilities that a word, or a mark that ends no sentence, follows."""
        another_word = 1.0 - self.sentence_mark - self.other_mark - self.end_of_text
        return math.log(max(FLOOR, another_word)), math.log(max(FLOOR, self.other_mark))


@dataclass(frozen=True, slots=True)
class FittedTurnRule:
    """A logistic model of `TextEnd.features` and the logarithm of the pause.

    threshold: probability at which a turn ends. least_s, most_s: limits of the pause.
    """

    threshold: float
    bias: float
    weights: tuple[float, float]
    pause_weight: float = 1.44
    least_s: float = PAUSE_MS / 1000
    most_s: float = 3.0

    def pause_s(self, text_end: TextEnd) -> float:
        wanted = math.log(self.threshold / (1 - self.threshold))
        log_pause = (wanted - self._log_odds(text_end)) / self.pause_weight
        return min(self.most_s, max(self.least_s, math.exp(min(10.0, log_pause))))

    def probability(self, text_end: TextEnd, pause_s: float) -> float:
        log_odds = self._log_odds(text_end) + self.pause_weight * math.log(pause_s)
        return 1 / (1 + math.exp(-log_odds))

    def _log_odds(self, text_end: TextEnd) -> float:
        return self.bias + sum(
            weight * feature for weight, feature in zip(self.weights, text_end.features, strict=True)
        )


def _rule(threshold: float, most_s: float) -> FittedTurnRule:
    return FittedTurnRule(threshold, bias=-0.700, weights=(-0.288, -0.617), most_s=most_s)


EAGERNESS: Mapping[Eagerness, FittedTurnRule] = {
    "low": _rule(0.960, 2.0),
    "medium": _rule(0.905, 1.5),
    "high": _rule(0.777, 1.0),
}
"""With as many false ends as fixed pauses of 1.5, 0.9 and 0.5 s (`python -m benchmarks live turns fit`)."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How live speech is decoded. Names and defaults are SimulStreaming's where it has them.

    commit: None takes that of `latency`. encoder: how growing audio is encoded; None takes the checkpoint's
    mode. turns: which pause ends a turn; None takes that of `eagerness`.
    Raises: OptionError for a value out of range.
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
    ).as_field(LONGEST_UTTERANCE_S)
    max_repeats: int = in_python("How often words may repeat themselves.", least=1).as_field(4)
    no_speech_threshold: float = in_python(
        "An update with a higher no-speech probability and an improbable text is empty.", least=0.0, most=1.0
    ).as_field(0.6)
    logprob_threshold: float = in_python(
        "A text with a lower mean log-probability is improbable.", may_be_infinite=True
    ).as_field(-1.0)
    recompute_tokens: int | None = in_python(
        "Newest tokens of the prefix that each update computes again.",
        unset="all",
        least=1,
        expected="a whole number of at least 1 or None",
    ).as_field(16)
    commit: CommitOptions | None = None
    encoder: EncoderMode | None = None
    fusion: Fusion | None = None
    turns: FittedTurnRule | None = None

    def __post_init__(self) -> None:
        check_options(self)
        if not 0.0 <= self.trim_step_s < self.audio_max_len_s:
            raise OptionError(f"audio_trim_s: expected less than audio_max_len_s, got {self.audio_trim_s}")
        if self.chunk_s > self.audio_max_len_s:
            raise OptionError(f"chunk_s: expected at most audio_max_len_s, got {self.chunk_s}")
        if self.tail_s is not None and self.encoder == EXACT:
            raise OptionError(f"tail_s: expected none where encoder is the full window, got {self.tail_s}")

    @property
    def trim_step_s(self) -> float:
        """Seconds that are removed when the audio is full."""
        return min(10.0, self.audio_max_len_s / 3) if self.audio_trim_s is None else self.audio_trim_s

    @property
    def near_frames(self) -> float:
        """Least distance (frames of 20 ms) of a committed word from the end of the audio."""
        return LATENCIES[self.latency][0] if self.frame_threshold is None else self.frame_threshold

    @property
    def commit_rule(self) -> CommitOptions:
        return self.commit or LATENCIES[self.latency][1]

    @property
    def turn_rule(self) -> FittedTurnRule | None:
        """None: a fixed pause ends a turn."""
        return self.turns or (EAGERNESS[self.eagerness] if self.eagerness else None)


@dataclass(frozen=True, slots=True)
class LiveOptions(TextOptions):
    """Options of a live session, named as in `Model.session`.

    probe: which stretches tell the language; None takes the default lengths.
    Raises: OptionError for a value out of range.
    """

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
    stream: StreamOptions = field(default_factory=StreamOptions)
    probe: ProbeOptions | None = None
    first_language_s: float = in_python(
        "Seconds of speech after which the likeliest language is taken.", least=0.0, expected="seconds from 0"
    ).as_field(3.5)

    def __post_init__(self) -> None:
        TextOptions.__post_init__(self)  # without super(): the class with slots is another one
        object.__setattr__(self, "languages", tuple(map(find_language, self.languages)))
