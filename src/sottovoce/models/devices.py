"""Choice of a device and a number format by name, and what a model takes of a device's memory."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from sottovoce.errors import MissingExtraError, OptionError
from sottovoce.kernels import WIDEST_HEAD
from sottovoce.models.checkpoint.base import DTYPES, expected_shapes
from sottovoce.models.dims import ModelDims, aligned
from sottovoce.threads import imported_torch

NUMBER_FORMATS: MappingProxyType[str, tuple[str, bool]] = MappingProxyType(
    {name: (name, False) for name in ("auto", *DTYPES)}
    | {"int8": ("auto", True), "default": ("auto", False)}
    | {f"int8_{name}": (name, True) for name in DTYPES}
)
"""Names to the dtype of the activations, and whether tables are int8."""


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """How weights are stored. dtype: of activations and weights, a name in `DTYPES`. int8: large tables are
    int8.

    is_open: the dtype was not named, so a runtime may use another one.
    """

    dtype: str
    int8: bool = False
    is_open: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of an activation."""
        return DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class Device:
    """type: "cpu", "cuda" or "mps". index: of a CUDA device, or None."""

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


CPU = Device("cpu")


class HasType(Protocol):
    """A `Device`, or one of PyTorch."""

    @property
    def type(self) -> str: ...


