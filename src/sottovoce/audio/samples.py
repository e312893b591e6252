"""Samples in memory: checks and conversion of arrays, the mix of channels to one, rates, and the buffer of a
live stream.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeGuard, TypeVar, cast

import av
import numpy as np
import numpy.typing as npt

from sottovoce.errors import AudioError, OptionError
from sottovoce.threads import imported_torch
from sottovoce.types import SAMPLE_RATE, Samples

if TYPE_CHECKING:
    from torch import Tensor


MAX_CHANNELS = 64
MIN_RATE, MAX_RATE = 1_000, 768_000
"""Plausible sample rates; a header with another one is damaged."""


Array = npt.NDArray[np.generic]


def is_tensor(value: object) -> TypeGuard[Tensor]:
    torch = imported_torch()
    return torch is not None and isinstance(value, torch.Tensor)


def tensor_array(tensor: Tensor, name: str) -> Array:
    """Return a tensor as an array. Raises: AudioError for one outside the memory of the CPU."""
    if tensor.device.type != "cpu":
        raise AudioError(f"{name}: expected a tensor on the CPU (use .cpu()), got one on {tensor.device}")
    is_half = tensor.is_floating_point() and tensor.dtype.itemsize < 4  # NumPy has no bfloat16
    return (tensor.float() if is_half else tensor).numpy(force=True)


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


logger = logging.getLogger(__name__)

BLOCK_SAMPLES = SAMPLE_RATE // 10
N_SUSTAINED = 5
"""Blocks of 0.1 s that must agree before channels are left out or used again.

