"""Compiled: the best candidates of a frame, kept in a heap whose top is the worst of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sottovoce.decoding.ctc.kernel.slots import NEVER
from sottovoce.jit import compiled, inner
from sottovoce.lm.base import Records, SmallInts

CANDIDATE = np.dtype(
    [
        ("score", np.float32),
        ("acoustic", np.float32),
        ("source", np.int32),
        ("token", np.int64),
        ("arc", np.int64),
    ]
)
_MOVES = 64
"""How many places candidates may move when they are sorted, on average."""
HEAD = np.dtype([("count", np.int32), ("best", np.float32)])


class Candidates(NamedTuple):
    """At most K candidates (K,) `CANDIDATE`: what they rank by, their paths' log-probability, the beam that
    they continue, the token that they say (-1: none), and its arc.

    heap: (K,) their places, the worst first, once there are K. order: (K,) best first, once they are sorted.
    head: (1,) `HEAD`, how many there are and the best score.
    """

    list: Records
    heap: SmallInts
    order: SmallInts
    head: Records


@compiled
def new_candidates(size: int) -> Candidates:
    return Candidates(
        np.empty(size, CANDIDATE), np.empty(size, np.int32), np.empty(size, np.int32), np.empty(1, HEAD)
    )


@inner
def limit_of(candidates: Candidates, threshold: float) -> np.float32:
    """What a candidate's score must be above to be among the best, as far as is known."""
    lowest = NEVER
    if candidates.head[0].count == len(candidates.heap):
        lowest = candidates.list[candidates.heap[0]].score
    # A hair's breadth below the threshold, so that rounding drops nothing.
    least = candidates.head[0].best - np.float32(threshold * 1.000001)
    return max(lowest, least)


@inner
def offer(
    candidates: Candidates, score: np.float32, source: int, token: int, arc: int, acoustic: np.float32
) -> None:
    """Take a candidate in, in place of the worst where there are K."""
    heap, found = candidates.heap, candidates.list
    count = candidates.head[0].count
    is_full = count == len(heap)
    place = heap[0] if is_full else count
    if is_full and score <= found[place].score:
        return
    found[place].score = score
    found[place].acoustic = acoustic
    found[place].source = source
    found[place].token = token
    found[place].arc = arc
    candidates.head[0].best = max(candidates.head[0].best, score)
    if is_full:
        _sink(heap, found, 0, count)
        return
    candidates.head[0].count = count + 1
    if count + 1 == len(heap):
        _pile(heap, found)


@inner
def sort(candidates: Candidates) -> None:
    """Order candidates best first.

    They come nearly in order, as beams do, so that each moves a few places at most; where one has moved far
    more often than that the worst comes off the heap again and again.
    """
    count, found, order = candidates.head[0].count, candidates.list, candidates.order
    n_moves_left = _MOVES * count
    for place in range(count):
        at, score = place, found[place].score
        while at > 0 and found[order[at - 1]].score < score:
            order[at] = order[at - 1]
            at -= 1
        order[at] = place
        n_moves_left -= place - at
        if n_moves_left < 0:
            _sort_slowly(candidates)
            return


@inner
def _sort_slowly(candidates: Candidates) -> None:
    heap, found, count = candidates.heap, candidates.list, candidates.head[0].count
    if count < len(heap):  # it is no heap yet
        for i in range(count):
            heap[i] = i
        for at in range(count // 2 - 1, -1, -1):
            _sink(heap, found, at, count)
    for n in range(count, 0, -1):
        candidates.order[n - 1] = heap[0]
        heap[0] = heap[n - 1]
        if n > 2:
            _sink(heap, found, 0, n - 1)


@inner
def _pile(heap: SmallInts, found: Records) -> None:
    """Make the heap, once there are K. What comes best first is one the other way round."""
    count = len(heap)
    for i in range(count):
        heap[i] = count - 1 - i
    for at in range(count // 2 - 1, -1, -1):
        _sink(heap, found, at, count)


@inner
def _sink(heap: SmallInts, found: Records, at: int, count: int) -> None:
    """Put what is at a place of the heap where it belongs, below there."""
    place = heap[at]
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and found[heap[child + 1]].score < found[heap[child]].score:
            child += 1
        if found[heap[child]].score >= found[place].score:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = place
