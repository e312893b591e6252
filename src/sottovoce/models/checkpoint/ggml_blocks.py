"""ggml's number formats: float weights to blocks of bytes, and back.

The packing itself is that of ggml's own Python package, `gguf`, which follows ggml's C bit for bit; here
is which of its formats a whisper.cpp file may name, and how. Numbers: ggml's `ggml.h` (`ggml_type`,
`ggml_ftype`).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sottovoce.errors import OptionError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BlockType:
    """One number format.

    ttype: its number at a tensor, and in `gguf`. ftype: its number in the file's header. n_elements,
    n_bytes: of one block.
    """

    name: str
    ttype: int
    ftype: int
    n_elements: int
    n_bytes: int


_ALL = (
    BlockType("f32", 0, 0, 1, 4),
    BlockType("f16", 1, 1, 1, 2),
    BlockType("q4_0", 2, 2, 32, 18),
    BlockType("q4_1", 3, 3, 32, 20),
    BlockType("q5_0", 6, 8, 32, 22),
    BlockType("q5_1", 7, 9, 32, 24),
    BlockType("q8_0", 8, 7, 32, 34),
    BlockType("q2_k", 10, 10, 256, 84),
    BlockType("q3_k", 11, 11, 256, 110),
    BlockType("q4_k", 12, 12, 256, 144),
    BlockType("q5_k", 13, 13, 256, 176),
    BlockType("q6_k", 14, 14, 256, 210),
)
BY_NAME = MappingProxyType({kind.name: kind for kind in _ALL})
BY_TTYPE = MappingProxyType({kind.ttype: kind for kind in _ALL})
BY_FTYPE = MappingProxyType({kind.ftype: kind for kind in _ALL})

WRITTEN = ("f32", "f16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
"""Formats that can be written; the others are read only."""


def dequantize(data: Bytes, kind: BlockType) -> Floats:
    """Weights (n,) of blocks, data: (n_bytes,) uint8. Exactly the values that the format defines."""
    from gguf import GGMLQuantizationType, quants  # a fifth of a second, for ggml files alone

    weights: Floats = quants.dequantize(data, GGMLQuantizationType(kind.ttype))
    return weights


def quantize(weights: Floats, kind: BlockType) -> Bytes:
    """Quantise weights (..., n), n a multiple of the block size, to bytes (n_bytes,) uint8.

    Raises: OptionError for a format that can be read but not written.
    """
    if kind.name not in WRITTEN:
        raise OptionError(f"ggml type {kind.name} cannot be written, expected one of {', '.join(WRITTEN)}")
    from gguf import GGMLQuantizationType, quants

    blocks: Bytes = quants.quantize(weights, GGMLQuantizationType(kind.ttype)).view(np.uint8)
    return blocks
