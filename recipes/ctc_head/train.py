"""Training on states from disk: batches of windows of like lengths, AdamW, an average of the weights."""

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
from torch import Tensor
from torch.nn import functional as F

from recipes.ctc_head.network import HeadNetwork
from recipes.ctc_head.states import Said, StateStore
from recipes.nano.pieces import CtcSymbols
from sottovoce.errors import OptionError
from sottovoce.evaluation.wer import count_edits

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Schedule:
    """minutes: of the processor. frames: encoder frames a batch. average: decay of the moving average.

    masks: stretches of a window that are hidden, one for so many frames.
    """

    minutes: float = 15.0
    learning_rate: float = 2e-3
    weight_decay: float = 0.02
    frames: int = 3000
    average: float = 0.998
    masks: int = 250
    warm_up_steps: int = 100
    log_every: int = 100
    seed: int = 14

    def __post_init__(self) -> None:
        if self.minutes <= 0 or self.learning_rate <= 0 or self.frames < 1:
            raise OptionError(
                f"schedule: expected minutes, learning rate and frames above 0, got {self.minutes}, "
                f"{self.learning_rate} and {self.frames}"
            )

    def rate(self, progress: float, step: int) -> float:
        """Warm-up by steps, then a half cosine to 0."""
        warm = min(1.0, (step + 1) / self.warm_up_steps)
        return self.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


@dataclass(frozen=True, slots=True)
class StateBatch:
    """states: (B, n_frames, d) float32; lengths: (B,); symbols: one list of label ids a row."""

    states: Tensor
    lengths: Tensor
    symbols: list[list[int]]


class Batches:
    """Windows of a store as batches, in another order every round."""

    def __init__(self, store: StateStore, labels: Sequence[str], schedule: Schedule) -> None:
        self._store, self._symbols, self._schedule = store, CtcSymbols(tuple(labels)), schedule
        self._rng = random.Random(schedule.seed)
        self._train = [i for i, said in enumerate(store.said) if said.split == "train"]

    def sample(self, n_windows: int = 60) -> Tensor:
        """States (n, d) to take mean and deviation of."""
        chosen = self._rng.sample(self._train, min(n_windows, len(self._train)))
        return torch.from_numpy(np.concatenate([self._store.states(i) for i in chosen])).float()

    def __iter__(self) -> Iterator[StateBatch]:
        """Without end."""
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
            for _ in range(length // self._schedule.masks):
                start = self._rng.randrange(length)
                row[start : start + self._rng.randint(1, 15)] = 0.0
        return StateBatch(states, batch.lengths, batch.symbols)

    def _groups(self) -> list[list[int]]:
        """Windows of like lengths together, up to the frames of a batch."""
        noise = {i: self._store.n_frames(i) * self._rng.uniform(0.9, 1.1) for i in self._train}
        groups: list[list[int]] = [[]]
        for window in sorted(self._train, key=noise.__getitem__):
            longest = max(map(self._store.n_frames, [*groups[-1], window]))
            if groups[-1] and longest * (len(groups[-1]) + 1) > self._schedule.frames:
                groups.append([])
            groups[-1].append(window)
        return [group for group in groups if group]


class Trainer:
    """A network and the moving average of it, which is what counts."""

    def __init__(self, network: HeadNetwork, batches: Batches, schedule: Schedule) -> None:
        self.network, self._batches, self._schedule = network, batches, schedule
        self._optimizer = torch.optim.AdamW(
            network.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=schedule.weight_decay
        )
        self._average = [parameter.detach().clone() for parameter in network.parameters()]

    def run(self) -> None:
        """Train until the time is up, then put the average in the place of the weights."""
        begin, losses = time.process_time(), []
        self.network.train()
        for step, batch in enumerate(self._batches):
            progress = (time.process_time() - begin) / (60 * self._schedule.minutes)
            if progress >= 1.0:
                break
            losses.append(self._step(self._batches.masked(batch), self._schedule.rate(progress, step), step))
            if len(losses) == self._schedule.log_every:
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
        kept = min(self._schedule.average, (1 + step) / (10 + step))
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


@dataclass(frozen=True, slots=True)
class Errors:
    """Letters wrong, of so many."""

    wrong: int
    letters: int


@torch.no_grad()
def held_out_errors(network: HeadNetwork, store: StateStore, batches: Batches) -> dict[str, Errors]:
    """Greedy letter errors on windows held out, by set and language."""
    found: dict[str, Errors] = {}
    network.eval()
    for index, said in enumerate(store.said):
        if said.split != "dev":
            continue
        batch = batches.batch([index])
        best = network(batch.states, batch.lengths)[0].argmax(dim=-1).tolist()
        count = count_edits(list(said.text), list(collapsed(best, network.labels)))
        before = found.get(group_of(said), Errors(0, 0))
        found[group_of(said)] = Errors(before.wrong + count.n_errors, before.letters + count.n_reference)
    return found


def group_of(said: Said) -> str:
    return f"{said.language} {said.group}"


def collapsed(best: Sequence[int], labels: Sequence[str]) -> str:
    """The text of the likeliest label of every frame, blank first."""
    return "".join(labels[index] for index, _ in groupby(best) if index)
