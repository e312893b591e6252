"""Compiled: the tokens of a frame that extend beams, and a heap of the best candidates.

The most probable tokens come first: after them, few others can still enter the beam. Heap and order hold
keys that sort as (score, place), so that comparisons look nothing up.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from sottovoce.ctc.kernel.beams import NEVER, bits_of_float
from sottovoce.jit import compiled, inner
from sottovoce.lm.base import Floats, Ints, Records

N_FIRST = 16
"""How many tokens come first, in order."""
_BLOCK = 64


class Tokens(NamedTuple):
    """Tokens of a frame to extend by (V,), and their log-probabilities (V,)."""

    ids: Ints
    log_probs: Floats


@compiled
def new_tokens(n_labels: int) -> Tokens:
    return Tokens(np.empty(n_labels, np.int64), np.empty(n_labels, np.float32))


@numba.njit(cache=True, nogil=True, fastmath={"nnan", "nsz", "reassoc"})
def highest(values: Floats, begin: int, end: int) -> np.float32:
    """Return the index of the highest of values[begin:end], at least one value, no NaN."""
    top: np.float32 = values[begin]
    for i in range(begin, end):
        top = values[i] if values[i] > top else top
    return top


@inner
def likeliest(frame: Floats, least: np.float32, blank: int, most: int, found: Tokens) -> int:
    """Collect the `most` likeliest tokens of frame (V,) above `least`, in order; return their number.

    Ties go to the lower index.
    """
    n, bar = 0, least
    for begin in range(0, len(frame), _BLOCK):
        end = min(begin + _BLOCK, len(frame))
        if highest(frame, begin, end) <= bar:
            continue
        for token in range(begin, end):
            value = frame[token]
            if value <= bar or token == blank:
                continue
            place = n if n < most else n - 1
            while place > 0 and found.log_probs[place - 1] < value:
                found.log_probs[place], found.ids[place] = found.log_probs[place - 1], found.ids[place - 1]
                place -= 1
            found.log_probs[place], found.ids[place] = value, token
            n = min(n + 1, most)
            if n == most:
                bar = max(least, found.log_probs[n - 1])
    return n


@inner
def others(frame: Floats, least: np.float32, blank: int, most: int, first: int, found: Tokens) -> int:
    """Collect at most `most` further tokens of frame (V,) above `least`, unordered; return their number.

    found: the result of `likeliest`, overwritten.
    """
    last, last_value, n = found.ids[first - 1], found.log_probs[first - 1], 0
    if last_value <= least:
        return 0
    for begin in range(0, len(frame), _BLOCK):
        end = min(begin + _BLOCK, len(frame))
        if highest(frame, begin, end) <= least:
            continue
        for token in range(begin, end):
            value = frame[token]
            if value <= least or token == blank or value > last_value:
                continue
            if value == last_value and token <= last:
                continue
            found.log_probs[n], found.ids[n] = value, token
            n += 1
    if n > most:
        _keep_most(found, n, most)
    return min(n, most)


@inner
def _keep_most(found: Tokens, n: int, most: int) -> None:
    """Move the `most` likeliest of n tokens to the front (quickselect)."""
    low, high, last = 0, n - 1, most - 1
    ids, ranked = found.ids, found.log_probs
    while low < high:
        pivot, i, j = ranked[(low + high) >> 1], low, high
        while i <= j:
            while ranked[i] > pivot:
                i += 1
            while ranked[j] < pivot:
                j -= 1
            if i <= j:
                ranked[i], ranked[j] = ranked[j], ranked[i]
                ids[i], ids[j] = ids[j], ids[i]
                i, j = i + 1, j - 1
        if last <= j:
            high = j
        elif last >= i:
            low = i
        else:
            return


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
"""Average number of places that candidates may move in insertion sort."""
HEAD = np.dtype(
    [("count", np.int64), ("best", np.float32), ("limit", np.float32), ("threshold", np.float32)], align=True
)
_PLACE = 0xFFFFFFFF


class Candidates(NamedTuple):
    """At most K candidates.

    list: (K,) `CANDIDATE`: score, log-probability of its paths, continued beam, appended token (-1: none)
    and arc. keys: (K,), see `key_of`. heap: (K,) keys, the worst first, once there are K. order: (K,)
    keys, best first, after `sort`. head: (1,) `HEAD`: count, best score, and the score that a new
    candidate must exceed.
    """

    list: Records
    keys: Ints
    heap: Ints
    order: Ints
    head: Records


@compiled
def new_candidates(size: int) -> Candidates:
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
    return _PLACE - (key & _PLACE)


@inner
def offer(
    candidates: Candidates, score: np.float32, source: int, token: int, arc: int, acoustic: np.float32
) -> None:
    """Add a candidate, replacing the worst of K."""
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

    They are nearly sorted, so insertion sort is fast; after too many moves, heap sort takes over.
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
    """Make the heap, once there are K; candidates that come best first only need reversing."""
    count = len(heap)
    for i in range(count):
        heap[i] = keys[count - 1 - i]
    for at in range(count // 2 - 1, -1, -1):
        _sink(heap, heap[at], at, count)


@inner
def _sink(heap: Ints, key: int, at: int, count: int) -> None:
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
