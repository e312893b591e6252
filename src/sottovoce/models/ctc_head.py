"""A CTC head on Whisper's encoder states: frames to label probabilities, 50 a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.models.checkpoint.base import CtcWeights
from sottovoce.types import Emissions, EncoderOutput, Features


class CtcHead:
    """A linear layer and a softmax on encoder states; an `EmissionModel` with an encoder before it.

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
        """Encode, then `emissions_of`."""
        return self.emissions_of(self._encode(features))

    @torch.no_grad()
    def emissions_of(self, encoded: EncoderOutput) -> Emissions:
        """Label log-probabilities (B, n_frames, V) of states that a backend computed already."""
        logits: Tensor = F.linear(encoded.states.float(), self._weight, self._bias)
        lengths = torch.tensor(encoded.n_content_frames, dtype=torch.int64)
        return Emissions(log_probs=logits.log_softmax(dim=-1), lengths=lengths)
