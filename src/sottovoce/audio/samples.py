"""What counts as samples: float32, finite, of a known shape; everything else is refused in one line.

This module knows no file format.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sottovoce.errors import AudioError
from sottovoce.types import SAMPLE_RATE, Samples

MAX_CHANNELS = 64
"""Channels that libswresample can take."""
MIN_RATE, MAX_RATE = 1_000, 768_000
"""Sample rates that are believed; outside of them a header is damaged."""

Array = npt.NDArray[np.generic]


def require_finite(samples: Samples, name: str, *, start_sample: int = 0) -> None:
    """Raise AudioError when samples (..., n) hold NaN or infinity, with their number and the first place.

    start_sample: index of the first sample in the recording, at 16 kHz.
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
    """Samples as float32 in [-1, 1]: floats as they are, int16 and int32 divided by their full scale.

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
    """Mono samples (n,) float32 of a one-dimensional array; see `to_float32` for the dtypes.

    Raises: AudioError for another shape or dtype, NaN or infinity.
    """
    if array.ndim != 1:
        raise AudioError(f"{name}: expected samples of shape (n,), got {array.shape}")
    return to_float32(array, name)


def as_channels(array: Array, name: str) -> Samples:
    """Samples (n_channels, n) float32 of an array of shape (n,) or (n_channels, n).

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
