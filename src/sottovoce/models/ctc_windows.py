"""Emissions of whole recordings, window by window, as the encoder bears it.

Whisper hears well in windows that end in padding: each holds so much speech that the padding fits behind it.
Windows overlap, and each gives what is not near its edges: a letter is heard with what is around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.audio.mel import window_features
from sottovoce.models.ctc_head import CtcHead

MELS_PER_FRAME = 2
OVERLAP_FRAMES = 100
"""Encoder frames (2 s) that two windows share."""


@dataclass(frozen=True, slots=True)
class CtcWindow:
    """Encoder frames: the window [start, end), and the part [first, last) of it that is used."""

    start: int
    end: int
    first: int
    last: int


def ctc_windows(n_frames: int, longest: int) -> Iterator[CtcWindow]:
    """Windows of at most `longest` encoder frames over a recording, whose parts follow one another."""
    overlap = min(OVERLAP_FRAMES, longest // 4)
    first = start = 0
    while first < n_frames:
        end = min(n_frames, start + longest)
        last = end if end == n_frames else end - overlap // 2
        yield CtcWindow(start, end, first, last)
        first, start = last, end - overlap


def emissions_of_recording(head: CtcHead, log_mel: Tensor, *, n_audio_ctx: int, n_tail_frames: int) -> Tensor:
    """Label log-probabilities (n_frames, V) float32 on the CPU, 50 a second.

    log_mel: (n_mels, n) un-normalised, of the recording alone. n_audio_ctx: encoder frames of a full window.
    n_tail_frames: encoder frames of padding that it needs behind the speech.
    """
    n_frames = -(-log_mel.shape[1] // MELS_PER_FRAME)
    parts = [torch.zeros(0, len(head.labels))]
    for window in ctc_windows(n_frames, max(1, n_audio_ctx - n_tail_frames)):
        mel = log_mel[:, MELS_PER_FRAME * window.start : MELS_PER_FRAME * window.end]
        n_encoded = min(n_audio_ctx, window.end - window.start + n_tail_frames)
        found = head.emissions(window_features([mel], MELS_PER_FRAME * n_encoded)).log_probs[0]
        parts.append(found[window.first - window.start : window.last - window.start].cpu())
    return torch.cat(parts)
