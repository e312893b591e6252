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
HEAD = np.dtype([("count", np.int32), ("best", np.float32)])


class Candidates(NamedTuple):
    """At most K candidates (K,) `CANDIDATE`: what they rank by, their paths' log-probability, the beam that
    they continue, the token that they say (-1: none), and its arc.

    heap: (K,) their places, the worst first. order: (K,) best first, once they are sorted. head: (1,)
    `HEAD`, how many there are and the best score.
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
        _sink(heap, found, count)
        return
    candidates.head[0].count = count + 1
    at = count
    while at > 0 and found[heap[(at - 1) >> 1]].score > score:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = place


@inner
def sort(candidates: Candidates) -> None:
    """Order candidates best first: the worst comes off the heap again and again."""
    heap = candidates.heap
    for n in range(candidates.head[0].count, 0, -1):
        candidates.order[n - 1] = heap[0]
        heap[0] = heap[n - 1]
        if n > 2:
            _sink(heap, candidates.list, n - 1)


@inner
def _sink(heap: SmallInts, found: Records, count: int) -> None:
    """Put the heap's first place where it belongs."""
    place, at = heap[0], 0
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