This number and the next two are set by hand. Source of the cases between them: tests/audio/test_downmix.py.
"""
CANCELLED, INTACT = 0.1, 0.5
"""Energy of a downmix relative to that of uncorrelated channels: below -10 dB they cancel each other, above
-3 dB they do not.
"""

Pcm16: TypeAlias = npt.NDArray[np.int16]
S = TypeVar("S", np.int16, np.float32)


@dataclass(frozen=True, slots=True)
class _Block(Generic[S]):
    """mixed (n,), channels (n_channels, n) and their products; energies of mixed, rounding, uncorrelated."""

    mixed: npt.NDArray[S]
    channels: npt.NDArray[S]
    products: npt.NDArray[np.float64]
    energies: npt.NDArray[np.float64]


class Downmix(Generic[S]):
    """Passes a downmix on, and leaves out channels while they cancel the others (one is the other times -1).

    The result does not depend on the cuts. weights: (n_channels,) of the downmix. first_sample: position in
    the recording. warned: names already in the log.

    Uncorrelated channels x_k with weights w_k have the energy `E = sum w_k^2 |x_k|^2`. Where the downmix has
    less than E / 10 for half a second, the channels without which it is loudest are left out, until it has
    more than E / 2.
    """

    def __init__(
        self, weights: Sequence[float], name: str, *, first_sample: int = 0, warned: set[str] | None = None
    ) -> None:
        self._weights = np.asarray(weights, np.float64)
        self._name = name
        self._next_sample = first_sample
        self._pending: tuple[npt.NDArray[S], npt.NDArray[S]] | None = None
        self._waiting: deque[_Block[S]] = deque()
        self._kept: tuple[int, ...] = ()
        self._warned = set() if warned is None else warned

    def push(
        self, mixed: npt.NDArray[S], channels: npt.NDArray[S], *, is_last: bool = False
    ) -> npt.NDArray[S]:
        """Append downmix (n,) and channels (n_channels, n); return the decided samples, all if is_last."""
        if self._pending is not None:
            mixed = np.concatenate([self._pending[0], mixed])
            channels = np.concatenate([self._pending[1], channels], axis=1)
        done: list[npt.NDArray[S]] = [mixed[:0]]
        start = 0
        while (end := start + BLOCK_SAMPLES - self._next_sample % BLOCK_SAMPLES) <= len(mixed):
            done += self._take(mixed[start:end], channels[:, start:end])
            start = end
        self._pending = mixed[start:], channels[:, start:]
        if is_last:
            done += self._take(mixed[start:], channels[:, start:], is_last=True)
        return np.concatenate(done)

    def _take(
        self, mixed: npt.NDArray[S], channels: npt.NDArray[S], *, is_last: bool = False
    ) -> Iterator[npt.NDArray[S]]:
        levels, mix = channels.astype(np.float64), mixed.astype(np.float64)
        products = levels @ levels.T
        rounding = 0.25 * len(mixed) if mixed.dtype.kind == "i" else 0.0  # integers: half a unit, squared
        energies = np.array([mix @ mix, rounding, self._weights**2 @ np.diag(products)])
        self._waiting.append(_Block(mixed, channels, products, energies))
        self._next_sample += len(mixed)
        while self._waiting:
            stretch = list(self._waiting)[:N_SUSTAINED]
            if self._changes(stretch[:1]):
                if len(stretch) < N_SUSTAINED and not is_last:
                    break
                if self._changes(stretch):
                    self._kept = () if self._kept else self._best_channels(stretch)
                    self._log()
            yield self._mix(self._waiting.popleft())

    def _changes(self, stretch: list[_Block[S]]) -> bool:
        sounding = [block for block in stretch if CANCELLED * block.energies[2] > block.energies[1]]
        n_changed = sum(self._is_across([block]) for block in sounding)
        return self._is_across(stretch) and 2 * n_changed > len(sounding)

    def _is_across(self, blocks: list[_Block[S]]) -> bool:
        energy, rounding, uncorrelated = np.sum([block.energies for block in blocks], axis=0).tolist()
        if self._kept:
            return bool(energy - rounding > INTACT * uncorrelated)
        return bool(energy + rounding < CANCELLED * uncorrelated)

    def _best_channels(self, stretch: list[_Block[S]]) -> tuple[int, ...]:
        products = np.sum([block.products for block in stretch], axis=0)

        def energy(kept: Sequence[int], products: npt.NDArray[np.float64]) -> float:
            weights = self._weights[list(kept)]
            return float(weights @ products[np.ix_(kept, kept)] @ weights / weights.sum() ** 2)

        uncorrelated = np.diag(np.diag(products))
        kept = tuple(int(channel) for channel in np.flatnonzero(self._weights))
        while len(kept) > 1 and energy(kept, products) <= INTACT * energy(kept, uncorrelated):
            fewer = [tuple(channel for channel in kept if channel != left_out) for left_out in reversed(kept)]
            kept = max(fewer, key=lambda some: energy(some, products))
        return kept

    def _mix(self, block: _Block[S]) -> npt.NDArray[S]:
        if not self._kept:
            return block.mixed
        kept, weights = list(self._kept), self._weights[list(self._kept)]
        mixed = weights @ block.channels[kept].astype(np.float64) / weights.sum()
        result: npt.NDArray[S] = np.rint(mixed) if block.mixed.dtype.kind == "i" else mixed
        return result.astype(block.mixed.dtype)

    def _log(self) -> None:
        if self._name in self._warned or not self._kept:
            return
        self._warned.add(self._name)
        first_s = (self._next_sample - sum(len(block.mixed) for block in self._waiting)) / SAMPLE_RATE
        logger.warning(
            "%s: from %.1f s on channels cancel each other; there, of %d channels only %s used",
            self._name,
            first_s,
            len(self._weights),
            " and ".join(str(channel + 1) for channel in self._kept)
            + (" is" if len(self._kept) == 1 else " are"),
        )


UNPLACED = Fraction(1, SAMPLE_RATE)
"""Time base of frames without a time."""


class Pcm16Resampler:
    """Resamples to 16 kHz 16 bits with libswresample. next_sample: position of the next frame, at 16 kHz.

    joined_s: seconds of short frames that are resampled together; 0.0: every frame at once. The samples do
    not depend on it.
    """

    def __init__(self, name: str, *, keep_channels: bool, warned: set[str], joined_s: float = 0.0) -> None:
        self.next_sample = 0
        self._joined_s = joined_s
        self._warned = warned
        self._name = name
        self._keep_channels = keep_channels
        self._n_channels = 0
        self._channels: av.AudioResampler | None = None
        self._mono: av.AudioResampler | None = None
        self._downmix: Downmix[np.int16] | None = None

    def resampled(self, frames: Iterable[av.AudioFrame]) -> Iterator[Pcm16]:
        """Yield blocks (n, n_channels) that are not empty, of all frames."""
        source = None
        joined = av.AudioFifo()
        for frame in frames:
            layout = (frame.format.name, frame.layout.name, frame.sample_rate)
            if layout != source:
                yield from self._rest(joined)
                self._start(frame)
                source, joined = layout, av.AudioFifo()
            n_joined = self._joined_s * frame.sample_rate
            if frame.samples >= n_joined and not joined.samples:
                yield from self._block(frame)
                continue
            frame.pts, frame.time_base = None, UNPLACED  # else they must follow one another
            joined.write(frame)
            if joined.samples >= n_joined:
                yield from self._block(joined.read())
        yield from self._rest(joined)

    def _rest(self, joined: av.AudioFifo) -> Iterator[Pcm16]:
        if joined.samples:
            yield from self._block(joined.read())
        yield from self._block(None)

    def _start(self, frame: av.AudioFrame) -> None:
        n_channels = frame.layout.nb_channels
        if not (MIN_RATE <= frame.sample_rate <= MAX_RATE and 1 <= n_channels <= MAX_CHANNELS):
            raise AudioError(
                f"{self._name}: expected {MIN_RATE} to {MAX_RATE} Hz and 1 to {MAX_CHANNELS} channels, "
                f"got {frame.sample_rate} Hz and {n_channels} channels"
            )
        if self._keep_channels and n_channels != (self._n_channels or n_channels):
            raise AudioError(
                f"{self._name}: expected {self._n_channels} channels to the end, got {n_channels} on the way"
            )
        self._n_channels = n_channels
        self._channels = self._mono = self._downmix = None
        if n_channels == 1:
            self._mono = _resampler_to("mono")
            return
        self._channels = _resampler_to(frame.layout.name)
        if self._keep_channels:
            return
        weights = downmix_weights(frame.layout.name)
        if weights is None:  # averaged
            weights = (1 / n_channels,) * n_channels
        else:
            self._mono = _resampler_to("mono")
        self._downmix = Downmix(weights, self._name, first_sample=self.next_sample, warned=self._warned)

    def _block(self, frame: av.AudioFrame | None) -> Iterator[Pcm16]:
        channels = _resampled(self._channels, frame, self._n_channels)
        mono = _resampled(self._mono, frame, 1)
        block = mono if self._channels is None else channels
        if self._downmix is not None:
            if self._mono is None:
                mono = np.rint(channels.mean(axis=1, keepdims=True)).astype(np.int16)
            block = self._downmix.push(mono[:, 0], channels.T, is_last=frame is None)[:, None]
        self.next_sample += len(block)
        if len(block):
            yield block


def _resampler_to(layout: str) -> av.AudioResampler:
    return av.AudioResampler(format="s16", layout=layout, rate=SAMPLE_RATE)


def _resampled(resampler: av.AudioResampler | None, frame: av.AudioFrame | None, n_channels: int) -> Pcm16:
    frames = [] if resampler is None else resampler.resample(frame)
    # Packed samples only: PyAV miscounts the planes of planar frames with 8 channels and more.
    packed = [cast(Pcm16, resampled.to_ndarray()) for resampled in frames if resampled is not None]
    blocks = [samples.reshape(-1, n_channels) for samples in packed]
    return blocks[0] if len(blocks) == 1 else np.concatenate([np.zeros((0, n_channels), np.int16), *blocks])


def downmix_weights(layout: str) -> tuple[float, ...] | None:
    """Measure the weights (n_channels,) of libswresample's mono downmix; None without a rule."""
    n_channels = av.AudioLayout(layout).nb_channels
    pulses = np.eye(n_channels, dtype=np.int16) * 2**14
    frame = av.AudioFrame.from_ndarray(pulses.reshape(1, -1), format="s16", layout=layout)
    frame.sample_rate = SAMPLE_RATE
    try:
        mixed = _resampled(_resampler_to("mono"), frame, 1)
    except av.FFmpegError:
        return None
    return tuple(mixed[:, 0] / 2**14)


