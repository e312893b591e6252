"""Options of a live session, and the rule of `eagerness`: a complete text ends a turn after a shorter pause.

Early in every pause the decoder predicts the token after the last word. These probabilities and the length of
the pause give the probability that the turn is over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from sottovoce.decoding.search import Fusion
from sottovoce.errors import OptionError
from sottovoce.language.probe import ProbeOptions
from sottovoce.models.dims import EXACT, EncoderMode
from sottovoce.options.decoding import VadStreamOptions
from sottovoce.options.live import Eagerness, Latency, LiveDecodingOptions, LiveOptions
from sottovoce.text.languages import find_language


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
            weight * one for weight, one in zip(self.weights, text_end.features, strict=True)
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
class StreamOptions(LiveDecodingOptions):
    """How live speech is decoded.

    commit: None takes that of `latency`. encoder: how growing audio is encoded; None takes the checkpoint's
    mode. turns: which pause ends a turn; None takes that of `eagerness`.
    Raises: OptionError for a value out of range.
    """

    commit: CommitOptions | None = None
    encoder: EncoderMode | None = None
    fusion: Fusion | None = None
    turns: FittedTurnRule | None = None

    def __post_init__(self) -> None:
        LiveDecodingOptions.__post_init__(self)  # without super(): the class with slots is another one
        if self.tail_s is not None and self.encoder == EXACT:
            raise OptionError(f"tail_s: expected none where encoder is the full window, got {self.tail_s}")

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

    @classmethod
    def of(cls, options: LiveDecodingOptions) -> StreamOptions:
        return cls(**{each.name: getattr(options, each.name) for each in fields(LiveDecodingOptions)})


@dataclass(frozen=True, slots=True)
class SessionOptions(LiveOptions):
    """How a session follows speech and languages.

    vad, speakers: for `Model.session`. stream: None takes `decoding`. first_language_s: seconds of speech
    after which the likeliest language is taken.

    Raises:
        OptionError: a value is out of range.
    """

    stream: StreamOptions = None  # type: ignore[assignment]
    probe: ProbeOptions = field(default_factory=ProbeOptions)
    first_language_s: float = 3.5

    def __post_init__(self) -> None:
        LiveOptions.__post_init__(self)
        object.__setattr__(self, "stream", self.stream or StreamOptions.of(self.decoding))
        object.__setattr__(self, "languages", tuple(map(find_language, self.languages)))
        if not self.first_language_s >= 0.0:
            raise OptionError(f"first_language_s: expected seconds from 0, got {self.first_language_s}")

    @classmethod
    def of(cls, options: LiveOptions | None, **changes: object) -> SessionOptions:
        """Return the options of a session with those that clients may set, and with the changes that are not
        None. Raises: OptionError for options of another type.
        """
        if options is not None and not isinstance(options, LiveOptions):
            raise OptionError(f"options: expected LiveOptions or SessionOptions, got {options!r:.60}")
        chosen = options
        if not isinstance(chosen, SessionOptions):
            given = chosen or LiveOptions()
            chosen = cls(**{each.name: getattr(given, each.name) for each in fields(LiveOptions)})
        known: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        return replace(chosen, **known)
