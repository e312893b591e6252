"""Check samples: float32, finite, of a known shape; anything else raises an error of one line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import numpy.typing as npt

from sottovoce.errors import AudioError
from sottovoce.types import SAMPLE_RATE, Samples

MAX_CHANNELS = 64
"""Channels that libswresample can take."""
MIN_RATE, MAX_RATE = 1_000, 768_000
"""Sample rates that are believed; outside of them a header is damaged."""

if TYPE_CHECKING:
    from torch import Tensor

Array = npt.NDArray[np.generic]


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """Tell whether a value is a PyTorch tensor (any shape), without importing PyTorch: who has one has
    imported it.
    """
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def tensor_array(tensor: Tensor, name: str) -> Array:
    """Return the samples of a tensor as an array of the same shape, which shares its memory where it can.

    Raises: AudioError for a tensor that is not in the memory of the CPU.
    """
    if tensor.device.type != "cpu":
        raise AudioError(f"{name}: expected a tensor on the CPU (use .cpu()), got one on {tensor.device}")
    is_half = tensor.is_floating_point() and tensor.dtype.itemsize < 4  # NumPy has no bfloat16
    array: Array = (tensor.float() if is_half else tensor).numpy(force=True)
    return array


def require_finite(samples: Samples, name: str, *, start_sample: int = 0) -> None:
    """Check that samples (..., n) are finite; the error gives the number of bad ones and the first position.

    start_sample: index of the first sample in the recording, at 16 kHz.
    Raises: AudioError for NaN or infinity.
    """
    if np.isfinite(samples).all():
        return
    bad = ~np.isfinite(samples)
    first = start_sample + int(np.nonzero(bad.reshape(-1, bad.shape[-1]).any(axis=0))[0][0])
    raise AudioError(
        f"{name}: expected finite samples, got {int(bad.sum())} NaN or infinite of {bad.size}, "
        f"the first at sample {first} ({first / SAMPLE_RATE:.3f} s)"
    )


def to_float32(array: Array, name: str) -> Samples:
    """Convert samples of any shape to float32 in [-1, 1]: floats unchanged, int16 and int32 over their full
    scale.

    Raises: AudioError for another dtype, NaN or infinity.
    """
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            samples = np.ascontiguousarray(array, dtype=np.float32)
        require_finite(samples, name)
        return samples
    if array.dtype in (np.int16, np.int32):
        full_scale = 2.0 ** (8 * array.dtype.itemsize - 1)
        return (array.astype(np.float64) / full_scale).astype(np.float32)
    raise AudioError(f"{name}: expected float, int16 or int32 samples, got {array.dtype}")


def as_samples(array: Array, name: str) -> Samples:
    """Return mono samples (n,) float32 of a one-dimensional array; see `to_float32` for the dtypes.

    Raises: AudioError for another shape or dtype, NaN or infinity.
    """
    if array.ndim != 1:
        raise AudioError(f"{name}: expected samples of shape (n,), got {array.shape}")
    return to_float32(array, name)


def as_channels(array: Array, name: str) -> Samples:
    """Return samples (n_channels, n) float32 of an array of shape (n,) or (n_channels, n).

    Raises: AudioError for another shape or dtype, NaN, infinity, or no sample at all.
    """
    if array.ndim not in (1, 2) or (array.ndim == 2 and not 1 <= array.shape[0] <= MAX_CHANNELS):
        raise AudioError(
            f"{name}: expected samples of shape (n,) or (channels, n) with 1 to {MAX_CHANNELS} channels, "
            f"got {array.shape}"
        )
    if array.shape[-1] == 0:
        raise AudioError(f"{name}: expected audio, got no samples")
    return np.atleast_2d(to_float32(array, name))
