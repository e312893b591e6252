"""The deferral rule of a cascade of two models: what the first one wrote that the second one reads again.

Source of the term: Narasimhan et al. 2022, "Post-hoc estimators for learning to defer to an expert".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from sottovoce.options.schema import Need, Option, Values, check_options
from sottovoce.types import Segment


def _has_second(values: Values) -> bool:
    return values.get("second_model") is not None


SECOND = Need("needs a --second-model", _has_second, when="given")
_limit = partial(Option, group="Second model", needs=(SECOND,))


@dataclass(frozen=True, slots=True)
class DeferralOptions:
    """Limits beyond which a segment is in doubt; speech without words always is.

    Raises: OptionError for values out of range.
    """

    logprob: float = _limit(
        "Mean log-probability of a window below which its text is in doubt.",
        key="defer_logprob",
        most=0.0,
    ).as_field(-0.6)
    word: float = _limit(
        "Probability of a word below which its segment is in doubt; words are timed for it, but for 0.",
        key="defer_word",
        least=0.0,
        most=1.0,
    ).as_field(0.5)

    def __post_init__(self) -> None:
        check_options(self)

    def defers(self, segment: Segment) -> bool:
        """Return whether a segment, with its words timed, is left to the second model; a drawn one is."""
        return (
            segment.avg_logprob < self.logprob
            or segment.temperature > 0.0
            or any(word.probability < self.word for word in segment.words or ())
        )
