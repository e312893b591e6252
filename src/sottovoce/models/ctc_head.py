"""A CTC head on Whisper's encoder states: frames to label probabilities, 50 a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.models.checkpoint.base import Convolution, CtcWeights
from sottovoce.types import Emissions, EncoderOutput, Features


class CtcHead:
    """A few layers and a softmax on encoder states; an `EmissionModel` with an encoder before it.

    encode: log-mel windows to encoder states, such as `Backend.encode`.
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

    @property
    def reach_frames(self) -> int:
        """Frames to each side that a frame's labels depend on."""
        return sum(layer.weight.shape[2] // 2 for layer in self._convolutions)

    def emissions(self, features: Features) -> Emissions:
        """Encode, then `emissions_of`."""
        return self.emissions_of(self._encode(features))

    @torch.no_grad()
    def emissions_of(self, encoded: EncoderOutput) -> Emissions:
        """Label log-probabilities (B, n_frames, V) of states that a backend computed already.

        Those of frames with audio do not depend on how much padding is behind them.
        """
        lengths = torch.tensor(encoded.n_content_frames, dtype=torch.int64)
        states = encoded.states.float()
        if self._convolutions:
            states = convolved(states, lengths.to(states.device), self._convolutions)
        logits: Tensor = F.linear(states, self._weight, self._bias)
        return Emissions(log_probs=logits.log_softmax(dim=-1), lengths=lengths)


def convolved(states: Tensor, lengths: Tensor, layers: Sequence[Convolution]) -> Tensor:
    """States (B, n_frames, d) through convolutions and GELUs; frames from `lengths` (B,) on count as 0.0."""
    inside = torch.arange(states.shape[1], device=states.device) < lengths[:, None]
    x = states.transpose(1, 2)  # (B, d, n_frames)
    for layer in layers:
        x = F.gelu(
            F.conv1d(x * inside[:, None], layer.weight, layer.bias, padding=layer.weight.shape[2] // 2)
        )
    return x.transpose(1, 2)
