"""Greedy search and sampling: one token a step, the best one or a draw from the distribution.

Draws use one uniform number a row and step, made before the first step by a generator of each window. So a
seed gives the same text on every device, and a window the same text alone and in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from sottovoce.backends.base import BestTokens
from sottovoce.decoding.beam import FusedRowScores, Fusion
from sottovoce.decoding.search import SearchState, remaining_rows

State = TypeVar("State")


class Sampling(Generic[State]):
    """Greedy search at temperature 0, else draws from softmax(logits / temperature).

    Log-probabilities are those of the untempered logits.

    uniforms: (n_audio * n_hypotheses, n_steps) float64 in [0, 1), from `draw_uniforms`; None at
        temperature 0. The draws are made on its device.
    fusion: language models whose scores are added to the log-probabilities before the choice, and so before
        the temperature.
    """

    def __init__(
        self,
        eot: int,
        *,
        temperature: float = 0.0,
        n_hypotheses: int = 1,
        uniforms: Tensor | None = None,
        fusion: Fusion[State] | None = None,
    ) -> None:
        assert (uniforms is None) == (temperature == 0.0)
        self._eot = eot
        self._temperature = temperature
        self._n_hypotheses = n_hypotheses
        self._uniforms = uniforms
        self._fusion = fusion

    @property
    def n_hypotheses(self) -> int:
        return self._n_hypotheses

    def start(self, n_audio: int, device: torch.device) -> SearchState:
        n_rows = n_audio * self._n_hypotheses
        sums = torch.zeros(n_rows, device=device)
        lm_scores = None if self._fusion is None else FusedRowScores(self._fusion, n_rows, self._eot, device)
        return SearchState(
            tokens=torch.zeros((n_rows, 0), dtype=torch.int64, device=device),
            scores=sums,
            logprobs=sums,
            sums=torch.zeros((n_rows, 0), device=device),
            audio=[row // self._n_hypotheses for row in range(n_rows)],
            origin=torch.arange(n_rows, device=device),
            candidates=[[] for _ in range(n_audio)],
            lm_scores=lm_scores,
        )

    def step(self, logits: Tensor, state: SearchState) -> Tensor | None:
        return self._append(self._choose_and_score(logits, state), state)

    @property
    def n_best(self) -> int | None:
        return 1 if self._uniforms is None and self._fusion is None else None

    def extend(self, best: BestTokens, state: SearchState) -> Tensor | None:
        state.scores = state.logprobs = state.scores + best.logprobs[:, 0]
        return self._append(best.tokens[:, 0], state)

    def _append(self, chosen: Tensor, state: SearchState) -> Tensor | None:
        """Append a token (R,) to each row; rows that end with it leave the state."""
        finished = chosen == self._eot
        for row in finished.nonzero()[:, 0].tolist():
            state.candidates[state.audio[row]].append(state.candidate(row))
        state.tokens = torch.cat((state.tokens, chosen[:, None]), dim=1)
        state.sums = torch.cat((state.sums, state.logprobs[:, None]), dim=1)
        rows = state.select((~finished).nonzero()[:, 0]) if bool(finished.any()) else None
        if state.lm_scores is not None and state.n_rows:
            state.lm_scores.advance(torch.arange(state.n_rows, device=chosen.device), state.tokens[:, -1])
        return rows

    def stop(self, state: SearchState, audio: Sequence[int]) -> Tensor:
        for row, index in enumerate(state.audio):
            if index in audio:
                state.candidates[index].append(state.candidate(row))
        return state.select(remaining_rows(state, audio))

    def _choose_and_score(self, logits: Tensor, state: SearchState) -> Tensor:
        logprobs = logits.float().log_softmax(dim=1)
        if state.lm_scores is None:
            chosen = self._choose(logits, state)
            state.scores = state.logprobs = state.scores + logprobs.gather(1, chosen[:, None])[:, 0]
            return chosen
        fused = state.lm_scores.add_to(logprobs)
        # Where a model leaves nothing that the filters allow, the text ends.
        is_stuck = fused.amax(dim=1) == float("-inf")
        chosen = self._choose(fused, state).masked_fill(is_stuck, self._eot)
        state.scores = state.scores + fused.gather(1, chosen[:, None])[:, 0]
        state.logprobs = state.logprobs + logprobs.gather(1, chosen[:, None])[:, 0]
        return chosen

    def _choose(self, logits: Tensor, state: SearchState) -> Tensor:
        if self._uniforms is None:
            return logits.argmax(dim=1)
        precise = logits.to(self._uniforms.device).double()
        probabilities = (precise / self._temperature).softmax(dim=1)
        cumulative = probabilities.cumsum(dim=1)
        # The first id whose cumulative probability exceeds the draw; never one of probability 0.
        draws = self._uniforms[state.origin.to(precise.device), state.tokens.shape[1]]
        target = draws[:, None] * cumulative[:, -1:]
        return torch.searchsorted(cumulative, target, right=True)[:, 0].to(logits.device)


def draw_uniforms(
    seeds: Sequence[int], n_hypotheses: int, n_steps: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Draw uniform numbers in [0, 1) for every row and step: (n_rows, n_steps) float64.

    n_rows is len(seeds) * n_hypotheses. device: of the network; the CPU is used for one without float64
    (MPS).
    """
    draws = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        draws.append(torch.rand((n_hypotheses, n_steps), dtype=torch.float64, generator=generator))
    lacks_float64 = torch.device(device).type == "mps"
    return torch.cat(draws).to("cpu" if lacks_float64 else device)
