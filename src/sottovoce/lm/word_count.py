"""A score for every word, added where words begin: behind `lm.base.LanguageModel`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sottovoce.lm.base import Automaton

_INSIDE, _BETWEEN = 0, 1


class WordCounter:
    """Adds a score for every word among tokens; states are (N,) int64: inside a word, or between words.

    separators: (n_tokens,) bool, tokens between words that spell nothing. starts: (n_tokens,) bool, those
    that begin a word by themselves. Any other token begins one only between words, so that
    neither repeated separators nor those at the ends count.
    """

    def __init__(self, score: float, *, separators: Tensor, starts: Tensor) -> None:
        begins = torch.stack((starts, torch.ones_like(starts))) & ~separators
        self._scores = begins.float() * score  # (2, V)
        self._after = torch.where(separators, _BETWEEN, _INSIDE)

    @property
    def n_tokens(self) -> int:
        return len(self._after)

    def start(self, n: int) -> Tensor:
        return torch.full((n,), _BETWEEN, device=self._after.device)

    def score(self, states: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if tokens is None:
            return self._scores[states], states
        return self._scores[states, tokens], self._after[tokens]

    def finish(self, states: Tensor) -> Tensor:
        return torch.zeros(states.shape, device=states.device)

    def select(self, states: Tensor, rows: Tensor) -> Tensor:
        return states[rows]

    def automaton(self) -> Automaton:
        """Return the model as arrays: the root is inside words; the other node, between them, has every
        arc.
        """
        n = self.n_tokens
        scores, after = self._scores.cpu().numpy(), self._after.cpu().numpy()
        return Automaton(
            first=np.array([0, 0, n]),
            tokens=np.arange(n, dtype=np.int32),
            weights=scores[_BETWEEN],
            targets=after,
            backoff=np.zeros(2, np.float32),
            parent=np.zeros(2, np.int64),
            root_weights=scores[_INSIDE],
            root_targets=after,
            ids=np.arange(n),
            ends=np.zeros(2, np.float32),
        )
