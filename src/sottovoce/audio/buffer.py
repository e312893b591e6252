"""The sample buffer of a live stream, addressed by absolute sample index.

Time is samples received: sample i of the stream keeps the index i for ever, whatever has been dropped
before it. This module knows no files, no clock and no speech.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sottovoce.audio.samples import require_finite
from sottovoce.errors import AudioError, OptionError
from sottovoce.types import SAMPLE_RATE, Samples

MAX_PUSH_S = 600.0
_MIN_CAPACITY = SAMPLE_RATE


class AudioBuffer:
    """Samples [start, end) of a stream: append at the end, drop at the start, view anything between.

    Appending and dropping cost amortised constant time a sample; memory is at most about four times the
    longest stretch held. max_push_s: longest push that is accepted, in seconds.

    Raises: OptionError for a max_push_s that is not positive.
    """

    def __init__(self, *, max_push_s: float = MAX_PUSH_S) -> None:
        if not max_push_s > 0:
            raise OptionError(f"max_push_s: expected more than 0 seconds, got {max_push_s}")
        self._max_push_samples = round(max_push_s * SAMPLE_RATE)
        self.reset()

    def reset(self, start_sample: int = 0) -> None:
        """Forget everything; the next sample has the index start_sample."""
        self._data = np.empty(_MIN_CAPACITY, np.float32)
        self._first = 0  # position in _data of sample `start`
        self._start = start_sample
        self._end = start_sample

    @property
    def start(self) -> int:
        """Index of the first sample held."""
        return self._start

    @property
    def end(self) -> int:
        """Index after the last sample held: the samples received so far."""
        return self._end

    def __len__(self) -> int:
        return self._end - self._start

    def append(self, samples: npt.NDArray[np.float32]) -> None:
        """Append samples (n,) float32 at 16 kHz; n = 0 changes nothing.

        Raises: AudioError, with the buffer unchanged, for anything but finite float32 samples of that shape,
            and for a push longer than max_push_s.
        """
        self._check(samples)
        self._reserve(len(samples))
        position = self._first + len(self)
        self._data[position : position + len(samples)] = samples
        self._end += len(samples)

    def drop_before(self, sample: int) -> None:
        """Drop the samples before the absolute index `sample`, which is first clipped to [start, end]."""
        sample = min(max(sample, self._start), self._end)
        self._first += sample - self._start
        self._start = sample

    def view(self, start: int | None = None, end: int | None = None) -> Samples:
        """Return samples [start, end) as a read-only array (n,) float32; later appends and drops do not
        change it.

        start, end: None for those of the buffer.
        Raises: AudioError for samples that are not held.
        """
        first = self._start if start is None else start
        last = self._end if end is None else end
        if not self._start <= first <= last <= self._end:
            raise AudioError(
                f"audio buffer: expected samples in [{self._start}, {self._end}), got [{first}, {last})"
            )
        offset = self._first - self._start
        held = self._data[offset + first : offset + last]
        held.flags.writeable = False
        return held

    def _check(self, samples: npt.NDArray[np.float32]) -> None:
        if not isinstance(samples, np.ndarray):
            raise AudioError(
                f"pushed audio: expected a numpy array or a tensor, got {type(samples).__name__}"
            )
        if samples.dtype != np.float32 or samples.ndim != 1:
            raise AudioError(
                f"pushed audio: expected float32 samples of shape (n,), got {samples.dtype} {samples.shape}"
            )
        if len(samples) > self._max_push_samples:
            raise AudioError(
                f"pushed audio: expected at most {self._max_push_samples / SAMPLE_RATE:.0f} s at once, "
                f"got {len(samples) / SAMPLE_RATE:.0f} s"
            )
        require_finite(samples, "pushed audio", start_sample=self._end)

    def _reserve(self, n_new: int) -> None:
        """Make room for n_new samples at the end, by moving those held to the front of an array of fit
        size.
        """
        n_needed = len(self) + n_new
        if self._first + n_needed <= len(self._data):
            return
        capacity = max(_MIN_CAPACITY, 2 * n_needed)
        moved = np.empty(capacity, np.float32)
        moved[: len(self)] = self._data[self._first : self._first + len(self)]
        self._data, self._first = moved, 0
