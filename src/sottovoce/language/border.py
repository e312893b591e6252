"""Change point of a language: the moment whose sides the probe separates best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sottovoce.language.probe import ProbedLanguage

FLOOR = 1e-3
"""Least probability of a language, so that one side cannot decide alone."""
BORDER_NATS = 0.5
"""Advantage of the first, quietest moment."""


def sides_of(moments: Sequence[int], first: int, end: int, length: int) -> list[tuple[int, int]]:
    """Return the stretches [start, end) before each moment, then those after it, within [first, end).

    length: of a stretch, at most.
    """
    before = [(max(first, at - length), at) for at in moments]
    return before + [(at, min(end, at + length)) for at in moments]


def surest_border(moments: Sequence[int], probed: Sequence[ProbedLanguage], source: int, target: int) -> int:
    """Return the moment that best separates two languages.

    probed: the stretches of `sides_of` the moments. source, target: indices of the languages.
    """
    here, there = (
        np.log([max(float(one.probabilities[place]), FLOOR) for one in side])
        for side, place in ((probed[: len(moments)], source), (probed[len(moments) :], target))
    )
    nats = here + there
    nats[0] += BORDER_NATS
    return moments[int(nats.argmax())]
