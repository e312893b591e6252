"""Choosing one token a step: the best one, or a draw from the distribution.

Draws use one uniform number a row and step, taken before the first step from a generator of each window.
So a seed gives the same text on every device, and a window the same text alone and in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sottovoce.decoding.search import SearchState, remaining_rows


class Sampling:
    """Greedy search at temperature 0, else draws from softmax(logits / temperature).

    Log-probabilities are those of the untempered logits.

    uniforms: (n_audio * n_hypotheses, n_steps) float64 in [0, 1), from `draw_uniforms`; None at
        temperature 0.
    """

    def __init__(
        self, eot: int, *, temperature: float = 0.0, n_hypotheses: int = 1, uniforms: Tensor | None = None
    ) -> None:
        assert (uniforms is None) == (temperature == 0.0)
        self._eot = eot
        self._temperature = temperature
        self._n_hypotheses = n_hypotheses
        self._uniforms = uniforms

    @property
    def n_hypotheses(self) -> int:
        return self._n_hypotheses

    def start(self, n_audio: int, device: torch.device) -> SearchState:
        n_rows = n_audio * self._n_hypotheses
        sums = torch.zeros(n_rows, device=device)
        return SearchState(
            tokens=torch.zeros((n_rows, 0), dtype=torch.int64, device=device),
            scores=sums,
            logprobs=sums,
            audio=[row // self._n_hypotheses for row in range(n_rows)],
            origin=torch.arange(n_rows, device=device),
            candidates=[[] for _ in range(n_audio)],
        )

    def step(self, logits: Tensor, state: SearchState) -> Tensor | None:
        chosen = self._choose(logits, state)
        logprobs = logits.float().log_softmax(dim=1).gather(1, chosen[:, None])[:, 0]
        state.scores = state.logprobs = state.scores + logprobs
        finished = chosen == self._eot
        if not bool(finished.any()):
            state.tokens = torch.cat((state.tokens, chosen[:, None]), dim=1)
            return None
        for row in finished.nonzero()[:, 0].tolist():
            state.candidates[state.audio[row]].append(state.candidate(row))
        state.tokens = torch.cat((state.tokens, chosen[:, None]), dim=1)
        return state.select((~finished).nonzero()[:, 0])

    def stop(self, state: SearchState, audio: Sequence[int]) -> Tensor:
        for row, index in enumerate(state.audio):
            if index in audio:
                state.candidates[index].append(state.candidate(row))
        return state.select(remaining_rows(state, audio))

    def _choose(self, logits: Tensor, state: SearchState) -> Tensor:
        if self._uniforms is None:
            return logits.argmax(dim=1)
        probabilities = (logits.double() / self._temperature).softmax(dim=1)
        cumulative = probabilities.cumsum(dim=1)
        # The first id whose cumulative probability exceeds the draw; never one of probability 0.
        draws = self._uniforms[state.origin, state.tokens.shape[1]]
        target = draws[:, None] * cumulative[:, -1:]
        return torch.searchsorted(cumulative, target, right=True)[:, 0]


def draw_uniforms(
    seeds: Sequence[int], n_hypotheses: int, n_steps: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Uniform numbers of every row and step: (len(seeds) * n_hypotheses, n_steps) float64 in [0, 1)."""
    draws = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        draws.append(torch.rand((n_hypotheses, n_steps), dtype=torch.float64, generator=generator))
    return torch.cat(draws).to(device)
