"""Samples in memory: checks and conversion of arrays, and the buffer of a live stream."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import numpy.typing as npt

from sottovoce.errors import AudioError, OptionError
from sottovoce.types import SAMPLE_RATE, Samples

if TYPE_CHECKING:
    from torch import Tensor


MAX_CHANNELS = 64
MIN_RATE, MAX_RATE = 1_000, 768_000
"""Plausible sample rates; a header with another one is damaged."""


Array = npt.NDArray[np.generic]


def is_tensor(value: object) -> TypeGuard[Tensor]:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def tensor_array(tensor: Tensor, name: str) -> Array:
    """Return a tensor as an array. Raises: AudioError for one outside the memory of the CPU."""
    if tensor.device.type != "cpu":
        raise AudioError(f"{name}: expected a tensor on the CPU (use .cpu()), got one on {tensor.device}")
    is_half = tensor.is_floating_point() and tensor.dtype.itemsize < 4  # NumPy has no bfloat16
    array: Array = (tensor.float() if is_half else tensor).numpy(force=True)
    return array


LOUDEST = 2.0**7
"""Full scale of 8 bits, the fewest: louder float samples are integers that were not divided by theirs."""


def check_floats(samples: Samples, name: str) -> None:
    """Check float samples (..., n).

    Raises: AudioError for NaN or infinity, with number and first position, and for the scale of integers.
    """
    peak = float(np.abs(samples).max(initial=0.0))
    if peak <= LOUDEST:
        return
    bad = ~np.isfinite(samples)
    if not bad.any():
        raise AudioError(
            f"{name}: expected float samples from -1 to 1, got up to {peak:g}: divide by their full scale"
        )
    first = int(np.nonzero(bad.reshape(-1, bad.shape[-1]).any(axis=0))[0][0])
    raise AudioError(
        f"{name}: expected finite samples, got {int(bad.sum())} NaN or infinite of {bad.size}, "
        f"the first at sample {first} ({first / SAMPLE_RATE:.3f} s)"
    )


def to_float32(array: Array, name: str) -> Samples:
    """Convert samples to float32 in [-1, 1]: floats unchanged, integers divided by full scale.

    Raises: AudioError for another dtype, NaN, infinity, or floats on the scale of integers.
    """
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            samples = np.ascontiguousarray(array, dtype=np.float32)
        check_floats(samples, name)
        return samples
    if array.dtype.kind == "i" and array.dtype.itemsize in (2, 4):
        full_scale = 2.0 ** (8 * array.dtype.itemsize - 1)
        return (array.astype(np.float64) / full_scale).astype(np.float32)
    raise AudioError(f"{name}: expected float, int16 or int32 samples, got {array.dtype}")


def as_samples(array: Array, name: str) -> Samples:
    if array.ndim != 1:
        raise AudioError(f"{name}: expected samples of shape (n,), got {array.shape}")
    return to_float32(array, name)


def channel_axis(array: Array, name: str) -> int | None:
    """Return the axis of channels, the shorter one; None for samples (n,). Raises: AudioError."""
    if array.ndim == 1:
        return None
    if array.ndim == 2 and min(array.shape) <= MAX_CHANNELS and (len({*array.shape}) == 2 or array.size == 1):
        return int(array.shape[0] > array.shape[1])
    raise AudioError(
        f"{name}: expected samples of shape (n,), (channels, n) or (n, channels) with at most {MAX_CHANNELS} "
        f"channels, fewer than samples, got {array.shape}"
    )


def as_channels(array: Array, name: str, axis: int | None = None) -> Samples:
    """Return samples (n_channels, n) float32. axis: of channels; None: `channel_axis`. Raises: AudioError."""
    axis = channel_axis(array, name) if axis is None else axis
    return np.atleast_2d(to_float32(array.T if axis == 1 else array, name))


def chunk_samples(chunk_s: float) -> int:
    """Return the samples of a chunk. Raises: OptionError for less than one."""
    if not chunk_s * SAMPLE_RATE >= 1:
        raise OptionError(f"chunk_s: expected at least one sample ({1 / SAMPLE_RATE} s), got {chunk_s}")
    return round(chunk_s * SAMPLE_RATE)


_MIN_CAPACITY = SAMPLE_RATE


class AudioBuffer:
    """Samples [start, end) of a stream, with absolute indices: append, drop the beginning, view any range.

    Appending and dropping cost amortised constant time a sample.
    """

    def __init__(self) -> None:
        self._data = np.empty(_MIN_CAPACITY, np.float32)
        self._first = 0  # position in _data of sample `start`
        self.start = 0
        self.end = 0

    def __len__(self) -> int:
        return self.end - self.start

    def append(self, samples: npt.NDArray[np.float32]) -> None:
        """Append samples (n,) float32 at 16 kHz."""
        self._reserve(len(samples))
        position = self._first + len(self)
        self._data[position : position + len(samples)] = samples
        self.end += len(samples)

    def drop_before(self, sample: int) -> None:
        """Drop the samples before the absolute index `sample`."""
        sample = min(max(sample, self.start), self.end)
        self._first += sample - self.start
        self.start = sample

    def view(self, start: int | None = None, end: int | None = None) -> Samples:
        """Return samples [start, end) as an immutable array (n,) float32.

        Raises: AudioError for samples that are not held.
        """
        first = self.start if start is None else start
        last = self.end if end is None else end
        if not self.start <= first <= last <= self.end:
            raise AudioError(
                f"audio buffer: expected samples in [{self.start}, {self.end}), got [{first}, {last})"
            )
        offset = self._first - self.start
        held = self._data[offset + first : offset + last]
        held.flags.writeable = False
        return held

    def _reserve(self, n_new: int) -> None:
        n_needed = len(self) + n_new
        if self._first + n_needed <= len(self._data):
            return
        capacity = max(_MIN_CAPACITY, 2 * n_needed)
        moved = np.empty(capacity, np.float32)
        moved[: len(self)] = self._data[self._first : self._first + len(self)]
        self._data, self._first = moved, 0
