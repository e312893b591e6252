"""Float weights to ggml's blocks: the inverse of `ggml_blocks`, by rounding to the nearest level.

The scale of a block is set by its extremes (q4_0, q5_0: the signed extreme, so that it is exact).
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.ggml_blocks import BlockType, Bytes, Floats

Encoder: TypeAlias = Callable[[Floats], Bytes]


def quantize(weights: npt.NDArray[np.float32], kind: BlockType) -> Bytes:
    """Blocks (n_blocks, n_bytes) uint8 of weights whose rows fill whole blocks.

    Raises: OptionError for a format that can be read but not written.
    """
    encode = ENCODERS.get(kind.name)
    if encode is None:
        raise OptionError(f"ggml type {kind.name} cannot be written, expected one of {', '.join(ENCODERS)}")
    return encode(np.ascontiguousarray(weights, dtype=np.float32).reshape(-1, kind.n_elements))


def _bytes_of(values: npt.NDArray[np.float32], dtype: str) -> Bytes:
    return np.ascontiguousarray(values.astype(dtype)).view(np.uint8).reshape(len(values), -1)


def _f32(blocks: Floats) -> Bytes:
    return _bytes_of(blocks, "<f4")


def _f16(blocks: Floats) -> Bytes:
    return _bytes_of(blocks, "<f2")


def _inverse(scale: Floats) -> Floats:
    """1 / scale, and 0 for 0: a block of zeros stays one."""
    return np.divide(1.0, scale, out=np.zeros_like(scale), where=scale != 0)


def _signed(blocks: Floats, n_levels: int) -> tuple[Floats, Bytes]:
    """Scales (n, 1) and levels 0..n_levels-1, of which n_levels / 2 means 0."""
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    scale = extreme / (-n_levels / 2)
    levels = np.rint(blocks * _inverse(scale)) + n_levels // 2
    return scale, levels.clip(0, n_levels - 1).astype(np.uint8)


def _offset(blocks: Floats, n_levels: int) -> tuple[Floats, Floats, Bytes]:
    """Scales (n, 1), minima (n, 1) and levels 0..n_levels-1, of which 0 means the minimum."""
    lowest = blocks.min(axis=1, keepdims=True)
    scale = (blocks.max(axis=1, keepdims=True) - lowest) / (n_levels - 1)
    levels = np.rint((blocks - lowest) * _inverse(scale))
    return scale, lowest, levels.clip(0, n_levels - 1).astype(np.uint8)


def _packed_nibbles(levels: Bytes) -> Bytes:
    half = levels.shape[1] // 2
    low, high = levels[:, :half] & 0x0F, levels[:, half:] & 0x0F
    return (low | (high << 4)).astype(np.uint8)


def _packed_fifth_bits(levels: Bytes) -> Bytes:
    return np.packbits(levels >> np.uint8(4), axis=1, bitorder="little")


def _q4_0(blocks: Floats) -> Bytes:
    scale, levels = _signed(blocks, 16)
    return np.concatenate([_f16(scale), _packed_nibbles(levels)], axis=1)


def _q4_1(blocks: Floats) -> Bytes:
    scale, lowest, levels = _offset(blocks, 16)
    return np.concatenate([_f16(scale), _f16(lowest), _packed_nibbles(levels)], axis=1)


def _q5_0(blocks: Floats) -> Bytes:
    scale, levels = _signed(blocks, 32)
    return np.concatenate([_f16(scale), _packed_fifth_bits(levels), _packed_nibbles(levels)], axis=1)


def _q5_1(blocks: Floats) -> Bytes:
    scale, lowest, levels = _offset(blocks, 32)
    parts = [_f16(scale), _f16(lowest), _packed_fifth_bits(levels), _packed_nibbles(levels)]
    return np.concatenate(parts, axis=1)


def _q8_0(blocks: Floats) -> Bytes:
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
    levels = np.rint(blocks * _inverse(scale)).astype(np.int8)
    return np.concatenate([_f16(scale), levels.view(np.uint8)], axis=1)


ENCODERS: MappingProxyType[str, Encoder] = MappingProxyType(
    {"f32": _f32, "f16": _f16, "q4_0": _q4_0, "q4_1": _q4_1, "q5_0": _q5_0, "q5_1": _q5_1, "q8_0": _q8_0}
)
"""Formats that can be written."""
