"""ggml's number formats, and the loss of quantising: that of the file that was written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.base import QuantizationLoss, TensorLoss, tensor_loss
from sottovoce.models.checkpoint.ggml import (
    BY_FTYPE,
    BY_NAME,
    BY_TTYPE,
    WRITTEN,
    BlockType,
    dequantize,
    quantize,
)
from sottovoce.models.load import open_checkpoint, write_checkpoint
from tests.models import tiny

SIZES = tiny.dims(n_vocab=51865, n_audio_layer=1, n_text_layer=3)


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

    ggml_type = GGMLQuantizationType(kind.ttype)
    assert ggml_type.name.lower() == kind.name
    assert GGML_QUANT_SIZES[ggml_type] == (kind.n_elements, kind.n_bytes)


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


@pytest.mark.parametrize(
    ("kind", "number"),
    [("ggml", "q4_0"), ("ggml", "q8_0"), ("ct2", "int8"), ("ct2", "int8_float16"), ("ct2", "int16")],
)
def test_the_loss_is_that_of_the_file(kind: str, number: str, tmp_path: Path) -> None:
    before = tiny.checkpoint(SIZES)
    loss = write_checkpoint(before, tmp_path / "tiny", kind, number)
    after = open_checkpoint(tmp_path / "tiny")
    assert loss is not None
    errors = {
        name: (tensor - after.tensors[name].astype(np.float64), tensor.astype(np.float64))
        for name, tensor in before.tensors.items()
        if 1 < tensor.ndim < (3 if kind == "ggml" else 4) and not name.endswith("positional_embedding")
    }
    relative = {
        name: float(np.linalg.norm(error) / np.linalg.norm(exact)) for name, (error, exact) in errors.items()
    }
    if kind == "ggml":  # CTranslate2 stacks tensors
        assert loss.n_tensors == len(errors)
        assert loss.worst == max(relative, key=lambda name: relative[name])
        assert loss.worst_relative_rms == pytest.approx(relative[loss.worst], rel=1e-3)
        assert loss.bytes_before == sum(tensor.nbytes for tensor in before.tensors.values())
    assert loss.largest_error == pytest.approx(
        max(float(abs(error).max()) for error, _ in errors.values()), rel=1e-3
    )
    squares = [(float((error**2).sum()), float((exact**2).sum())) for error, exact in errors.values()]
    whole = (sum(error for error, _ in squares) / sum(exact for _, exact in squares)) ** 0.5
    assert loss.relative_rms == pytest.approx(whole, rel=1e-3)
    file = tmp_path / "tiny" / "model.bin" if kind == "ct2" else tmp_path / "tiny"
    assert 0 < loss.bytes_after < file.stat().st_size


@pytest.mark.parametrize(("kind", "number"), [("ggml", "f16"), ("ct2", "float16")])
def test_a_number_for_each_weight_is_no_quantisation(kind: str, number: str, tmp_path: Path) -> None:
    assert write_checkpoint(tiny.checkpoint(SIZES), tmp_path / "tiny", kind, number) is None


def test_zeros_lose_nothing_and_bytes_are_those_of_all_tensors() -> None:
    zeros = np.zeros((2, 4), np.float32)
    nothing = tensor_loss("a", zeros, zeros, bytes_before=32, bytes_after=8)
    ones = tensor_loss("b", zeros + 1, zeros + 1.5, bytes_before=32, bytes_after=8)
    loss = QuantizationLoss.of([nothing, ones, TensorLoss("c", 4, 4)])
    assert loss == QuantizationLoss(2, 0.5, 0.5, "b", 0.5, 68, 20)
    assert nothing.relative_rms == 0.0


@pytest.mark.parametrize("number", ["q6_k", "int8", "q9"])
def test_only_types_that_can_be_written_are_offered(number: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"ggml type '{number}'") as caught:
        write_checkpoint(tiny.checkpoint(SIZES), tmp_path / "tiny.bin", "ggml", number)
    offered = str(caught.value).split("expected one of ")[1].split(";")[0]
    assert tuple(offered.split(", ")) == WRITTEN
