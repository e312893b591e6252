"""Choice of a runtime, a device and a number format for a checkpoint."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import torch

from sottovoce.backends.base import Backend
from sottovoce.backends.kernels import WIDEST_HEAD, load_kernels
from sottovoce.backends.torch import TorchBackend
from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.dims import ModelDims

DTYPES = MappingProxyType({"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16})
NUMBER_FORMATS: MappingProxyType[str, tuple[str, bool]] = MappingProxyType(
    {name: (name, False) for name in ("auto", *DTYPES)}
    | {"int8": ("auto", True), "default": ("auto", False)}
    | {f"int8_{name}": (name, True) for name in DTYPES}
)
"""Names to the dtype of the activations, and whether tables are int8."""
KERNELS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Number of kernels, one per shape, that oneDNN and PyTorch cache (default 1024 each). Windows of growing
audio have ever new shapes: with 16, a live session of base in bfloat16 stays at 0.7 GB, instead of growing
by 30 MB a minute beyond 1.7 GB, at the same speed.
"""
AUTO = "auto"
OPEN_DTYPES = ("auto", "default")
"""Names that leave the runtime open; any other dtype selects PyTorch."""
SLOW_SETS = ("portable",)
"""Instruction sets of the kernels with which PyTorch is faster."""
LEAST_TEXT_STATE = 384
"""Width of Whisper's narrowest decoder, `tiny`; int8 errors of narrower ones were not measured."""


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """How weights are stored. dtype: of activations and weights. int8: large tables are int8.

    is_open: the dtype was not named, so a runtime may use another one.
    """

    dtype: torch.dtype
    int8: bool = False
    is_open: bool = False


BackendFactory: TypeAlias = Callable[[Checkpoint, torch.device, NumberFormat], Backend]


def _keep_few_kernels(device: torch.device) -> None:
    if device.type == "cpu":
        for name in KERNELS:
            os.environ.setdefault(name, "16")


def _torch(checkpoint: Checkpoint, device: torch.device, numbers: NumberFormat) -> TorchBackend:
    _keep_few_kernels(device)
    return TorchBackend.from_checkpoint(checkpoint, device=device, dtype=numbers.dtype, int8=numbers.int8)


def _native(checkpoint: Checkpoint, device: torch.device, numbers: NumberFormat) -> Backend:
    try:
        load_kernels()
    except ImportError as error:
        raise OptionError(f"native backend: {error}") from error
    from sottovoce.backends.native import NativeBackend
    from sottovoce.backends.native_encoder import native_encoder_is_faster

    _keep_few_kernels(device)
    return NativeBackend.from_checkpoint(
        checkpoint,
        device=device,
        dtype=numbers.dtype,
        int8=numbers.int8,
        native_encoder=numbers.is_open and native_encoder_is_faster(),
    )


BACKENDS: MappingProxyType[str, BackendFactory] = MappingProxyType({"torch": _torch, "native": _native})
"""Runtimes by name."""


def choose_device(device: str) -> torch.device:
    """Choose a device by name: "cpu", "cuda", "cuda:1", "mps", or "auto" for the best one available.

    Raises:
        OptionError: an unknown name, or a device that is not available.
    """
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise OptionError(f"device {device!r} given, expected auto, cpu, cuda or mps") from error
    if chosen.type not in ("cpu", "cuda", "mps"):
        raise OptionError(f"device {device!r} given, expected auto, cpu, cuda or mps")
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise OptionError(f"device {device!r} given, but no Apple GPU is usable here")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise OptionError(
            f"device {device!r} given, but {torch.cuda.device_count()} CUDA devices are visible"
        )
    return chosen


def choose_number_format(dtype: str, device: torch.device) -> NumberFormat:
    """Choose a number format by name: "auto", a dtype, or "int8".

    CTranslate2's names work too: "default" is "auto", and "int8_float32" and the like name the dtype of
    the activations.

    "auto" is float16 on CUDA (as in openai-whisper) and on Apple's GPUs, of which older ones lack
    bfloat16; on a CPU bfloat16 with AVX512-BF16 or AMX, otherwise float32, as emulated bfloat16 is slower.

    Raises:
        OptionError: another name, or a dtype that the device lacks.
    """
    if dtype not in NUMBER_FORMATS:
        raise OptionError(f"dtype {dtype!r} given, expected one of {', '.join(NUMBER_FORMATS)}")
    name, int8 = NUMBER_FORMATS[dtype]
    if name == "bfloat16" and device.type == "mps":
        raise OptionError("dtype 'bfloat16' given, expected float32 or float16 on mps")
    if name != "auto":
        return NumberFormat(DTYPES[name], int8)
    best = torch.bfloat16 if cpu_has_bfloat16() else torch.float32
    return NumberFormat(torch.float16 if device.type in ("cuda", "mps") else best, int8, is_open=True)


def cpu_has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether an x86 processor multiplies bfloat16 natively; False if Linux does not say."""
    if platform.machine() not in ("x86_64", "AMD64") or not cpuinfo.exists():
        return False
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return "avx512_bf16" in flags or "amx_bf16" in flags


RUNTIMES = (AUTO, *BACKENDS)


@dataclass(frozen=True, slots=True)
class RuntimeChoice:
    """A runtime by its name in `BACKENDS`. reason: for the log line."""

    name: str
    reason: str


def check_runtime(backend: str) -> None:
    """Raise OptionError for a runtime that is not in `RUNTIMES`."""
    if backend not in RUNTIMES:
        raise OptionError(f"backend {backend!r} given, expected one of {', '.join(RUNTIMES)}")


def choose_runtime(backend: str, dtype: str, device: torch.device, dims: ModelDims) -> RuntimeChoice:
    """Choose a runtime by name; "auto" takes the native kernels on a CPU unless a dtype is named.

    dtype: the requested name. dims: of the model.

    Raises:
        OptionError: another name, or the environment names an instruction set that does not run here.
    """
    check_runtime(backend)
    if backend != AUTO:
        return RuntimeChoice(backend, "asked for")
    if device.type != "cpu":
        return RuntimeChoice("torch", f"device {device.type}")
    if dtype not in OPEN_DTYPES:
        return RuntimeChoice("torch", f"dtype {dtype} asked for")
    if dims.n_text_state < LEAST_TEXT_STATE:
        return RuntimeChoice("torch", f"a small model, of width {dims.n_text_state}")
    if (d_head := dims.n_text_state // dims.n_text_head) > WIDEST_HEAD:
        return RuntimeChoice("torch", f"decoder heads of {d_head}, native kernels take up to {WIDEST_HEAD}")
    return _by_kernels()


def _by_kernels() -> RuntimeChoice:
    try:
        instruction_set = load_kernels().in_use()
    except ImportError as error:
        return RuntimeChoice("torch", str(error))
    if instruction_set in SLOW_SETS:
        return RuntimeChoice("torch", f"native kernels would be slower, instruction set {instruction_set}")
    return RuntimeChoice("native", f"instruction set {instruction_set}")
