"""From names to devices, number formats, runtimes and running models."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import sottovoce
from sottovoce.errors import MissingExtraError, OptionError
from sottovoce.kernels import load_kernels
from sottovoce.models.backend import Backend
from sottovoce.models.devices import (
    CPU,
    Device,
    NumberFormat,
    choose_device,
    choose_number_format,
    cpu_has_bfloat16,
)
from sottovoce.models.dims import ModelDims
from sottovoce.runtime.registry import BACKENDS, KERNELS, LEAST_TEXT_STATE, RUNTIMES, choose_runtime
from tests.models import tiny

pytest.importorskip("torch", reason="PyTorch, one of the runtimes, is not installed")
BEST = "bfloat16" if cpu_has_bfloat16() else "float32"


def has(monkeypatch: pytest.MonkeyPatch, *, cuda: bool, mps: bool) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    monkeypatch.setattr("torch.cuda.device_count", lambda: int(cuda))
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, False, "cuda"), (True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_picks_the_best_device(
    cuda: bool, mps: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, cuda=cuda, mps=mps)
    assert choose_device("auto").type == expected


def test_apples_gpu_is_used_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, cuda=False, mps=True)
    mps = choose_device("mps")
    assert str(mps) == "mps"
    assert choose_number_format("auto", mps).dtype == "float16"
    assert choose_number_format("float32", mps).dtype == "float32"
    assert choose_number_format("int8", mps) == NumberFormat("float16", int8=True, is_open=True)
    with pytest.raises(OptionError, match="expected float32 or float16 on mps"):
        choose_number_format("bfloat16", mps)
    has(monkeypatch, cuda=True, mps=False)
    with pytest.raises(OptionError, match="no Apple GPU"):
        choose_device("mps")


def test_auto_picks_what_there_is() -> None:
    assert choose_device("cpu") == CPU
    assert choose_number_format("auto", Device("cuda")).dtype == "float16"
    assert choose_number_format("auto", CPU).dtype == BEST


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bfloat16", NumberFormat("bfloat16")),
        ("float16", NumberFormat("float16")),
        ("default", NumberFormat(BEST, is_open=True)),
        ("int8", NumberFormat(BEST, int8=True, is_open=True)),
        ("int8_float32", NumberFormat("float32", int8=True)),
        ("int8_float16", NumberFormat("float16", int8=True)),
        ("int8_bfloat16", NumberFormat("bfloat16", int8=True)),
    ],
)
def test_number_formats_have_the_names_of_ctranslate2_too(name: str, expected: NumberFormat) -> None:
    assert choose_number_format(name, CPU) == expected


@pytest.mark.parametrize("dtype", ["int16", "int4", "half", "int8_", "int8_auto", "float64", ""])
def test_number_formats_that_are_not_there(dtype: str) -> None:
    with pytest.raises(OptionError, match=f"dtype '{dtype}' given, expected one of auto, float32"):
        choose_number_format(dtype, CPU)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta", ""])
def test_devices_that_are_not_there(device: str) -> None:
    with pytest.raises(OptionError, match="device"):
        choose_device(device)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16\n", True),
        ("flags : avx2 amx_tile amx_bf16\n", True),
        ("flags : avx2 avx512f avx512_vnni\n", False),
        ("", False),
    ],
)
def test_bfloat16_is_read_from_the_processors_flags(
    flags: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert cpu_has_bfloat16(tmp_path / "cpuinfo") is expected
    assert not cpu_has_bfloat16(tmp_path / "none")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert not cpu_has_bfloat16(tmp_path / "cpuinfo")


@pytest.mark.parametrize("name", BACKENDS)
def test_every_runtime_makes_a_backend_and_keeps_few_kernels_of_pytorch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "native":
        pytest.importorskip("sottovoce_kernels", reason="sottovoce-kernels is not installed")
    monkeypatch.setenv(KERNELS[0], "32")
    monkeypatch.delenv(KERNELS[1], raising=False)
    backend: Backend = BACKENDS[name](tiny.checkpoint(), CPU, NumberFormat("float32", is_open=True))
    assert backend.dims == tiny.dims()
    assert str(backend.device) == "cpu"
    if name == "torch":
        assert [os.environ[variable] for variable in KERNELS] == ["32", "16"]


def test_a_runtime_that_is_not_installed_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sottovoce_kernels", None)
    with pytest.raises(OptionError, match="sottovoce-kernels is not installed"):
        BACKENDS["native"](tiny.checkpoint(), CPU, NumberFormat("float32", is_open=True))


def test_an_instruction_set_that_is_not_there_is_an_error_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("sottovoce_kernels", reason="sottovoce-kernels is not installed")
    monkeypatch.delitem(sys.modules, "sottovoce_kernels")
    monkeypatch.setenv("SOTTOVOCE_KERNELS", "mmx")
    with pytest.raises(OptionError, match="'mmx' given, expected auto or one of portable"):
        load_kernels("alignatt")


def test_an_instruction_set_of_no_name_is_the_best() -> None:
    kernels = pytest.importorskip("sottovoce_kernels", reason="sottovoce-kernels is not installed")
    reported = subprocess.run(
        [sys.executable, "-c", "import sottovoce_kernels as kernels; print(kernels.in_use())"],
        env=os.environ | {kernels.VARIABLE: ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert reported.stdout.strip() in kernels.built()


WIDE = tiny.dims(n_text_state=LEAST_TEXT_STATE)


def with_kernels(monkeypatch: pytest.MonkeyPatch, instruction_set: str | None) -> None:
    """Pretend that the package is there with these instructions, or is not."""
    created = None if instruction_set is None else SimpleNamespace(in_use=lambda: instruction_set)
    monkeypatch.setitem(sys.modules, "sottovoce_kernels", created)
    monkeypatch.setitem(sys.modules, "sottovoce_kernels.alignatt", created)


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
            "heads of 257 (native kernels: up to 256)",
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
    choice = choose_runtime("auto", dtype, Device(device), dims)
    assert choice.name == expected
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("instruction_set", "dtype", "dims", "error"),
    [
        ("portable", "auto", WIDE, None),
        ("amx", "auto", tiny.dims(), None),
        ("amx", "int8", WIDE, None),
        ("amx", "float32", WIDE, "dtype float32"),
        ("amx", "auto", tiny.dims(n_text_state=514, n_text_head=2), "heads of 257"),
        (None, "auto", WIDE, "sottovoce-kernels is not installed"),
    ],
)
def test_without_pytorch_the_kernels_are_used_or_an_extra_is_named(
    instruction_set: str | None,
    dtype: str,
    dims: ModelDims,
    error: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with_kernels(monkeypatch, instruction_set)
    assert choose_device("auto") == CPU
    if error is None:
        assert choose_runtime("auto", dtype, CPU, dims).name == "native"
        return
    with pytest.raises(
        MissingExtraError, match=rf"{re.escape(error)}.* needs the package 'torch': pip install"
    ):
        choose_runtime("auto", dtype, CPU, dims)
    with pytest.raises(MissingExtraError, match="device cuda needs the package 'torch'"):
        choose_device("cuda")


def test_auto_does_without_kernels_that_are_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    with_kernels(monkeypatch, "amx")
    monkeypatch.delitem(sys.modules, "sottovoce_kernels.alignatt")
    choice = choose_runtime("auto", "auto", CPU, WIDE)
    assert choice.name == "torch"
    assert "sottovoce-kernels is too old (pip install ./kernels)" in choice.reason


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


def test_the_native_runtime_tells_its_instructions() -> None:
    kernels = pytest.importorskip("sottovoce_kernels", reason="sottovoce-kernels is not installed")
    model = sottovoce.load_model("nano", device="cpu", backend="native")
    assert model.backend.runtime == f"native, {kernels.in_use()}; decoder int8, encoder int8 and int16"
