"""Which words of two texts are the same word: the pairing with the fewest edits.

Knows words as strings to compare; what makes two spellings alike is decided by whoever levels them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int32]


def paired(given: Sequence[str], heard: Sequence[str]) -> list[int | None]:
    """For each given word the index of the same word among those heard, in order; None where there is none.

    Global alignment with costs 1 for a word too many or missing and 2 for another word, so that a word is
    paired with its equal alone. Memory: one byte for each pair of words.
    """
    pairs: list[int | None] = [None] * len(given)
    if not given or not heard:
        return pairs
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(word, len(numbers)) for word in heard], np.int32)
    same = [codes == numbers.get(word, -1) for word in given]
    came_from = _table(same, len(heard))
    row, column = len(given), len(heard)
    while row and column:
        step = came_from[row - 1, column - 1]
        if step == _PAIR:
            pairs[row - 1] = column - 1
        row -= step != _HEARD_ONLY
        column -= step != _GIVEN_ONLY
    return pairs


_PAIR, _GIVEN_ONLY, _HEARD_ONLY = 0, 1, 2


def _table(same: Sequence[npt.NDArray[np.bool_]], n_heard: int) -> npt.NDArray[np.uint8]:
    """The last step of the cheapest path to each cell (n_given, n_heard).

    Within a row cost[j] = min(entered[j], cost[j - 1] + 1), which is a running minimum of entered[j] - j.
    """
    columns = np.arange(n_heard + 1, dtype=np.int32)
    cost: Int = columns.copy()
    steps = np.empty((len(same), n_heard), np.uint8)
    for row, equal in enumerate(same, 1):
        entered = np.empty_like(cost)
        entered[0] = row
        above = cost[1:] + 1
        diagonal = np.where(equal, cost[:-1], 2 * len(columns) + 2 * len(same))
        entered[1:] = np.minimum(above, diagonal)
        cost = (np.minimum.accumulate(entered - columns) + columns).astype(np.int32)
        best = cost[1:]
        steps[row - 1] = np.where(best == diagonal, _PAIR, np.where(best == above, _GIVEN_ONLY, _HEARD_ONLY))
    return steps


@lru_cache(maxsize=100_000)
def unlikeness(first: str, second: str) -> float:
    """Edits of letters from one word to the other, over the letters of the longer one: 0 to 1."""
    if first == second:
        return 0.0
    if not first or not second:
        return 1.0
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(second, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != other))
    return row[-1] / max(len(first), len(second))
