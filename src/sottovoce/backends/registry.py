"""From a model's name to a running backend: which runtime, which device, which number format."""

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
from sottovoce.backends.torch import TorchBackend
from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.load import load_checkpoint


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """dtype: of the activations and the weights. int8: but the large tables are kept in eight bits."""

    dtype: torch.dtype
    int8: bool = False


BackendFactory: TypeAlias = Callable[[Checkpoint, torch.device, NumberFormat], Backend]

DTYPES = MappingProxyType({"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16})
NUMBER_FORMATS: MappingProxyType[str, tuple[str, bool]] = MappingProxyType(
    {name: (name, False) for name in ("auto", *DTYPES)}
    | {"int8": ("auto", True), "default": ("auto", False)}
    | {f"int8_{name}": (name, True) for name in DTYPES}
)
"""What may be asked for: the dtype of the activations, and whether tables are in eight bits."""


KERNELS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""How many kernels oneDNN keeps, one for each shape, and how many PyTorch keeps beside it; 1024 each where
nobody says. Windows that grow have shapes that never come again: with 16 of both a live session of base in
bfloat16 stays at 0.7 GB where it grew by 30 MB a minute beyond 1.7, and takes no more time."""


def _torch(checkpoint: Checkpoint, device: torch.device, numbers: NumberFormat) -> TorchBackend:
    if device.type == "cpu":
        for name in KERNELS:
            os.environ.setdefault(name, "16")
    return TorchBackend.from_checkpoint(checkpoint, device=device, dtype=numbers.dtype, int8=numbers.int8)


BACKENDS: MappingProxyType[str, BackendFactory] = MappingProxyType({"torch": _torch})
"""Every runtime; another is one entry."""


def load_backend(name_or_path: str | Path, *, device: str = "auto", dtype: str = "auto") -> TorchBackend:
    """A model on PyTorch, by name or path.

    device: as for `choose_device`.
    dtype: "auto" (see `choose_dtype`), "float32", "bfloat16", "float16", "int8"
        (see `choose_number_format`).

    Raises: ModelNotFoundError, CheckpointError, OptionError.
    """
    where = choose_device(device)
    numbers = choose_number_format(dtype, where)
    return _torch(load_checkpoint(name_or_path), where, numbers)


def choose_device(device: str) -> torch.device:
    """The device meant by a name: "cpu", "cuda", "cuda:1", "mps", or "auto" for the best that is there.

    Raises: OptionError when it is unknown or not there.
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
    """The number format meant by a name: as `choose_dtype`, or "int8" for weights in eight bits.

    CTranslate2's names are known too: "default" is "auto" here, and "int8_float32" and the like say what
    stands beside the eight bits.

    Raises: OptionError.
    """
    if dtype not in NUMBER_FORMATS:
        raise OptionError(f"dtype {dtype!r} given, expected one of {', '.join(NUMBER_FORMATS)}")
    beside, int8 = NUMBER_FORMATS[dtype]
    return NumberFormat(choose_dtype(beside, device), int8)


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The floating number format meant by a name.

    "auto" is float16 on CUDA, as openai-whisper runs, and on Apple's GPUs; on a CPU bfloat16 where the
    processor multiplies it natively (AVX512-BF16 or AMX), float32 elsewhere: emulated bfloat16 is slower.
    Apple's GPUs take no bfloat16: older ones and older systems lack it.

    Raises: OptionError.
    """
    if dtype == "auto":
        if device.type in ("cuda", "mps"):
            return torch.float16
        return torch.bfloat16 if cpu_has_bfloat16() else torch.float32
    if dtype not in DTYPES:
        raise OptionError(f"dtype {dtype!r} given, expected auto or one of {', '.join(DTYPES)}")
    if dtype == "bfloat16" and device.type == "mps":
        raise OptionError("dtype 'bfloat16' given, expected float32 or float16 on mps")
    return DTYPES[dtype]


def cpu_has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether an x86 processor multiplies bfloat16 natively; False where Linux does not tell."""
    if platform.machine() not in ("x86_64", "AMD64") or not cpuinfo.exists():
        return False
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return "avx512_bf16" in flags or "amx_bf16" in flags
