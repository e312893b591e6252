"""From a model's name to a running backend: which runtime, which device, which number format."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import torch

from sottovoce.backends.base import Backend
from sottovoce.backends.torch import TorchBackend
from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.hub import load_checkpoint

BackendFactory: TypeAlias = Callable[[Checkpoint, torch.device, torch.dtype], Backend]

DTYPES = MappingProxyType({"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16})


def _torch(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> TorchBackend:
    return TorchBackend.from_checkpoint(checkpoint, device=device, dtype=dtype)


BACKENDS: MappingProxyType[str, BackendFactory] = MappingProxyType({"torch": _torch})
"""Every runtime; another is one entry."""


def load_backend(name_or_path: str | Path, *, device: str = "auto", dtype: str = "auto") -> TorchBackend:
    """A model on PyTorch, by name or path.

    device: "auto" (CUDA where there is one), "cpu", "cuda" or "cuda:1".
    dtype: "auto" (see `choose_dtype`), "float32", "bfloat16" or "float16".

    Raises: ModelNotFoundError, CheckpointError, OptionError.
    """
    where = choose_device(device)
    number_format = choose_dtype(dtype, where)
    return _torch(load_checkpoint(name_or_path), where, number_format)


def choose_device(device: str) -> torch.device:
    """The device meant by a name.

    Raises: OptionError when it is unknown or not there.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise OptionError(f"device {device!r} given, expected auto, cpu or cuda") from error
    if chosen.type not in ("cpu", "cuda"):
        raise OptionError(f"device {device!r} given, expected auto, cpu or cuda")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise OptionError(
            f"device {device!r} given, but {torch.cuda.device_count()} CUDA devices are visible"
        )
    return chosen


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The number format meant by a name.

    "auto" is float16 on CUDA, as openai-whisper runs; on a CPU bfloat16 where the processor
    multiplies it natively (AVX512-BF16 or AMX), float32 elsewhere: emulated bfloat16 is slower.
    There is no int8 yet: PyTorch's int8 weights speed up single rows of the decoder two to three times, and
    slow the encoder down.

    Raises: OptionError.
    """
    if dtype == "auto":
        if device.type == "cuda":
            return torch.float16
        return torch.bfloat16 if cpu_has_bfloat16() else torch.float32
    if dtype == "int8":
        raise OptionError("dtype int8 given, which the torch backend does not have: use bfloat16 or float32")
    if dtype not in DTYPES:
        raise OptionError(f"dtype {dtype!r} given, expected auto or one of {', '.join(DTYPES)}")
    return DTYPES[dtype]


def cpu_has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether an x86 processor multiplies bfloat16 natively; False where Linux does not tell."""
    if platform.machine() not in ("x86_64", "AMD64") or not cpuinfo.exists():
        return False
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return "avx512_bf16" in flags or "amx_bf16" in flags
