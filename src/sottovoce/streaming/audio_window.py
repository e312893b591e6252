"""The audio of an utterance as log-mel frames (`MelBuffer`) and encoder states (`AudioWindow`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sottovoce.audio.mel import DYNAMIC_RANGE, MELS_PER_FRAME, MelStream, quietest_frame
from sottovoce.models.backend import EncoderOutput
from sottovoce.types import (
    FRAMES_PER_SECOND,
    HOP_SAMPLES,
    SAMPLE_RATE,
    Floats,
    Samples,
)

SAMPLES_PER_FRAME = SAMPLE_RATE // FRAMES_PER_SECOND
SNAP_S = 0.25
"""Most seconds by which a change of language moves to a quiet moment, to cut no word."""
QUIET_FRAMES = 3
BOUNDARY_COST = 0.5
"""Penalty (log10 of power) of the largest move."""


@dataclass(frozen=True, slots=True, eq=False)
class AudioWindow:
    """Encoder states of an utterance's audio, a batch of 1, and their un-normalised log-mel (n_mels, n)."""

    encoded: EncoderOutput
    log_mel: Floats
    start_sample: int
    n_frames: int = field(init=False)
    start_s: float = field(init=False)
    end_s: float = field(init=False)

    def __post_init__(self) -> None:
        n_frames, start_s = self.encoded.n_content_frames[0], self.start_sample / SAMPLE_RATE
        object.__setattr__(self, "n_frames", n_frames)
        object.__setattr__(self, "start_s", start_s)
        object.__setattr__(self, "end_s", start_s + n_frames / FRAMES_PER_SECOND)

    def quietest_s(self, start_s: float, end_s: float) -> float:
        """Return the middle (s) of the quietest frame in a span, or start_s."""
        first, end = self.frame(start_s), self.frame(end_s)
        if first >= end:
            return start_s
        loud = loudness(self.log_mel[:, : self.n_frames * MELS_PER_FRAME])[first:end]
        return self.seconds(first + quietest_frame(loud, 0)) + 0.5 / FRAMES_PER_SECOND

    def seconds(self, frame: int) -> float:
        return self.start_s + frame / FRAMES_PER_SECOND

    def frame(self, seconds: float) -> int:
        return max(0, min(self.n_frames, math.floor((seconds - self.start_s) * FRAMES_PER_SECOND + 1e-6)))


def loudness(log_mel: Floats) -> npt.NDArray[np.float64]:
    """Return the mean log10 power (n // 2,) of each encoder frame of un-normalised log-mel (n_mels, n)."""
    n_frames = log_mel.shape[1] // MELS_PER_FRAME
    if not n_frames:
        return np.zeros(0)
    mels = log_mel[:, : n_frames * MELS_PER_FRAME]
    means = np.maximum(mels, mels.max() - np.float32(DYNAMIC_RANGE)).mean(axis=0)
    loud: npt.NDArray[np.float64] = means.reshape(n_frames, -1).mean(axis=1).astype(np.float64)
    return loud


def quietest_boundary(loud: npt.NDArray[np.float64], boundary: int, reach: int, *, least: int = 1) -> int:
    """Return the quietest boundary of two frames at most `reach` away, or the boundary itself."""
    at = np.arange(max(1, least, boundary - reach), min(len(loud) - 1, boundary + reach) + 1)
    if not len(at):
        return boundary
    cost = loud[at - 1] + loud[at] + BOUNDARY_COST * np.abs(at - boundary) / max(1, reach)
    return int(at[cost.argmin()])


class MelBuffer:
    """Audio as un-normalised log-mel frames on the host, addressed by sample, computed when read."""

    def __init__(self, n_mels: int, start_sample: int) -> None:
        self._stream = MelStream(n_mels)
        self._memory = np.zeros((n_mels, 0), np.float32)
        """The frames, and room for more behind them."""
        self._n_frames = 0
        self._waiting: list[Samples] = []
        self.start_sample = start_sample
        self.end_sample = start_sample

    def append(self, samples: Samples) -> None:
        self._waiting.append(samples)
        self.end_sample += len(samples)

    def frames(self, *, final: bool = False, until_sample: int | None = None) -> Floats:
        """Return the frames (n_mels, n) up to a sample; final: also the last ones, padded with silence."""
        if self._waiting:
            waiting = np.concatenate(self._waiting) if self._waiting[1:] else self._waiting[0]
            self._add(self._stream.push(waiting))
            self._waiting.clear()
        if final:
            self._add(self._stream.finish())
        n_frames = self._n_frames
        if until_sample is not None:
            n_frames = min(n_frames, max(0, until_sample - self.start_sample) // HOP_SAMPLES)
        return self._memory[:, :n_frames]

    def _add(self, new: Floats) -> None:
        before, self._n_frames = self._n_frames, self._n_frames + new.shape[1]
        if self._n_frames > self._memory.shape[1]:
            larger = np.empty((len(new), 2 * self._n_frames), np.float32)
            larger[:, :before] = self._memory[:, :before]
            self._memory = larger
        self._memory[:, before : self._n_frames] = new

    def cut(self, start_sample: int) -> None:
        frames = self.frames()
        n_cut = max(0, start_sample - self.start_sample) // SAMPLES_PER_FRAME
        n_cut = min(n_cut, self._n_frames // MELS_PER_FRAME)
        self._memory = frames[:, n_cut * MELS_PER_FRAME :].copy()
        self._n_frames = self._memory.shape[1]
        self.start_sample += n_cut * SAMPLES_PER_FRAME
