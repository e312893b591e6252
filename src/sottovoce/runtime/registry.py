"""Choice of a runtime for a checkpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from sottovoce.errors import OptionError
from sottovoce.kernels import load_kernels
from sottovoce.models.backend import Backend
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.devices import Device, NumberFormat, beyond_kernels, has_torch, require_torch
from sottovoce.models.dims import ModelDims

KERNELS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Number of kernels, one per shape, that oneDNN and PyTorch cache. Windows of growing audio have ever new
shapes: with 16, a live session of base in bfloat16 stays at 0.7 GB instead of 1.7 GB and more.
"""
AUTO = "auto"
OPEN_DTYPES = ("auto", "default")
"""Names that leave the runtime open; any other dtype selects PyTorch."""
SLOW_SETS = ("portable",)
"""Instruction sets of the kernels with which PyTorch is faster."""
LEAST_TEXT_STATE = 384
"""Width of Whisper's narrowest decoder, `tiny`; int8 errors of narrower ones were not measured."""


class BackendFactory(Protocol):
    """Loads a checkpoint. most_bytes: of an accelerator's memory that it may take; None: all that is free."""

    def __call__(
        self,
        checkpoint: Checkpoint,
        device: Device,
        numbers: NumberFormat,
        most_bytes: float | None = None,
    ) -> Backend: ...


def _keep_few_kernels(device: Device) -> None:
    if device.type == "cpu":
        for name in KERNELS:
            os.environ.setdefault(name, "16")


def _torch(
    checkpoint: Checkpoint, device: Device, numbers: NumberFormat, most_bytes: float | None = None
) -> Backend:
    require_torch("backend torch")
    import torch

    from sottovoce.runtime.torch import TorchBackend

    _keep_few_kernels(device)
    return TorchBackend.from_checkpoint(
        checkpoint,
        device=torch.device(str(device)),
        dtype=getattr(torch, numbers.dtype),
        int8=numbers.int8,
        most_bytes=most_bytes,
    )


def _native(
    checkpoint: Checkpoint, device: Device, numbers: NumberFormat, most_bytes: float | None = None
) -> Backend:
    if device.type != "cpu" or not numbers.is_open:
        given = f"device {device}" if device.type != "cpu" else f"dtype {numbers.dtype}"
        raise OptionError(f"native backend: expected device cpu and dtype auto or int8, got {given}")
    try:
        load_kernels("alignatt")
    except ImportError as error:
        raise OptionError(f"native backend: {error}") from error
    from sottovoce.runtime.native import NativeBackend

    return NativeBackend.from_checkpoint(checkpoint)


BACKENDS: MappingProxyType[str, BackendFactory] = MappingProxyType({"torch": _torch, "native": _native})
"""Runtimes by name."""


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


def choose_runtime(backend: str, dtype: str, device: Device, dims: ModelDims) -> RuntimeChoice:
    """Choose a runtime by name; "auto" takes the native kernels on a CPU unless a dtype is named, or unless
    PyTorch is installed and better.

    dtype: the requested name. dims: of the model.

    Raises:
        OptionError: another name, or the environment names an instruction set that does not run here.
        MissingExtraError: PyTorch is needed and not installed.
    """
    check_runtime(backend)
    if backend != AUTO:
        return RuntimeChoice(backend, "asked for")
    need = _need_of_torch(dtype, device, dims)
    if need is not None:
        require_torch(need)
        return RuntimeChoice("torch", need)
    instruction_set = load_kernels("alignatt").in_use()
    better = _advantage_of_torch(dtype, instruction_set, dims)
    if better is not None and has_torch():
        return RuntimeChoice("torch", better)
    return RuntimeChoice("native", f"instruction set {instruction_set}")


def _need_of_torch(dtype: str, device: Device, dims: ModelDims) -> str | None:
    """Return why the native kernels cannot run a model, or None."""
    if device.type != "cpu":
        return f"device {device.type}"
    if dtype not in OPEN_DTYPES and dtype != "int8":
        return f"dtype {dtype}"
    if (sizes := beyond_kernels(dims)) is not None:
        return sizes
    try:
        load_kernels("alignatt")
    except ImportError as error:
        return f"a model without the native kernels ({error})"
    return None


def _advantage_of_torch(dtype: str, instruction_set: str, dims: ModelDims) -> str | None:
    if dtype not in OPEN_DTYPES:
        return f"dtype {dtype} asked for"
    if dims.n_text_state < LEAST_TEXT_STATE:
        return f"a small model, of width {dims.n_text_state}"
    if instruction_set in SLOW_SETS:
        return f"native kernels would be slower, instruction set {instruction_set}"
    return None
