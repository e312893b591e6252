"""Which runtime is taken, and what is said of it."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest
import torch

import sottovoce
from sottovoce.backends.registry import LEAST_TEXT_STATE, RUNTIMES, RuntimeChoice, choose_runtime
from sottovoce.errors import OptionError
from tests.models import tiny

CPU = torch.device("cpu")
WIDE = tiny.dims(n_text_state=LEAST_TEXT_STATE)


def with_kernels(monkeypatch: pytest.MonkeyPatch, instruction_set: str | None) -> None:
    """Pretend that the package is there with these instructions, or is not."""
    made = None if instruction_set is None else SimpleNamespace(in_use=lambda: instruction_set)
    monkeypatch.setitem(sys.modules, "sottovoce_kernels", made)
    monkeypatch.setitem(sys.modules, "sottovoce_kernels.encoder", made)


@pytest.mark.parametrize("dtype", ["auto", "default"])
@pytest.mark.parametrize("instruction_set", ["avx2", "avx512-bf16", "amx"])
def test_auto_takes_the_native_decoder_where_it_is_fast(
    instruction_set: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_kernels(monkeypatch, instruction_set)
    choice = choose_runtime("auto", dtype, CPU, WIDE)
    assert choice.name == "native"
    assert instruction_set in choice.reason


@pytest.mark.parametrize(
    ("dtype", "device", "width", "reason"),
    [
        ("float32", "cpu", LEAST_TEXT_STATE, "dtype float32"),
        ("bfloat16", "cpu", LEAST_TEXT_STATE, "dtype bfloat16"),
        ("int8", "cpu", LEAST_TEXT_STATE, "dtype int8"),
        ("auto", "cuda", LEAST_TEXT_STATE, "device cuda"),
        ("auto", "cpu", LEAST_TEXT_STATE - 1, "small model"),
    ],
)
def test_auto_takes_torch_for_all_else(
    dtype: str, device: str, width: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_kernels(monkeypatch, "amx")
    choice = choose_runtime("auto", dtype, torch.device(device), tiny.dims(n_text_state=width))
    assert choice.name == "torch"
    assert reason in choice.reason


@pytest.mark.parametrize(("instruction_set", "reason"), [(None, "not installed"), ("portable", "portable")])
def test_auto_does_without_kernels_that_are_not_there_or_slow(
    instruction_set: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_kernels(monkeypatch, instruction_set)
    choice = choose_runtime("auto", "auto", CPU, WIDE)
    assert choice.name == "torch"
    assert reason in choice.reason


def test_auto_takes_torch_for_heads_wider_than_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    with_kernels(monkeypatch, "amx")
    fitting, wider = (tiny.dims(n_text_state=2 * width, n_text_head=2) for width in (256, 257))
    assert choose_runtime("auto", "auto", CPU, fitting).name == "native"
    assert choose_runtime("auto", "auto", CPU, wider) == RuntimeChoice(
        "torch", "decoder heads of 257, native kernels take up to 256"
    )


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
