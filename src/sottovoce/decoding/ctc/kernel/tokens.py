"""Compiled: the tokens of a frame that extend beams, the likeliest ones first and apart.

Once the likeliest have been offered, few others can still enter the beam, however many labels there are.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from sottovoce.jit import compiled, inner
from sottovoce.lm.base import Floats, Ints

N_FIRST = 16
"""How many tokens come first, in order."""
_BLOCK = 64


class Tokens(NamedTuple):
    """Tokens of a frame to extend by (V,), and their log-probabilities (V,)."""

    ids: Ints
    log_probs: Floats


@compiled
def new_tokens(n_labels: int) -> Tokens:
    """Allocate room for all labels."""
    return Tokens(np.empty(n_labels, np.int64), np.empty(n_labels, np.float32))


@numba.njit(cache=True, nogil=True, fastmath={"nnan", "nsz", "reassoc"})
def highest(values: Floats, begin: int, end: int) -> np.float32:
    """Find the highest of values[begin:end], values (V,): at least one, no NaN."""
    top: np.float32 = values[begin]
    for i in range(begin, end):
        top = values[i] if values[i] > top else top
    return top


@inner
def likeliest(frame: Floats, least: np.float32, blank: int, most: int, found: Tokens) -> int:
    """Collect the `most` likeliest tokens of frame (V,) above `least`, in order; return their number.

    Of equally likely ones those of lower index come first.
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
    """Collect tokens of frame (V,) above `least` after the `first` likeliest; return their number.

    found: the result of `likeliest`, overwritten. At most the `most` likeliest, in no order.
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