MAX_PUSH_S = 600.0
PUSHED = "pushed audio"


class PushedAudio:
    """Mixes the pieces of a stream to 16 kHz mono. The first says the rate, the channels and their axis."""

    def __init__(self) -> None:
        self._mixer: FloatMixer | None = None
        self._rate, self._n_channels = SAMPLE_RATE, 1
        self._axis: int | None = None

    def push(self, pcm: object, sample_rate: int = SAMPLE_RATE) -> Samples:
        """Convert an array or a tensor to samples (n,) float32, which lag as those of `FloatMixer`.

        Raises: AudioError for other samples than the first, or more than `MAX_PUSH_S`; nothing is changed.
        """
        array = tensor_array(pcm, PUSHED) if is_tensor(pcm) else pcm
        if isinstance(array, memoryview) and array.itemsize > 1:
            array = np.asarray(array)
        if not isinstance(array, np.ndarray):
            kind = type(pcm).__name__
            raise AudioError(f"{PUSHED}: expected an array (of bytes: np.frombuffer) or a tensor, got {kind}")
        if not array.size:
            return np.zeros(0, np.float32)
        axis = self._axis if self._axis is not None and array.ndim == 2 else channel_axis(array, PUSHED)
        n_samples = array.shape[-1 if axis is None else 1 - axis]
        n_channels = array.size // n_samples
        mixer = self._mixer or FloatMixer(sample_rate, n_channels, PUSHED)
        if self._mixer is not None and (sample_rate, n_channels) != (self._rate, self._n_channels):
            raise AudioError(
                f"{PUSHED}: expected {self._rate} Hz and {self._n_channels} channels as at first, "
                f"got {sample_rate} Hz and {n_channels} channels"
            )
        seconds = n_samples / sample_rate
        if seconds > MAX_PUSH_S:
            raise AudioError(f"{PUSHED}: expected at most {MAX_PUSH_S:.0f} s at once, got {seconds:.0f} s")
        samples: Samples = mixer.push(as_channels(array, PUSHED, axis))[0]
        if self._mixer is None:
            self._mixer, self._rate, self._n_channels, self._axis = mixer, sample_rate, n_channels, axis
        return samples

    def flush(self) -> Samples:
        """Return the last samples (n,)."""
        return np.zeros(0, np.float32) if self._mixer is None else self._mixer.flush()[0]


