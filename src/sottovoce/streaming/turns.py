"""The end of a turn: a complete text ends it after a shorter pause.

Early in every pause the decoder predicts the token after the last word. The probabilities of a mark, the end
of the text or another word, and the length of the pause, give the probability that the turn is over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from sottovoce.errors import OptionError
from sottovoce.options.live import Eagerness
from sottovoce.options.vad import VadStreamOptions

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
        """Log-probabilities of another word and of another mark."""
        another_word = 1.0 - self.sentence_mark - self.other_mark - self.end_of_text
        return math.log(max(FLOOR, another_word)), math.log(max(FLOOR, self.other_mark))


class TurnRule(Protocol):
    """Decides which pause ends a turn."""

    def pause_s(self, text_end: TextEnd) -> float:
        """Return the pause (s) that ends a turn after this text."""
        ...

    def probability(self, text_end: TextEnd, pause_s: float) -> float:
        """Return the probability that the turn is over after this pause (s)."""
        ...


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
