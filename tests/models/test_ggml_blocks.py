"""Each ggml number format against blocks built by hand, element by element, from the layout."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.ggml import (
    BY_FTYPE,
    BY_NAME,
    BY_TTYPE,
    WRITTEN,
    BlockType,
    dequantize,
    quantize,
)

Built = tuple[bytes, list[float]]
N_BLOCKS = 5


def half(value: float) -> bytes:
    return struct.pack("<e", value)


def level(rng: random.Random, n_levels: int) -> int:
    """Any level, the extremes more often."""
    return rng.choice([0, n_levels - 1, rng.randrange(n_levels)])


def scale(rng: random.Random) -> float:
    """Exact in f16, and in f32 after any product below."""
    return rng.choice([-1, 1]) * rng.randrange(1, 64) / 256


def q4_0(rng: random.Random) -> Built:
    d, q = scale(rng), [level(rng, 16) for _ in range(32)]
    return half(d) + bytes(q[i] | q[i + 16] << 4 for i in range(16)), [d * (v - 8) for v in q]


def q4_1(rng: random.Random) -> Built:
    d, m, q = scale(rng), scale(rng), [level(rng, 16) for _ in range(32)]
    packed = half(d) + half(m) + bytes(q[i] | q[i + 16] << 4 for i in range(16))
    return packed, [d * v + m for v in q]


def five_bits(q: list[int]) -> bytes:
    word = sum((v >> 4) << i for i, v in enumerate(q))
    return struct.pack("<I", word) + bytes((q[i] & 15) | (q[i + 16] & 15) << 4 for i in range(16))


def q5_0(rng: random.Random) -> Built:
    d, q = scale(rng), [level(rng, 32) for _ in range(32)]
    return half(d) + five_bits(q), [d * (v - 16) for v in q]


def q5_1(rng: random.Random) -> Built:
    d, m, q = scale(rng), scale(rng), [level(rng, 32) for _ in range(32)]
    return half(d) + half(m) + five_bits(q), [d * v + m for v in q]


def q8_0(rng: random.Random) -> Built:
    d, q = scale(rng), [level(rng, 256) - 128 for _ in range(32)]
    return half(d) + struct.pack("32b", *q), [d * v for v in q]


def q2_k(rng: random.Random) -> Built:
    d, dmin = scale(rng), scale(rng)
    scales, minima = ([level(rng, 16) for _ in range(16)] for _ in range(2))
    q = [level(rng, 4) for _ in range(256)]
    qs = bytearray(64)
    for i, v in enumerate(q):
        half_block, within = divmod(i, 128)
        field, byte = divmod(within, 32)
        qs[32 * half_block + byte] |= v << 2 * field
    packed = bytes(s | m << 4 for s, m in zip(scales, minima, strict=True)) + qs + half(d) + half(dmin)
    return packed, [d * scales[i // 16] * v - dmin * minima[i // 16] for i, v in enumerate(q)]


def q3_k(rng: random.Random) -> Built:
    d, scales, q = scale(rng), [level(rng, 64) for _ in range(16)], [level(rng, 8) for _ in range(256)]
    hmask, qs, packed_scales = bytearray(32), bytearray(64), bytearray(12)
    for i, v in enumerate(q):
        half_block, within = divmod(i, 128)
        field, byte = divmod(within, 32)
        qs[32 * half_block + byte] |= (v & 3) << 2 * field
        hmask[i % 32] |= (v >> 2) << (i // 32)
    for i, s in enumerate(scales):
        packed_scales[i % 8] |= (s & 15) << 4 * (i // 8)
        packed_scales[8 + i % 4] |= (s >> 4) << 2 * (i // 4)
    values = [d * (scales[i // 16] - 32) * (v - 4) for i, v in enumerate(q)]
    return bytes(hmask + qs + packed_scales) + half(d), values


def twelve_bytes(scales: list[int], minima: list[int]) -> bytes:
    packed = bytearray(12)
    for i in range(4):
        packed[i] = scales[i] | (scales[i + 4] >> 4) << 6
        packed[i + 4] = minima[i] | (minima[i + 4] >> 4) << 6
        packed[i + 8] = (scales[i + 4] & 15) | (minima[i + 4] & 15) << 4
    return bytes(packed)


def four_bit_pairs(q: list[int]) -> bytes:
    """Byte j of quarter i holds elements 64*i + j and 64*i + 32 + j."""
    return bytes((q[64 * i + j] & 15) | (q[64 * i + 32 + j] & 15) << 4 for i in range(4) for j in range(32))


def q4_k(rng: random.Random) -> Built:
    d, dmin = scale(rng), scale(rng)
    scales, minima = ([level(rng, 64) for _ in range(8)] for _ in range(2))
    q = [level(rng, 16) for _ in range(256)]
    packed = half(d) + half(dmin) + twelve_bytes(scales, minima) + four_bit_pairs(q)
    return packed, [d * scales[i // 32] * v - dmin * minima[i // 32] for i, v in enumerate(q)]


def q5_k(rng: random.Random) -> Built:
    d, dmin = scale(rng), scale(rng)
    scales, minima = ([level(rng, 64) for _ in range(8)] for _ in range(2))
    q = [level(rng, 32) for _ in range(256)]
    qh = bytearray(32)
    for i, v in enumerate(q):
        qh[i % 32] |= (v >> 4) << (i // 32)
    packed = half(d) + half(dmin) + twelve_bytes(scales, minima) + bytes(qh) + four_bit_pairs(q)
    return packed, [d * scales[i // 32] * v - dmin * minima[i // 32] for i, v in enumerate(q)]


def q6_k(rng: random.Random) -> Built:
    d, scales = scale(rng), [level(rng, 256) - 128 for _ in range(16)]
    q = [level(rng, 64) for _ in range(256)]
    ql, qh = bytearray(128), bytearray(64)
    for i, v in enumerate(q):
        half_block, within = divmod(i, 128)
        ql[64 * half_block + within % 64] |= (v & 15) << 4 * (within // 64)
        qh[32 * half_block + within % 32] |= (v >> 4) << 2 * (within // 32)
    packed = bytes(ql + qh) + struct.pack("16b", *scales) + half(d)
    return packed, [d * scales[i // 16] * (v - 32) for i, v in enumerate(q)]


@pytest.mark.parametrize("build", [q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k])
def test_blocks_built_by_hand_decode_to_their_values(build: Callable[[random.Random], Built]) -> None:
    kind = BY_NAME[build.__name__]
    rng = random.Random(7)
    built = [build(rng) for _ in range(N_BLOCKS)]
    data = np.frombuffer(b"".join(packed for packed, _ in built), np.uint8)
    assert len(data) == N_BLOCKS * kind.n_bytes
    decoded = dequantize(data, kind)
    assert decoded.dtype == np.float32
    assert_array_equal(decoded, np.array([values for _, values in built], np.float32).reshape(-1))


@pytest.mark.parametrize("name", ["f32", "f16"])
def test_plain_numbers_come_back(name: str) -> None:
    kind = BY_NAME[name]
    values = np.array([0.0, -1.5, 2.0**-20, 65504.0], np.float32)
    stored = quantize(values, kind)
    assert stored.tobytes() == values.astype("<f4" if name == "f32" else "<f2").tobytes()
    assert_array_equal(dequantize(stored, kind), values)


@pytest.mark.parametrize("kind", [kind for kind in BY_NAME.values() if kind.n_elements > 1])
def test_sizes_are_those_of_ggmls_package(kind: BlockType) -> None:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    found = GGMLQuantizationType(kind.ttype)
    assert found.name.lower() == kind.name
    assert GGML_QUANT_SIZES[found] == (kind.n_elements, kind.n_bytes)


def test_numbers_of_the_formats_are_whisper_cpps() -> None:
    assert {kind.name: (kind.ttype, kind.ftype) for kind in BY_NAME.values()} == {
        "f32": (0, 0),
        "f16": (1, 1),
        "q4_0": (2, 2),
        "q4_1": (3, 3),
        "q5_0": (6, 8),
        "q5_1": (7, 9),
        "q8_0": (8, 7),
        "q2_k": (10, 10),
        "q3_k": (11, 11),
        "q4_k": (12, 12),
        "q5_k": (13, 13),
        "q6_k": (14, 14),
    }
    assert len(BY_TTYPE) == len(BY_FTYPE) == len(BY_NAME)


@pytest.mark.parametrize(
    ("name", "levels"), [("q4_0", 16), ("q4_1", 15), ("q5_0", 32), ("q5_1", 31), ("q8_0", 254)]
)
def test_quantising_errs_by_half_a_level_at_most(name: str, levels: int) -> None:
    """But for the rounding of the scale to f16, and the positive end that q4_0 and q5_0 lack."""
    kind = BY_NAME[name]
    weights = np.random.default_rng(3).normal(size=(200, 32)).astype(np.float32)
    weights[0] = 0
    back = dequantize(quantize(weights, kind), kind)
    if name in ("q4_0", "q5_0", "q8_0"):
        spread = 2 * np.abs(weights).max(axis=1, keepdims=True)
    else:
        spread = np.ptp(weights, axis=1, keepdims=True)
    slack = 1.0 if name in ("q4_0", "q5_0") else 0.5
    assert (np.abs(back - weights) <= (slack / levels + 2e-3) * spread).all()
    assert not back[0].any()


def test_formats_that_cannot_be_written_say_so() -> None:
    for name in set(BY_NAME) - set(WRITTEN):
        with pytest.raises(OptionError, match=f"{name} cannot be written"):
            quantize(np.zeros((1, 256), np.float32), BY_NAME[name])
