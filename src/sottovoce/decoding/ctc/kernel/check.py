"""Compiled: a fast check that emissions are log-probabilities, in one pass over them."""

from __future__ import annotations

import math

import numba
import numpy as np

from sottovoce.jit import compiled
from sottovoce.lm.base import Floats, Ints

_LEAST_SUM, _MOST_SUM = math.exp(-0.5), math.exp(0.5)
_MOST = 1e-2


@compiled
def are_plausible(log_probs: Floats, lengths: Ints) -> bool:
    """Tell whether every frame of log_probs (B, T, V) within lengths (B,) sums to about 1.

    False also for positive values and NaN, and in doubt: `emissions.checked` then checks every value.
    """
    for row in range(len(lengths)):
        for t in range(lengths[row]):
            total = sum_of_exp(log_probs[row, t])
            if not _LEAST_SUM < total < _MOST_SUM:
                return False
    return True


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def sum_of_exp(values: Floats) -> np.float32:
    """Approximate the sum of exp(values), values (V,), as (1 + x / 256) ** 256: a few percent low.

    Huge for a positive value.
    """
    total = np.float32(0.0)
    for i in range(len(values)):
        value = values[i]
        power = np.float32(1.0) + value * np.float32(1 / 256)
        power = np.float32(0.0) if power < np.float32(0.0) else power  # NaN stays
        power *= power
        power *= power
        power *= power
        power *= power
        power *= power
        power *= power
        power *= power
        power *= power
        total += power + (np.float32(100.0) if value > np.float32(_MOST) else np.float32(0.0))
    return total
