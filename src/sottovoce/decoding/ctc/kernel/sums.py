"""Compiled: sums of probabilities whose logarithms are known."""

from __future__ import annotations

import numpy as np

from sottovoce.jit import inner
from sottovoce.lm.base import Floats

_LARGEST, _PER_NAT = 18, 16
"""Nats beyond which a sum is its larger part, to the precision of a float32; pieces a nat."""


def _pieces() -> Floats:
    """log(1 + exp(-x)) from 0 to `_LARGEST` as cubics (n, 4), by powers of the way through a piece.

    They meet in value and slope; the error is below 1e-8. One piece more, as differences are rounded.
    """
    knots = np.arange(_LARGEST * _PER_NAT + 2) / _PER_NAT
    values, slopes = np.log1p(np.exp(-knots)), -1 / (1 + np.exp(knots)) / _PER_NAT
    rise = np.diff(values)
    square = 3 * rise - 2 * slopes[:-1] - slopes[1:]
    cube = slopes[:-1] + slopes[1:] - 2 * rise
    cubics: Floats = np.stack((values[:-1], slopes[:-1], square, cube), axis=1).astype(np.float32)
    return cubics


_CUBICS = _pieces()


@inner
def log_add(a: np.float32, b: np.float32) -> np.float32:
    """log(exp(a) + exp(b)); what is too small to change a float32 is left out."""
    high, low = (a, b) if a > b else (b, a)
    if not low > high - np.float32(_LARGEST):  # and where both are -inf
        return high
    at = (high - low) * np.float32(_PER_NAT)
    piece = np.uint32(at)
    way = at - np.float32(piece)
    square, cube = _CUBICS[piece, 2], _CUBICS[piece, 3]
    more: np.float32 = _CUBICS[piece, 0] + way * (_CUBICS[piece, 1] + way * (square + way * cube))
    return high + more
