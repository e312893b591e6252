"""Minimum-edit alignment of two word lists. Normalise words first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Pair: TypeAlias = tuple[int | None, int | None]
"""Indices of a hypothesis word and a reference word; None is a gap."""
Costs: TypeAlias = npt.NDArray[np.float64]

_GAP = 1.0
SUBSTITUTION = 1.0 + 1e-6
"""Slightly more than a gap, so that ties prefer the alignment with the most matches."""


def align_words(
    hypothesis: Sequence[str], reference: Sequence[str], *, substitution: float = SUBSTITUTION
) -> list[Pair]:
    """Align two lists of words with the fewest edits; pairs in order.

    substitution: cost of pairing different words; math.inf forbids it. Costs are stored every sqrt(n) words.
    """
    ids = {word: i for i, word in enumerate({*hypothesis, *reference})}
    rows = [ids[word] for word in hypothesis]
    columns = np.array([ids[word] for word in reference], dtype=np.int64)
    block = max(1, math.isqrt(len(rows)))
    firsts = range(0, len(rows), block)
    borders = [_GAP * np.arange(len(columns) + 1)]  # costs before the first word of each block
    for first in firsts[:-1]:
        part = rows[first : first + block]
        borders.append(_costs(borders[-1], first, part, columns, substitution)[-1].copy())
    back: list[Pair] = []
    end = len(columns)
    for first, before in zip(reversed(firsts), reversed(borders), strict=True) if rows else ():
        part = rows[first : first + block]
        costs = _costs(before[: end + 1], first, part, columns[:end], substitution)
        pairs, end = _trace(costs, part, columns[:end], substitution)
        back += [(None if i is None else first + i, j) for i, j in pairs]
    back += [(None, j) for j in range(end - 1, -1, -1)]
    return back[::-1]


def equal_words(words: Sequence[str], others: Sequence[str]) -> list[int | None]:
    matches: list[int | None] = [None] * len(words)
    for i, j in align_words(words, others, substitution=math.inf):
        if i is not None:
            matches[i] = j
    return matches


def _costs(
    before: Costs, first: int, rows: Sequence[int], columns: npt.NDArray[np.int64], substitution: float
) -> Costs:
    steps = _GAP * np.arange(len(columns) + 1)
    cost = np.empty((len(rows) + 1, len(columns) + 1))
    cost[0] = before
    for i, word in enumerate(rows, 1):
        diagonal = cost[i - 1, :-1] + np.where(columns == word, 0.0, substitution)
        best = np.concatenate(([(first + i) * _GAP], np.minimum(diagonal, cost[i - 1, 1:] + _GAP)))
        # Insertions run along the row: cost[i, j] = min over k <= j of best[k] + gap * (j - k).
        cost[i] = np.minimum.accumulate(best - steps) + steps
    return cost


def _trace(
    cost: Costs, rows: Sequence[int], columns: npt.NDArray[np.int64], substitution: float
) -> tuple[list[Pair], int]:
    i, j = len(rows), len(columns)
    pairs: list[Pair] = []
    while i:
        step = 0.0 if j and rows[i - 1] == columns[j - 1] else substitution
        if j and math.isclose(cost[i, j], cost[i - 1, j - 1] + step, abs_tol=1e-9):
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif math.isclose(cost[i, j], cost[i - 1, j] + _GAP, abs_tol=1e-9):
            i -= 1
            pairs.append((i, None))
        else:
            j -= 1
            pairs.append((None, j))
    return pairs, j
