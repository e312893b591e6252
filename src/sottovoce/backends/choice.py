"""Which runtime reads with a checkpoint: the one that is asked for, or the fastest that is near enough."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sottovoce.backends.kernels import WIDEST_HEAD, load_kernels
from sottovoce.backends.registry import BACKENDS
from sottovoce.errors import OptionError
from sottovoce.models.dims import ModelDims

AUTO = "auto"
RUNTIMES = (AUTO, *BACKENDS)
OPEN_DTYPES = ("auto", "default")
"""Number formats that leave the choice to us; who names one gets it from PyTorch."""
SLOW_SETS = ("portable",)
"""Instruction sets of the kernels with which PyTorch is faster."""
LEAST_TEXT_STATE = 384
"""Width of Whisper's narrowest decoder, `tiny`; of narrower ones no error in eight bits was measured."""


@dataclass(frozen=True, slots=True)
class RuntimeChoice:
    """A runtime by its name in `BACKENDS`. reason: why it was taken, the rest of a line."""

    name: str
    reason: str


def check_runtime(backend: str) -> None:
    """Raises: OptionError for a runtime that is not in `RUNTIMES`."""
    if backend not in RUNTIMES:
        raise OptionError(f"backend {backend!r} given, expected one of {', '.join(RUNTIMES)}")


def choose_runtime(backend: str, dtype: str, device: torch.device, dims: ModelDims) -> RuntimeChoice:
    """Choose a runtime by name; "auto" takes the native kernels on a CPU unless a dtype is asked for.

    dtype: the name that was asked for. dims: of the model.

    Raises: OptionError for another name, or where the environment names an instruction set that does not run
    here.
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
