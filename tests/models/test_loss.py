"""What quantising costs, beside the same counted from the file that was written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.base import QuantizationLoss, TensorLoss, tensor_loss
from sottovoce.models.checkpoint.convert import write_checkpoint
from sottovoce.models.checkpoint.ggml import WRITTEN
from sottovoce.models.load import load_checkpoint


@pytest.mark.parametrize("number", ["q4_0", "q8_0"])
def test_the_loss_is_that_of_the_file(number: str, tmp_path: Path) -> None:
    before = load_checkpoint("nano")
    loss = write_checkpoint(before, tmp_path / "nano.bin", "ggml", number)
    after = load_checkpoint(tmp_path / "nano.bin")
    assert loss is not None
    errors = {
        name: (tensor.double() - after.tensors[name].double(), tensor.double())
        for name, tensor in before.tensors.items()
        if tensor.ndim == 2 and not name.endswith("positional_embedding")
    }
    relative = {name: float(error.norm() / exact.norm()) for name, (error, exact) in errors.items()}
    assert loss.n_tensors == len(errors)
    assert loss.worst == max(relative, key=lambda name: relative[name])
    assert loss.worst_relative_rms == pytest.approx(relative[loss.worst], rel=1e-3)
    assert loss.largest_error == pytest.approx(
        max(float(error.abs().max()) for error, _ in errors.values()), rel=1e-3
    )
    squares = [(float(error.square().sum()), float(exact.square().sum())) for error, exact in errors.values()]
    whole = (sum(error for error, _ in squares) / sum(exact for _, exact in squares)) ** 0.5
    assert loss.relative_rms == pytest.approx(whole, rel=1e-3)
    assert loss.bytes_before == sum(tensor.nbytes for tensor in before.tensors.values())
    assert 0 < loss.bytes_after < (tmp_path / "nano.bin").stat().st_size


@pytest.mark.parametrize("number", ["int8", "int8_float16", "int16"])
def test_so_it_is_in_ctranslate2s_types(number: str, tmp_path: Path) -> None:
    before = load_checkpoint("nano")
    loss = write_checkpoint(before, tmp_path / "nano", "ct2", number)
    after = load_checkpoint(tmp_path / "nano")
    assert loss is not None
    errors = {
        name: tensor.double() - after.tensors[name].double()
        for name, tensor in before.tensors.items()
        if tensor.ndim > 1 and not name.endswith("positional_embedding")
    }
    whole = sum(float(before.tensors[name].double().square().sum()) for name in errors)
    lost = sum(float(error.square().sum()) for error in errors.values())
    assert loss.relative_rms == pytest.approx((lost / whole) ** 0.5, rel=1e-3)
    assert loss.largest_error == pytest.approx(
        max(float(error.abs().max()) for error in errors.values()), rel=1e-3
    )
    assert write_checkpoint(before, tmp_path / "whole", "ct2", "float16") is None


def test_more_bits_cost_less(tmp_path: Path) -> None:
    checkpoint = load_checkpoint("nano")
    losses = [
        write_checkpoint(checkpoint, tmp_path / f"{name}.bin", "ggml", name)
        for name in ("q4_0", "q5_0", "q8_0")
    ]
    rates = [loss.relative_rms for loss in losses if loss is not None]
    assert rates == sorted(rates, reverse=True)
    assert len(rates) == 3


def test_a_number_for_each_weight_is_no_quantisation(tmp_path: Path) -> None:
    assert write_checkpoint(load_checkpoint("nano"), tmp_path / "nano.bin", "ggml", "f16") is None


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
        write_checkpoint(load_checkpoint("nano"), tmp_path / "nano.bin", "ggml", number)
    offered = str(caught.value).split("expected one of ")[1].split(";")[0]
    assert tuple(offered.split(", ")) == WRITTEN
