"""Speakers that are tones: networks that hear them without weights, and recordings of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sottovoce.speakers.networks import VoiceDistances
from sottovoce.types import SAMPLE_RATE, Floats, Samples, Turn

PITCHES = {"low": 300.0, "middle": 900.0, "high": 2100.0}
FRAME = 270


def strengths(samples: Tensor) -> Tensor:
    """How strong each tone is in (..., n) samples, 0 to about 1."""
    n_samples = samples.shape[-1]
    seconds = torch.arange(n_samples) / SAMPLE_RATE
    amplitudes = []
    for pitch in PITCHES.values():
        angles = 2 * torch.pi * pitch * seconds
        parts = [(samples * wave).mean(-1) for wave in (torch.sin(angles), torch.cos(angles))]
        amplitudes.append(4 * torch.hypot(*parts))
    return torch.stack(amplitudes, -1)


class ToneSpeakers:
    """Local speakers of a window, in another order in each window."""

    window_samples = 5 * SAMPLE_RATE
    first_samples = 495
    frame_samples = FRAME
    n_frames = 293

    def __init__(self) -> None:
        self._turn = 0

    def activity(self, windows: Floats) -> Floats:
        frames = torch.as_tensor(windows)[:, 360 : 360 + FRAME * self.n_frames].unfold(
            1, FRAME, FRAME
        )  # (n, 293, 270)
        heard = (strengths(frames) > 0.3).float()
        rows = []
        for row in heard:
            self._turn += 1
            rows.append(row.roll(self._turn, dims=1))
        return torch.stack(rows).numpy()


class ToneVoices:
    """The vector of a stretch says which tone it is, and a little of what else is in it."""

    distances = VoiceDistances()

    def embed(self, speech: Sequence[Floats]) -> Floats:
        rows = [
            strengths(torch.as_tensor(stretch)) if len(stretch) else torch.zeros(len(PITCHES))
            for stretch in speech
        ]
        return torch.nn.functional.normalize(torch.stack(rows), dim=1).numpy()


def recording(turns: Sequence[Turn], seconds: float) -> Samples:
    """Tones where turns say so; tones that overlap add up."""
    samples = np.zeros(int(seconds * SAMPLE_RATE), np.float32)
    for turn in turns:
        start, end = int(turn.start * SAMPLE_RATE), int(turn.end * SAMPLE_RATE)
        seconds_of = np.arange(start, end) / SAMPLE_RATE
        samples[start:end] += 0.5 * np.sin(2 * np.pi * PITCHES[turn.speaker] * seconds_of).astype(np.float32)
    return samples