def beyond_kernels(dims: ModelDims) -> str | None:
    """Return the sizes of a model that the native kernels do not take, or None."""
    if (d_head := dims.n_text_state // dims.n_text_head) > WIDEST_HEAD:
        return f"a decoder with heads of {d_head} (native kernels: up to {WIDEST_HEAD})"
    if (d_head := dims.n_audio_state // dims.n_audio_head) > WIDEST_HEAD:
        return f"an encoder with heads of {d_head} (native kernels: up to {WIDEST_HEAD})"
    if dims.n_mels % 2 or dims.n_audio_state % 2:
        return f"{dims.n_mels} mel bands and {dims.n_audio_state} states (native kernels: even numbers)"
    return None


def has_torch() -> bool:
    """Return whether PyTorch is installed, without importing it."""
    if "torch" in sys.modules:
        return sys.modules["torch"] is not None
    return importlib.util.find_spec("torch") is not None


def require_torch(purpose: str) -> None:
    """Raises: MissingExtraError without PyTorch."""
    if not has_torch():
        raise MissingExtraError("torch", "torch", purpose)


def choose_device(device: str) -> Device:
    """Choose a device by name: "cpu", "cuda", "cuda:1", "mps", or "auto" for the best one available.

    PyTorch is imported only where there may be an accelerator.

    Raises:
        OptionError: an unknown name, or a device that is not available.
    """
    if device == "auto":
        return _best_device() if has_torch() and _may_have_accelerator() else CPU
    named = re.fullmatch(r"(cpu|cuda|mps)(?::(\d{1,3}))?", device)
    if named is None:
        raise OptionError(f"device {device!r} given, expected auto, cpu, cuda or mps")
    chosen = Device(named[1], None if named[2] is None else int(named[2]))
    if chosen.type == "cpu":
        return chosen
    require_torch(f"device {device}")
    import torch

    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise OptionError(f"device {device!r} given, but no Apple GPU is usable here")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise OptionError(
            f"device {device!r} given, but {torch.cuda.device_count()} CUDA devices are visible"
        )
    return chosen


def _best_device() -> Device:
    import torch

    if torch.cuda.is_available():
        return Device("cuda")
    return Device("mps") if torch.backends.mps.is_available() else CPU


def _may_have_accelerator() -> bool:
    """Return whether a driver of NVIDIA or AMD, or macOS, may offer one; true if PyTorch is imported."""
    if "torch" in sys.modules or sys.platform == "darwin" or Path("/dev/kfd").exists():
        return True
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def choose_number_format(dtype: str, device: HasType) -> NumberFormat:
    """Choose a number format by name: "auto", a dtype, or "int8".

    CTranslate2's names work too: "default" is "auto", and "int8_float32" and the like name the dtype of the
    activations. "auto" is float16 on CUDA and on Apple's GPUs; on a CPU bfloat16 with AVX512-BF16 or AMX,
    otherwise float32.

    Raises:
        OptionError: another name, or a dtype that the device lacks.
    """
    if dtype not in NUMBER_FORMATS:
        raise OptionError(f"dtype {dtype!r} given, expected one of {', '.join(NUMBER_FORMATS)}")
    name, int8 = NUMBER_FORMATS[dtype]
    if name == "bfloat16" and device.type == "mps":
        raise OptionError("dtype 'bfloat16' given, expected float32 or float16 on mps")
    if name != "auto":
        return NumberFormat(name, int8)
    best = "bfloat16" if cpu_has_bfloat16() else "float32"
    return NumberFormat("float16" if device.type in ("cuda", "mps") else best, int8, is_open=True)


def cpu_has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether an x86 processor multiplies bfloat16 natively; False if Linux does not say."""
    if platform.machine() not in ("x86_64", "AMD64") or not cpuinfo.exists():
        return False
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return "avx512_bf16" in flags or "amx_bf16" in flags


ENCODED_TOGETHER = 16
"""Windows of the largest batch that recordings encode."""
ENCODER_COPIES = 12
"""Tensors of the size of the states in a layer: input, norm, queries, keys, values, attention, and the inner
layer of the MLP before and after its activation (four each).
"""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of an accelerator that a model takes: its weights, the encoder's work on a batch and its results,
    and the keys and values of each recording that is decoded at a time.
    """

    weights: int
    work: int
    recording: int
    n_recordings: int

    def __str__(self) -> str:
        return (
            f"weights {self.weights / 1e6:.0f} MB, work {self.work / 1e6:.0f} MB, "
            f"{self.n_recordings} recordings of {self.recording / 1e6:.0f} MB"
        )


def recording_bytes(dims: ModelDims, itemsize: int) -> int:
    """Return the bytes of keys and values of one recording: of its audio and its text.

    itemsize: bytes of an activation.
    """
    n_positions = aligned(dims.n_audio_ctx) + aligned(1 + dims.n_text_ctx)
    return 2 * dims.n_text_layer * dims.n_text_state * n_positions * itemsize


def encoder_work(dims: ModelDims, itemsize: int) -> int:
    """Return the bytes of the encoder's work on the largest batch of recordings."""
    return ENCODED_TOGETHER * ENCODER_COPIES * dims.n_audio_ctx * dims.n_audio_state * itemsize


def plan_memory(dims: ModelDims, numbers: NumberFormat, n_bytes: float, name: str) -> MemoryPlan:
    """Plan the memory of a model before it is loaded. n_bytes: available memory.

    Raises:
        OptionError: it does not fit with a single recording.
    """
    sizes = [(math.prod(shape), len(shape) == 2) for shape in expected_shapes(dims).values()]
    weights = sum(n * (1 if numbers.int8 and is_table else numbers.itemsize) for n, is_table in sizes)
    work = 2 * encoder_work(dims, numbers.itemsize)
    each = recording_bytes(dims, numbers.itemsize)
    n_recordings = min((n_bytes - weights - work) / each, MOST_RECORDINGS)
    if n_recordings < 1:
        needed = weights + work + each
        raise OptionError(
            f"{name}: expected {needed / 1e6:.0f} MB of device memory (weights {weights / 1e6:.0f}, work "
            f"{work / 1e6:.0f}, a recording {each / 1e6:.0f}), got {n_bytes / 1e6:.0f}"
        )
    return MemoryPlan(weights, work, each, int(n_recordings))


MOST_RECORDINGS = 512
"""Decoded at a time, whatever the memory."""


def empty_cache() -> None:
    """Give the memory that PyTorch keeps for later tensors back to the CUDA devices in use."""
    torch = imported_torch()
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
