"""The head that is trained: a narrow linear layer, two convolutions, and a linear layer to the letters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sottovoce.models.checkpoint.base import Convolution, CtcWeights

LAYERS = ((256, 1), (256, 5), (256, 7))
"""Channels and width (frames of 20 ms) of each layer before the last: 0.93 million weights at d = 512."""


class HeadNetwork(nn.Module):
    """Encoder states to log-probabilities of labels, blank first.

    States are brought to mean 0 and deviation 1 by `fit`; `weights` puts that into the first layer, whose
    width is 1 for it.
    """

    def __init__(self, d: int, labels: Sequence[str], *, dropout: float = 0.1) -> None:
        super().__init__()
        self.labels = tuple(labels)
        sizes = [d, *(n for n, _ in LAYERS)]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(n_in, n_out, width, padding=width // 2)
            for n_in, (n_out, width) in zip(sizes, LAYERS, strict=False)
        )
        self.out = nn.Linear(sizes[-1], len(labels))
        self._dropout = dropout
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("deviation", torch.ones(d))

    @torch.no_grad()
    def fit(self, states: Tensor) -> None:
        """Take mean and deviation of states (n, d)."""
        self.get_buffer("mean").copy_(states.mean(dim=0))
        self.get_buffer("deviation").copy_(states.std(dim=0) + 1e-3)

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """(B, n_frames, d) float32 and (B,) int64 -> (B, n_frames, V)."""
        inside = (torch.arange(states.shape[1]) < lengths[:, None])[:, None]  # (B, 1, n_frames)
        scaled = (states - self.get_buffer("mean")) / self.get_buffer("deviation")
        x = self._dropped(scaled.transpose(1, 2))
        for convolution in self.convolutions:
            x = self._dropped(F.gelu(convolution(x * inside)))
        logits: Tensor = self.out(x.transpose(1, 2))
        return logits.log_softmax(dim=-1)

    @torch.no_grad()
    def weights(self) -> CtcWeights:
        """The same head for the library."""
        mean, deviation = self.get_buffer("mean"), self.get_buffer("deviation")
        layers = [
            Convolution(module.weight.clone(), module.bias.clone())
            for module in self.convolutions
            if isinstance(module, nn.Conv1d) and module.bias is not None
        ]
        first = layers[0].weight / deviation[None, :, None]
        layers[0] = Convolution(first, layers[0].bias - first[:, :, 0] @ mean)
        return CtcWeights(self.out.weight.clone(), self.out.bias.clone(), self.labels, 0, tuple(layers))

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self._dropout, self.training)
