"""Where one language ends and the next begins: the moment on whose sides the two are the surest.

Positions are whatever the caller counts in. Not known here: audio, and how moments are found.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sottovoce.language.follow import FLOOR
from sottovoce.language.probe import ProbedLanguage

BORDER_NATS = 0.5
"""What another moment than the first, the quietest, has to win."""


def sides_of(moments: Sequence[int], first: int, end: int, length: int) -> list[tuple[int, int]]:
    """Return the stretches [start, end) before each of some moments, then those after each.

    length: of a stretch, at most. They stay within [first, end).
    """
    before = [(max(first, at - length), at) for at in moments]
    return before + [(at, min(end, at + length)) for at in moments]


def surest_border(moments: Sequence[int], probed: Sequence[ProbedLanguage], source: int, target: int) -> int:
    """Return the moment before which one language and after which the other is the surest.

    probed: of `sides_of` the moments. source, target: places of the two languages in the probabilities.
    """
    here, there = (
        np.log([max(float(one.probabilities[place]), FLOOR) for one in side])
        for side, place in ((probed[: len(moments)], source), (probed[len(moments) :], target))
    )
    nats = here + there
    nats[0] += BORDER_NATS
    return moments[int(nats.argmax())]
