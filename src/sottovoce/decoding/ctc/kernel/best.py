"""Compiled: the best candidates of a frame, kept in a heap whose top is the worst of them.

Heap and order hold numbers that sort as (score, place) does: comparing them looks nothing up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sottovoce.decoding.ctc.kernel.numeric import bits_of_float
from sottovoce.decoding.ctc.kernel.slots import NEVER
from sottovoce.jit import compiled, inner
from sottovoce.lm.base import Ints, Records

CANDIDATE = np.dtype(
    [
        ("score", np.float32),
        ("acoustic", np.float32),
        ("token", np.int64),
        ("arc", np.int64),
        ("source", np.int32),
    ],
    align=True,
)
_MOVES = 64
"""How many places candidates may move when they are sorted, on average."""
HEAD = np.dtype(
    [("count", np.int64), ("best", np.float32), ("limit", np.float32), ("threshold", np.float32)], align=True
)
_PLACE = 0xFFFFFFFF


class Candidates(NamedTuple):
    """At most K candidates.

    list: (K,) `CANDIDATE`: score, log-probability of its paths, beam that it continues, token that it appends
    (-1: none) and arc. keys: (K,) of them, see `key_of`. heap: (K,) keys, the worst first, once there are K.
    order: (K,) keys, best first, after `sort`. head: (1,) `HEAD`: count, best score, and the score that a new
    candidate must exceed.
    """

    list: Records
    keys: Ints
    heap: Ints
    order: Ints
    head: Records


@compiled
def new_candidates(size: int) -> Candidates:
    """Allocate room for `size` candidates."""
    return Candidates(
        np.empty(size, CANDIDATE),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(1, HEAD),
    )


@inner
def clear(candidates: Candidates, threshold: float) -> None:
    """Remove all candidates. threshold: nats below the best at which candidates are dropped; inf: never."""
    head = candidates.head[0]
    head.count = 0
    head.best = NEVER
    head.limit = NEVER
    # A little more, so that rounding drops nothing.
    head.threshold = np.float32(threshold * 1.000001)


@inner
def key_of(score: np.float32, place: int) -> int:
    """Make a number that sorts by score, then by lower place."""
    bits: int = bits_of_float(score)  # type: ignore[call-arg]  # numba adds the first
    bits = bits if bits >= 0 else bits ^ 0x7FFFFFFF
    return (np.int64(bits) << 32) | (_PLACE - place)


@inner
def candidate_of(key: int) -> int:
    """Return the place of a key's candidate."""
    return _PLACE - (key & _PLACE)


@inner
def offer(
    candidates: Candidates, score: np.float32, source: int, token: int, arc: int, acoustic: np.float32
) -> None:
    """Add a candidate, in place of the worst where there are K."""
    head, heap = candidates.head[0], candidates.heap
    if score <= head.limit:
        return
    count, size = head.count, len(heap)
    place = candidate_of(heap[0]) if count == size else count
    key, chosen = key_of(score, place), candidates.list[place]
    chosen.score = score
    chosen.acoustic = acoustic
    chosen.source = source
    chosen.token = token
    chosen.arc = arc
    candidates.keys[place] = key
    head.best = max(head.best, score)
    if count == size:
        _sink(heap, key, 0, size)
    else:
        head.count = count + 1
        if count + 1 == size:
            _pile(heap, candidates.keys)
    lowest = candidates.list[candidate_of(heap[0])].score if head.count == size else NEVER
    head.limit = max(lowest, head.best - head.threshold)


@inner
def sort(candidates: Candidates) -> None:
    """Sort candidates, best first.

    They come nearly in order, as beams do, so insertion sort is fast; once it has moved too many, heap sort
    takes over.
    """
    count, keys, order = candidates.head[0].count, candidates.keys, candidates.order
    n_moves_left = _MOVES * count
    for place in range(count):
        at, key = place, keys[place]
        while at > 0 and order[at - 1] < key:
            order[at] = order[at - 1]
            at -= 1
        order[at] = key
        n_moves_left -= place - at
        if n_moves_left < 0:
            _sort_slowly(candidates)
            return


@inner
def _sort_slowly(candidates: Candidates) -> None:
    heap, keys, count = candidates.heap, candidates.keys, candidates.head[0].count
    if count < len(heap):  # it is no heap yet
        for i in range(count):
            heap[i] = keys[i]
        for at in range(count // 2 - 1, -1, -1):
            _sink(heap, heap[at], at, count)
    for n in range(count, 0, -1):
        candidates.order[n - 1] = heap[0]
        if n > 1:
            _sink(heap, heap[n - 1], 0, n - 1)


@inner
def _pile(heap: Ints, keys: Ints) -> None:
    """Make the heap, once there are K. Candidates that come best first are one when reversed."""
    count = len(heap)
    for i in range(count):
        heap[i] = keys[count - 1 - i]
    for at in range(count // 2 - 1, -1, -1):
        _sink(heap, heap[at], at, count)


@inner
def _sink(heap: Ints, key: int, at: int, count: int) -> None:
    """Sift a key down from a place of the heap."""
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = key
