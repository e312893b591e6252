"""The audio that a stream holds, as log-mel frames and as encoder states, under absolute samples.

Not known here: words, languages, and what is held back or cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.audio.mel import DYNAMIC_RANGE, MelStream
from sottovoce.types import FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, EncoderOutput, Samples

SAMPLES_PER_FRAME = SAMPLE_RATE // FRAMES_PER_SECOND
MELS_PER_FRAME = SAMPLES_PER_FRAME // HOP_SAMPLES
"""Log-mel frames of an encoder frame."""
FARTHEST = 0.5
"""What a border that is moved as far as it may go costs, in log10 units of power."""


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The audio held, encoded: states of one row, the log-mel behind them (n_mels, n), un-normalised, and the
    sample that frame 0 begins at."""

    encoded: EncoderOutput
    log_mel: Tensor
    start_sample: int

    @property
    def n_frames(self) -> int:
        """Frames that hold audio."""
        return self.encoded.n_content_frames[0]

    def part(self, frames: npt.NDArray[np.int64]) -> Tensor:
        """The log-mel of chosen frames, ascending, joined: (n_mels, 2 * n)."""
        mels = (MELS_PER_FRAME * frames[:, None] + np.arange(MELS_PER_FRAME)).reshape(-1)
        return self.log_mel[:, torch.from_numpy(mels).to(self.log_mel.device)]

    @property
    def loudness(self) -> npt.NDArray[np.float64]:
        """How loud each frame is, see `loudness`: (n_frames,)."""
        return loudness(self.log_mel[:, : self.n_frames * MELS_PER_FRAME])

    def quietest_s(self, start_s: float, end_s: float) -> float:
        """The middle of the quietest frame between two moments; start_s where the window ends by then."""
        first, end = self.frame(start_s), self.frame(end_s)
        if first >= end:
            return start_s
        return self.seconds(first + int(self.loudness[first:end].argmin())) + 0.5 / FRAMES_PER_SECOND

    @property
    def start_s(self) -> float:
        return self.start_sample / SAMPLE_RATE

    @property
    def end_s(self) -> float:
        return self.start_s + self.n_frames / FRAMES_PER_SECOND

    def seconds(self, frame: int) -> float:
        """Where a frame begins in the recording."""
        return self.start_s + frame / FRAMES_PER_SECOND

    def frame(self, seconds: float) -> int:
        """The frame that holds this moment, clipped to the window."""
        return max(0, min(self.n_frames, math.floor((seconds - self.start_s) * FRAMES_PER_SECOND + 1e-6)))


def loudness(log_mel: Tensor) -> npt.NDArray[np.float64]:
    """How loud each frame of un-normalised log-mel (n_mels, n) is: (n // 2,), log10 of power.

    It is averaged over the spectrum, within Whisper's dynamic range."""
    n_frames = log_mel.shape[1] // MELS_PER_FRAME
    if not n_frames:
        return np.zeros(0)
    mels = log_mel[:, : n_frames * MELS_PER_FRAME]
    means = mels.clamp(min=float(mels.max()) - DYNAMIC_RANGE).mean(dim=0)
    loud: npt.NDArray[np.float64] = means.reshape(n_frames, -1).mean(dim=1).cpu().double().numpy()
    return loud


def quietest_border(loud: npt.NDArray[np.float64], border: int, reach: int, *, least: int = 1) -> int:
    """The frame that begins where it is quietest, at most `reach` frames from a border; else the border.

    loud: (n_frames,) in log10 units; a border as far as it may go costs `FARTHEST` of them. least: no frame
    before it.
    """
    at = np.arange(max(1, least, border - reach), min(len(loud) - 1, border + reach) + 1)
    if not len(at):
        return border
    cost = loud[at - 1] + loud[at] + FARTHEST * np.abs(at - border) / max(1, reach)
    return int(at[cost.argmin()])


class MelBuffer:
    """Un-normalised log-mel frames of the audio held, under its absolute sample index.

    Audio is transformed when frames are asked for, so the frames of an update do not depend on how the
    audio came in. Cuts fall on encoder frames.
    """

    def __init__(self, n_mels: int, start_sample: int, device: torch.device) -> None:
        self._stream = MelStream(n_mels, device)
        self._frames = torch.zeros(n_mels, 0, device=device)
        self._waiting: list[Tensor] = []
        self.start_sample = start_sample
        self.end_sample = start_sample

    def append(self, samples: Samples) -> None:
        self._waiting.append(torch.from_numpy(samples))
        self.end_sample += len(samples)

    def frames(self, *, final: bool = False, until_sample: int | None = None) -> Tensor:
        """Frames (n_mels, n) of the audio held.

        final: those at the very end too, which see silence after it; no audio may follow.
        until_sample: frames that begin before it.
        """
        if self._waiting:
            self._frames = torch.cat((self._frames, self._stream.push(torch.cat(self._waiting))), dim=1)
            self._waiting.clear()
        if final:
            self._frames = torch.cat((self._frames, self._stream.finish()), dim=1)
        if until_sample is None:
            return self._frames
        return self._frames[:, : max(0, until_sample - self.start_sample) // HOP_SAMPLES]

    def cut(self, start_sample: int) -> None:
        """Drop what lies before a sample, in whole encoder frames; never more than is held."""
        self.frames()
        n_frames = max(0, start_sample - self.start_sample) // SAMPLES_PER_FRAME
        n_frames = min(n_frames, self._frames.shape[1] // MELS_PER_FRAME)
        self._frames = self._frames[:, n_frames * MELS_PER_FRAME :].clone()
        self.start_sample += n_frames * SAMPLES_PER_FRAME
