"""Compiled: calls to C functions whose address is known when the code runs, and numbers in their answers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic


@intrinsic
def call(_typing: Any, address: Any, state: Any, token_id: Any, place: Any) -> Any:
    """The int64 that the function at an address returns for three int64."""

    def generated(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        number = ir.IntType(64)
        function = ir.FunctionType(number, [number] * 3).as_pointer()
        return builder.call(builder.inttoptr(args[0], function), list(args[1:]))

    return types.int64(types.int64, types.int64, types.int64, types.int64), generated


@intrinsic
def float_of_bits(_typing: Any, bits: Any) -> Any:
    """The float32 whose bits are the lower half of an int64."""

    def generated(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.trunc(args[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.int64), generated


@intrinsic
def bits_of_float(_typing: Any, value: Any) -> Any:
    """The bits of a float32 as an int32."""

    def generated(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), generated
