"""ggml's number formats: blocks of quantised weights to float32.

A block is a row of bytes; decoders take (n_blocks, n_bytes) uint8 and return (n_blocks, n_elements)
float32, exactly the values that the layout defines. Layouts: ggml's `ggml-common.h` (structs) and
`ggml-quants.c` (meaning); f16 scales are little-endian.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BlockType:
    """One number format.

    ttype: its number at a tensor. ftype: its number in the file's header. n_elements, n_bytes: of one
    block.
    """

    name: str
    ttype: int
    ftype: int
    n_elements: int
    n_bytes: int
    decode: Callable[[Bytes], Floats]


def _half(blocks: Bytes, at: int) -> Floats:
    """The f16 at byte `at` of each block: (n_blocks, 1)."""
    pair = np.ascontiguousarray(blocks[:, at : at + 2])
    return pair.view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """(n, k) bytes to (n, 2k): all low halves, then all high halves."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """(n, 4) bytes, a little-endian word of 32 bits, to (n, 32) values of 0 or 16."""
    bits: Bytes = np.unpackbits(packed, axis=1, bitorder="little")
    values: Bytes = bits * np.uint8(16)
    return values


def _f32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f4").astype(np.float32, copy=False)


def _f16(blocks: Bytes) -> Floats:
    return _half(blocks, 0)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    values = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _half(blocks, 0) * (values.astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    values = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks, 0) * values.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _fields(packed: Bytes, n_bits: int, shifts: tuple[int, ...]) -> Bytes:
    """(n, groups, width) bytes to (n, groups, len(shifts), width): one field of n_bits at each shift."""
    return np.stack([(packed >> shift) & (2**n_bits - 1) for shift in shifts], axis=2)


def _two_bit_values(packed: Bytes) -> Bytes:
    """(n, 64) bytes to (n, 16, 16): element 128*i + 32*j + k is field j of byte 32*i + k."""
    return _fields(packed.reshape(-1, 2, 32), 2, (0, 2, 4, 6)).reshape(-1, 16, 16)


def _q2_k(blocks: Bytes) -> Floats:
    scales = _half(blocks, 80) * (blocks[:, :16] & 0x0F).astype(np.float32)
    minima = _half(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32)
    values = _two_bit_values(blocks[:, 16:80]).astype(np.float32)
    return (scales[:, :, None] * values - minima[:, :, None]).reshape(-1, 256)


def _q3_k(blocks: Bytes) -> Floats:
    scales = _half(blocks, 108) * (_six_bit_scales(blocks[:, 96:108]).astype(np.float32) - 32)
    low = _two_bit_values(blocks[:, 32:96])
    high = np.stack([(blocks[:, :32] >> bit) & 1 for bit in range(8)], axis=1)  # (n, 8, 32)
    values = low.astype(np.float32) + 4 * high.reshape(-1, 16, 16).astype(np.float32) - 4
    weights: Floats = (scales[:, :, None] * values).reshape(-1, 256)
    return weights


def _six_bit_scales(packed: Bytes) -> Bytes:
    """Sixteen 6-bit numbers of q3_K: low nibbles in bytes 0-7, two high bits each in bytes 8-11."""
    low = _nibbles(packed[:, :8])  # (n, 16)
    high = _fields(packed[:, None, 8:], 2, (0, 2, 4, 6)).reshape(-1, 16)
    values: Bytes = low | (high << np.uint8(4))
    return values


def _scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight 6-bit scales and eight 6-bit minima of q4_K and q5_K, in 12 bytes.

    The first four of each are the low six bits of bytes 0-3 and 4-7; the last four take their low
    nibble from bytes 8-11 and their two high bits from what those bytes have left.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 0x0F) | (first >> 6 << 4)], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    return scales, minima


def _scaled_eighths(blocks: Bytes, values: Bytes) -> Floats:
    """(n, 8, 32) values under the two f16 and the 12 bytes that begin q4_K and q5_K."""
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    scale = _half(blocks, 0) * scales.astype(np.float32)
    minimum = _half(blocks, 2) * minima.astype(np.float32)
    return (scale[:, :, None] * values.astype(np.float32) - minimum[:, :, None]).reshape(-1, 256)


def _q4_k(blocks: Bytes) -> Floats:
    values = _fields(blocks[:, 16:].reshape(-1, 4, 32), 4, (0, 4))
    return _scaled_eighths(blocks, values.reshape(-1, 8, 32))


def _q5_k(blocks: Bytes) -> Floats:
    low = _fields(blocks[:, 48:].reshape(-1, 4, 32), 4, (0, 4)).reshape(-1, 8, 32)
    high = np.stack([(blocks[:, 16:48] >> bit) & 1 for bit in range(8)], axis=1)
    return _scaled_eighths(blocks, low | (high << np.uint8(4)))


def _q6_k(blocks: Bytes) -> Floats:
    low = _fields(blocks[:, :128].reshape(-1, 2, 64), 4, (0, 4)).reshape(-1, 256)
    high = _fields(blocks[:, 128:192].reshape(-1, 2, 32), 2, (0, 2, 4, 6)).reshape(-1, 256)
    values = (low | (high << np.uint8(4))).astype(np.float32) - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    weights: Floats = scales[:, :, None] * values.reshape(-1, 16, 16)
    return weights.reshape(-1, 256)


_ALL = (
    BlockType("f32", 0, 0, 1, 4, _f32),
    BlockType("f16", 1, 1, 1, 2, _f16),
    BlockType("q4_0", 2, 2, 32, 18, _q4_0),
    BlockType("q4_1", 3, 3, 32, 20, _q4_1),
    BlockType("q5_0", 6, 8, 32, 22, _q5_0),
    BlockType("q5_1", 7, 9, 32, 24, _q5_1),
    BlockType("q8_0", 8, 7, 32, 34, _q8_0),
    BlockType("q2_k", 10, 10, 256, 84, _q2_k),
    BlockType("q3_k", 11, 11, 256, 110, _q3_k),
    BlockType("q4_k", 12, 12, 256, 144, _q4_k),
    BlockType("q5_k", 13, 13, 256, 176, _q5_k),
    BlockType("q6_k", 14, 14, 256, 210, _q6_k),
)
BY_NAME = MappingProxyType({kind.name: kind for kind in _ALL})
BY_TTYPE = MappingProxyType({kind.ttype: kind for kind in _ALL})
BY_FTYPE = MappingProxyType({kind.ftype: kind for kind in _ALL})