def whole_rate(name: str, sample_rate: float) -> int:
    """Return a rate as an integer: sounddevice says 44100.0. Raises: AudioError outside 1 to 768 kHz."""
    is_number = isinstance(sample_rate, int | float | np.number)
    if not (is_number and MIN_RATE <= sample_rate <= MAX_RATE and float(sample_rate).is_integer()):
        raise AudioError(f"{name}: expected {MIN_RATE} to {MAX_RATE} Hz, got {sample_rate!r} Hz")
    return int(sample_rate)


class FloatMixer:
    """Resamples (n_channels, n) float32 to 16 kHz, and mixes to (1, n) by the mean unless keep_channels.

    first_sample, warned: see `Downmix`. Raises: AudioError for a rate outside 1 to 768 kHz.
    """

    def __init__(
        self,
        sample_rate: int,
        n_channels: int,
        name: str,
        *,
        keep_channels: bool = False,
        first_sample: int = 0,
        warned: set[str] | None = None,
    ) -> None:
        self._rate = whole_rate(name, sample_rate)
        self._downmix: Downmix[np.float32] | None = None
        if n_channels > 1 and not keep_channels:
            weights = (1 / n_channels,) * n_channels
            self._downmix = Downmix(weights, name, first_sample=first_sample, warned=warned)
        n_rows = n_channels + (self._downmix is not None)
        self._resamplers = [av.AudioResampler("flt", "mono", SAMPLE_RATE) for _ in range(n_rows)]

    def push(self, samples: Samples) -> Samples:
        """Convert (n_channels, n) float32; the output lags a few samples, mixed at most 0.5 s."""
        rows = samples
        if self._downmix is not None:
            rows = np.concatenate((samples.mean(axis=0, keepdims=True, dtype=np.float32), samples))
        if self._rate != SAMPLE_RATE:
            frames = [
                av.AudioFrame.from_ndarray(np.ascontiguousarray(row)[None], "flt", "mono") for row in rows
            ]
            for frame in frames:
                frame.sample_rate = self._rate
            rows = self._resampled(frames)
        return rows if self._downmix is None else self._downmix.push(rows[0], rows[1:])[None]

    def flush(self) -> Samples:
        rows: Samples = np.zeros((len(self._resamplers), 0), np.float32)
        if self._rate != SAMPLE_RATE:
            rows = self._resampled([None] * len(self._resamplers))
        return rows if self._downmix is None else self._downmix.push(rows[0], rows[1:], is_last=True)[None]

    def _resampled(self, frames: Sequence[av.AudioFrame | None]) -> Samples:
        rows = []
        for resampler, frame in zip(self._resamplers, frames, strict=True):
            parts = [out.to_ndarray()[0] for out in resampler.resample(frame)]
            rows.append(np.concatenate([np.zeros(0, np.float32), *parts]))
        return np.stack(rows)
