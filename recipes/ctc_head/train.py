"""The head, a narrow linear layer, two convolutions and a linear layer to the letters, and its training on
states from disk: batches of windows of like lengths, AdamW, an average of the weights.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recipes.ctc_head.states import StateStore
from recipes.nano.pieces import CtcSymbols
from sottovoce.evaluation.scores import ErrorCounts, count_edits
from sottovoce.models.checkpoint.base import Convolution, CtcWeights, floats

logger = logging.getLogger(__name__)

SEED = 14
DROPOUT = 0.1
LEARNING_RATE, WARM_UP_STEPS = 2e-3, 100
AVERAGE = 0.998
"""Decay of the moving average."""
BATCH_FRAMES = 3000
MASK_FRAMES = 250
"""A stretch of a window is hidden for so many frames of it."""
LOG_EVERY = 100
LAYERS = ((256, 1), (256, 5), (256, 7))
"""Channels and width (frames of 20 ms) of each layer before the last: 0.93 million weights at d = 512."""


class HeadNetwork(nn.Module):
    """Encoder states to log-probabilities of labels, blank first.

    States are brought to mean 0 and deviation 1 by `fit`; `weights` puts that into the first layer, whose
    width is 1 for it.
    """

    def __init__(self, d: int, labels: Sequence[str]) -> None:
        super().__init__()
        self.labels = tuple(labels)
        sizes = [d, *(n for n, _ in LAYERS)]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(n_in, n_out, width, padding=width // 2)
            for n_in, (n_out, width) in zip(sizes, LAYERS, strict=False)
        )
        self.out = nn.Linear(sizes[-1], len(labels))
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("deviation", torch.ones(d))

    @torch.no_grad()
    def fit(self, states: Tensor) -> None:
        self.get_buffer("mean").copy_(states.mean(dim=0))
        self.get_buffer("deviation").copy_(states.std(dim=0) + 1e-3)

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """(B, n_frames, d) float32 and (B,) int64 -> (B, n_frames, V)."""
        inside = (torch.arange(states.shape[1]) < lengths[:, None])[:, None]  # (B, 1, n_frames)
        scaled = (states - self.get_buffer("mean")) / self.get_buffer("deviation")
        x = F.dropout(scaled.transpose(1, 2), DROPOUT, self.training)
        for convolution in self.convolutions:
            x = F.dropout(F.gelu(convolution(x * inside)), DROPOUT, self.training)
        logits: Tensor = self.out(x.transpose(1, 2))
        return logits.log_softmax(dim=-1)

    @torch.no_grad()
    def weights(self) -> CtcWeights:
        mean, deviation = self.get_buffer("mean"), self.get_buffer("deviation")
        layers = [
            Convolution(module.weight.numpy().copy(), module.bias.numpy().copy())
            for module in self.convolutions
            if isinstance(module, nn.Conv1d) and module.bias is not None
        ]
        first = floats(layers[0].weight) / deviation.numpy()[None, :, None]
        layers[0] = Convolution(first, floats(layers[0].bias) - first[:, :, 0] @ mean.numpy())
        return CtcWeights(
            self.out.weight.numpy().copy(), self.out.bias.numpy().copy(), self.labels, 0, tuple(layers)
        )


def rate_at(progress: float, step: int) -> float:
    """The learning rate: warm-up by steps, then a half cosine to 0."""
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    return LEARNING_RATE * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


@dataclass(frozen=True, slots=True)
class StateBatch:
    """states: (B, n_frames, d) float32; lengths: (B,); symbols: one list of label ids a row."""

    states: Tensor
    lengths: Tensor
    symbols: list[list[int]]


class Batches:
    """Windows of a store as batches, in another order every round."""

    def __init__(self, store: StateStore, labels: Sequence[str]) -> None:
        self._store, self._symbols = store, CtcSymbols(tuple(labels))
        self._rng = random.Random(SEED)
        self._train = [i for i, said in enumerate(store.said) if said.split == "train"]

    def sample(self, n_windows: int = 60) -> Tensor:
        """States (n, d) to take mean and deviation of."""
        chosen = self._rng.sample(self._train, min(n_windows, len(self._train)))
        return torch.from_numpy(np.concatenate([self._store.states(i) for i in chosen])).float()

    def __iter__(self) -> Iterator[StateBatch]:
        while True:
            groups = self._groups()
            self._rng.shuffle(groups)
            yield from map(self.batch, groups)

    def batch(self, windows: Sequence[int]) -> StateBatch:
        rows = [torch.from_numpy(np.array(self._store.states(i), np.float32)) for i in windows]
        return StateBatch(
            torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
            torch.tensor([len(row) for row in rows]),
            [self._symbols.encode(self._store.said[i].text) for i in windows],
        )

    def masked(self, batch: StateBatch) -> StateBatch:
        """The same with stretches of up to 15 frames hidden (SpecAugment in time, Park et al. 2019)."""
        states = batch.states.clone()
        for row, length in zip(states, batch.lengths.tolist(), strict=True):
            for _ in range(length // MASK_FRAMES):
                start = self._rng.randrange(length)
                row[start : start + self._rng.randint(1, 15)] = 0.0
        return StateBatch(states, batch.lengths, batch.symbols)

    def _groups(self) -> list[list[int]]:
        """Windows of like lengths together, up to the frames of a batch."""
        noise = {i: self._store.n_frames(i) * self._rng.uniform(0.9, 1.1) for i in self._train}
        groups: list[list[int]] = [[]]
        for window in sorted(self._train, key=noise.__getitem__):
            longest = max(map(self._store.n_frames, [*groups[-1], window]))
            if groups[-1] and longest * (len(groups[-1]) + 1) > BATCH_FRAMES:
                groups.append([])
            groups[-1].append(window)
        return [group for group in groups if group]


class Trainer:
    """A network and the moving average of its weights, which are the result."""

    def __init__(self, network: HeadNetwork, batches: Batches, minutes: float) -> None:
        self.network, self._batches, self._minutes = network, batches, minutes
        self._optimizer = torch.optim.AdamW(
            network.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=0.02
        )
        self._average = [parameter.detach().clone() for parameter in network.parameters()]

    def run(self) -> None:
        """Train until the time is up, then put the average in the place of the weights."""
        begin, losses = time.process_time(), []
        self.network.train()
        for step, batch in enumerate(self._batches):
            progress = (time.process_time() - begin) / (60 * self._minutes)
            if progress >= 1.0:
                break
            losses.append(self._step(self._batches.masked(batch), rate_at(progress, step), step))
            if len(losses) == LOG_EVERY:
                logger.info("%5.1f %%, step %d: %.3f nats a letter", 100 * progress, step, np.mean(losses))
                losses = []
        self.network.eval()
        with torch.no_grad():
            for parameter, average in zip(self.network.parameters(), self._average, strict=True):
                parameter.copy_(average)

    def _step(self, batch: StateBatch, rate: float, step: int) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        loss = ctc_loss(self.network(batch.states, batch.lengths), batch)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self._optimizer.step()
        kept = min(AVERAGE, (1 + step) / (10 + step))
        with torch.no_grad():
            for parameter, average in zip(self.network.parameters(), self._average, strict=True):
                average.lerp_(parameter, 1 - kept)
        return float(loss.detach())


def ctc_loss(log_probs: Tensor, batch: StateBatch) -> Tensor:
    """Nats a letter; rows whose letters do not fit into their frames count nothing."""
    n_symbols = torch.tensor([len(row) for row in batch.symbols])
    targets = torch.tensor([symbol for row in batch.symbols for symbol in row])
    losses = F.ctc_loss(
        log_probs.transpose(0, 1), targets, batch.lengths, n_symbols, reduction="sum", zero_infinity=True
    )
    return losses / max(1, int(n_symbols.sum()))


@torch.no_grad()
def held_out_errors(network: HeadNetwork, store: StateStore, batches: Batches) -> dict[str, ErrorCounts]:
    """Greedy letter errors on windows held out, by set and language."""
    found: dict[str, ErrorCounts] = {}
    network.eval()
    for index, said in enumerate(store.said):
        if said.split != "dev":
            continue
        batch = batches.batch([index])
        best = network(batch.states, batch.lengths)[0].argmax(dim=-1).tolist()
        count = count_edits(list(said.text), list(collapsed(best, network.labels)))
        group = f"{said.language} {said.group}"
        found[group] = found.get(group, ErrorCounts()) + count
    return found


def collapsed(best: Sequence[int], labels: Sequence[str]) -> str:
    """The text of the likeliest label of every frame, blank first."""
    return "".join(labels[index] for index, _ in groupby(best) if index)
