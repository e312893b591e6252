"""Compiled: numbers as machine code sees them: sums of log-probabilities, bits of floats, calls by
address.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from sottovoce.jit import inner
from sottovoce.lm.base import Floats

_LARGEST, _PER_NAT = 18, 16
"""Nats beyond which a sum is its larger part, to the precision of a float32; pieces a nat."""


def _pieces() -> Floats:
    """log(1 + exp(-x)) from 0 to `_LARGEST` as piecewise cubics (n, 4), by powers of the position in a piece.

    Pieces meet in value and slope; the error is below 1e-8. One piece more, as differences are rounded.
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
    """Compute log(exp(a) + exp(b)) to the precision of a float32."""
    high, low = (a, b) if a > b else (b, a)
    if not low > high - np.float32(_LARGEST):  # and where both are -inf
        return high
    at = (high - low) * np.float32(_PER_NAT)
    piece = np.uint32(at)
    way = at - np.float32(piece)
    square, cube = _CUBICS[piece, 2], _CUBICS[piece, 3]
    more: np.float32 = _CUBICS[piece, 0] + way * (_CUBICS[piece, 1] + way * (square + way * cube))
    return high + more


@intrinsic
def call(_typing: Any, address: Any, state: Any, token_id: Any, place: Any) -> Any:
    """Call the function at an address with three int64; it returns an int64."""

    def generated(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        number = ir.IntType(64)
        function = ir.FunctionType(number, [number] * 3).as_pointer()
        return builder.call(builder.inttoptr(args[0], function), list(args[1:]))

    return types.int64(types.int64, types.int64, types.int64, types.int64), generated


@intrinsic
def float_of_bits(_typing: Any, bits: Any) -> Any:
    """Reinterpret the lower half of an int64 as a float32."""

    def generated(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.trunc(args[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.int64), generated


@intrinsic
def bits_of_float(_typing: Any, value: Any) -> Any:
    """Reinterpret a float32 as an int32."""

    def generated(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), generated
