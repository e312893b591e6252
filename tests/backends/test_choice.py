"""Which runtime is taken, and what is said of it."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest
import torch

import sottovoce
from sottovoce.backends.base import ModelDims
from sottovoce.backends.registry import LEAST_TEXT_STATE, RUNTIMES, choose_runtime
from sottovoce.errors import OptionError
from tests.models import tiny

CPU = torch.device("cpu")
WIDE = tiny.dims(n_text_state=LEAST_TEXT_STATE)


def with_kernels(monkeypatch: pytest.MonkeyPatch, instruction_set: str | None) -> None:
    """Pretend that the package is there with these instructions, or is not."""
    made = None if instruction_set is None else SimpleNamespace(in_use=lambda: instruction_set)
    monkeypatch.setitem(sys.modules, "sottovoce_kernels", made)
    monkeypatch.setitem(sys.modules, "sottovoce_kernels.encoder", made)


@pytest.mark.parametrize(
    ("instruction_set", "dtype", "device", "dims", "expected", "reason"),
    [
        ("avx2", "auto", "cpu", WIDE, "native", "avx2"),
        ("avx512-bf16", "auto", "cpu", WIDE, "native", "avx512-bf16"),
        ("amx", "default", "cpu", WIDE, "native", "amx"),
        ("amx", "float32", "cpu", WIDE, "torch", "dtype float32"),
        ("amx", "bfloat16", "cpu", WIDE, "torch", "dtype bfloat16"),
        ("amx", "int8", "cpu", WIDE, "torch", "dtype int8"),
        ("amx", "auto", "cuda", WIDE, "torch", "device cuda"),
        ("amx", "auto", "cpu", tiny.dims(n_text_state=LEAST_TEXT_STATE - 1), "torch", "small model"),
        ("amx", "auto", "cpu", tiny.dims(n_text_state=512, n_text_head=2), "native", "amx"),
        (
            *("amx", "auto", "cpu", tiny.dims(n_text_state=514, n_text_head=2), "torch"),
            "decoder heads of 257, native kernels take up to 256",
        ),
        ("portable", "auto", "cpu", WIDE, "torch", "portable"),
        (None, "auto", "cpu", WIDE, "torch", "not installed"),
    ],
)
def test_auto_takes_the_native_decoder_where_it_is_fast_and_fits(
    instruction_set: str | None,
    dtype: str,
    device: str,
    dims: ModelDims,
    expected: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_kernels(monkeypatch, instruction_set)
    choice = choose_runtime("auto", dtype, torch.device(device), dims)
    assert choice.name == expected
    assert reason in choice.reason


def test_auto_does_without_kernels_that_have_no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    with_kernels(monkeypatch, "amx")
    monkeypatch.delitem(sys.modules, "sottovoce_kernels.encoder")
    choice = choose_runtime("auto", "auto", CPU, WIDE)
    assert choice.name == "torch"
    assert choice.reason == "sottovoce-kernels is too old (pip install ./kernels)"


@pytest.mark.parametrize("name", RUNTIMES[1:])
def test_a_runtime_that_is_asked_for_is_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_kernels(monkeypatch, None)
    assert choose_runtime(name, "float32", CPU, tiny.dims()).name == name


def test_other_names_are_refused_before_a_model_is_looked_for() -> None:
    with pytest.raises(OptionError, match="backend 'onnx' given, expected one of auto, torch, native"):
        sottovoce.load_model("nowhere", backend="onnx")


def test_a_line_tells_what_reads(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="sottovoce"):
        model = sottovoce.load_model("nano", device="cpu", dtype="float32", backend="torch")
    assert model.backend.runtime == "torch, float32"
    assert [record.message for record in caplog.records] == ["nano: read by torch, float32 (asked for)"]


def test_the_native_decoder_tells_its_instructions() -> None:
    kernels = pytest.importorskip("sottovoce_kernels", reason="sottovoce-kernels is not installed")
    model = sottovoce.load_model("nano", device="cpu", dtype="int8_float32", backend="native")
    assert model.backend.runtime == (
        f"native decoder, {kernels.in_use()}; encoder torch, int8 weights, float32"
    )
