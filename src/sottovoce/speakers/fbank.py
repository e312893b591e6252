"""Kaldi's log-mel filter bank, which networks for speakers were trained on.

Frames of 25 ms every 10 ms lie inside the samples: none is filled up at an edge. Dither is off.

Source: Kaldi, feature-fbank and mel-computations (names of their options below).
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from sottovoce.types import SAMPLE_RATE

FRAME = 400
HOP = 160
N_FFT = 512
PREEMPHASIS = 0.97
LOWEST_HZ = 20.0
FLOOR = 1.1920928955078125e-07


def kaldi_fbank(samples: Tensor, n_mels: int = 80) -> Tensor:
    """Natural logarithms of mel power (n_frames, n_mels) of samples (n_samples,), float32 at 16 kHz.

    n_frames is 1 + (n_samples - 400) // 160; raises ValueError for less than a frame.
    """
    if len(samples) < FRAME:
        raise ValueError(f"filter bank: expected at least {FRAME} samples, got {len(samples)}")
    frames: Tensor = samples.unfold(0, FRAME, HOP)
    frames = frames - frames.mean(dim=1, keepdim=True)
    before = functional.pad(frames[:, None], (1, 0), mode="replicate")[:, 0, :-1]
    frames = (frames - PREEMPHASIS * before) * _window()
    power = torch.fft.rfft(frames, N_FFT).abs().square()[:, : N_FFT // 2]
    mel: Tensor = power @ _filters(n_mels)
    return mel.clamp_(min=FLOOR).log_()


@cache
def _window() -> Tensor:
    """Kaldi's "povey": Hann to the power of 0.85."""
    return torch.hann_window(FRAME, periodic=False).pow(0.85)


@cache
def _filters(n_mels: int) -> Tensor:
    """Triangles (256, n_mels) of equal width in mel, from 20 Hz to 8 kHz."""
    edges = _mel(torch.tensor([LOWEST_HZ, SAMPLE_RATE / 2], dtype=torch.float64))
    points = torch.linspace(float(edges[0]), float(edges[1]), n_mels + 2, dtype=torch.float64)
    bins = _mel(torch.arange(N_FFT // 2, dtype=torch.float64) * SAMPLE_RATE / N_FFT)[:, None]
    left, centre, right = points[:-2], points[1:-1], points[2:]
    rising, falling = (bins - left) / (centre - left), (right - bins) / (right - centre)
    return torch.minimum(rising, falling).clamp_(min=0).float()


def _mel(hz: Tensor) -> Tensor:
    return 1127.0 * torch.log1p(hz / 700.0)
