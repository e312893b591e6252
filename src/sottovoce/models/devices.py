"""Choice of a device and a number format by name."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from sottovoce.errors import OptionError

DTYPES = MappingProxyType({"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16})
NUMBER_FORMATS: MappingProxyType[str, tuple[str, bool]] = MappingProxyType(
    {name: (name, False) for name in ("auto", *DTYPES)}
    | {"int8": ("auto", True), "default": ("auto", False)}
    | {f"int8_{name}": (name, True) for name in DTYPES}
)
"""Names to the dtype of the activations, and whether tables are int8."""


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """How weights are stored. dtype: of activations and weights. int8: large tables are int8.

    is_open: the dtype was not named, so a runtime may use another one.
    """

    dtype: torch.dtype
    int8: bool = False
    is_open: bool = False


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
