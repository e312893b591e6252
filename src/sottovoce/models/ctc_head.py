"""A CTC head on Whisper's encoder states: label log-probabilities, 50 frames a second.

Whisper encodes windows well that end in padding, so a recording is cut into windows that leave room for it.
Windows overlap, and the frames near their edges are taken from the neighbour, since a label needs context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.audio.mel import window_features
from sottovoce.models.checkpoint.base import Convolution, CtcWeights
from sottovoce.types import Emissions, EncoderOutput, Features

MELS_PER_FRAME = 2
OVERLAP_FRAMES = 100
"""Encoder frames (2 s) that two windows share."""


class CtcHead:
    """Convolutions, if any, a linear layer and a softmax on encoder states.

    encode: log-mel windows to encoder states, such as `Backend.encode`. device: None: that of the weights.
    """

    def __init__(
        self,
        weights: CtcWeights,
        encode: Callable[[Features], EncoderOutput],
        device: torch.device | None = None,
    ) -> None:
        self._weight = weights.weight.to(device, torch.float32)
        self._bias = weights.bias.to(device, torch.float32)
        self._convolutions = [
            Convolution(layer.weight.to(device, torch.float32), layer.bias.to(device, torch.float32))
            for layer in weights.convolutions
        ]
        self._labels = weights.labels
        self._blank = weights.blank
        self._encode = encode

    @property
    def labels(self) -> Sequence[str]:
        return self._labels

    @property
    def blank(self) -> int:
        return self._blank

    def emissions(self, features: Features) -> Emissions:
        """Encode log-mel windows and return their label log-probabilities; see `emissions_of`."""
        return self.emissions_of(self._encode(features))

    @torch.no_grad()
    def emissions_of(self, encoded: EncoderOutput) -> Emissions:
        """Return the label log-probabilities (B, n_frames, V) float32 of encoder states.

        Those of frames with audio do not depend on how much padding follows.
        """
        lengths = torch.tensor(encoded.n_content_frames, dtype=torch.int64)
        states = encoded.states.float()
        if self._convolutions:
            states = convolved(states, lengths.to(states.device), self._convolutions)
        logits: Tensor = F.linear(states, self._weight, self._bias)
        return Emissions(log_probs=logits.log_softmax(dim=-1), lengths=lengths)


def convolved(states: Tensor, lengths: Tensor, layers: Sequence[Convolution]) -> Tensor:
    """Run states (B, n_frames, d) through convolutions and GELUs; frames from `lengths` (B,) on are 0.0."""
    inside = torch.arange(states.shape[1], device=states.device) < lengths[:, None]
    x = states.transpose(1, 2)  # (B, d, n_frames)
    for layer in layers:
        x = F.gelu(
            F.conv1d(x * inside[:, None], layer.weight, layer.bias, padding=layer.weight.shape[2] // 2)
        )
    return x.transpose(1, 2)


@dataclass(frozen=True, slots=True)
class CtcWindow:
    """Encoder frames: the window [start, end), and the part [first, last) of it that is used."""

    start: int
    end: int
    first: int
    last: int


def ctc_windows(n_frames: int, longest: int) -> Iterator[CtcWindow]:
    """Cut n_frames encoder frames into windows of at most `longest`, whose used parts follow one another."""
    overlap = min(OVERLAP_FRAMES, longest // 4)
    first = start = 0
    while first < n_frames:
        end = min(n_frames, start + longest)
        last = end if end == n_frames else end - overlap // 2
        yield CtcWindow(start, end, first, last)
        first, start = last, end - overlap


def emissions_of_recording(head: CtcHead, log_mel: Tensor, *, n_audio_ctx: int, n_tail_frames: int) -> Tensor:
    """Compute the label log-probabilities (n_frames, V) float32 of a recording, on the CPU, 50 a second.

    log_mel: (n_mels, n) un-normalised, without padding. n_audio_ctx: encoder frames of a full window.
    n_tail_frames: encoder frames of padding that the encoder needs behind the speech.
    """
    n_frames = -(-log_mel.shape[1] // MELS_PER_FRAME)
    parts = [torch.zeros(0, len(head.labels))]
    for window in ctc_windows(n_frames, max(1, n_audio_ctx - n_tail_frames)):
        mel = log_mel[:, MELS_PER_FRAME * window.start : MELS_PER_FRAME * window.end]
        n_encoded = min(n_audio_ctx, window.end - window.start + n_tail_frames)
        found = head.emissions(window_features([mel], MELS_PER_FRAME * n_encoded)).log_probs[0]
        parts.append(found[window.first - window.start : window.last - window.start].cpu())
    return torch.cat(parts)
