"""The seam of searches over tokens: rows, candidates, and ranking them. A search sees logits and ids
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from sottovoce.backends.base import BestTokens


@dataclass(frozen=True, slots=True)
class Candidate:
    """A finished hypothesis of one window.

    tokens: sampled ids without the end of text. logprob: natural log-probability of tokens and end
    under the model. score: what the search ranks by; equals logprob unless language models add to it.
    sums: log-probability of the tokens up to each one.
    """

    tokens: tuple[int, ...]
    logprob: float
    score: float
    sums: tuple[float, ...] = field(default=(), repr=False, compare=False)


class RowScores(Protocol):
    """Scores of language models beside the decoder's, row by row; their states follow the rows."""

    def add_to(self, logprobs: Tensor) -> Tensor:
        """Add weighted scores of every next token to log-probabilities (R, n_vocab) float32."""
        ...

    def advance(self, rows: Tensor, tokens: Tensor) -> None:
        """Continue `rows` (R',) by `tokens` (R',), both int64."""
        ...

    def select(self, rows: Tensor) -> None:
        """Keep `rows` (R',) int64."""
        ...


@dataclass(slots=True, eq=False)
class SearchState:
    """The open rows of a search, and the candidates found so far.

    tokens: (R, n) int64, sampled so far. scores: (R,) float32, what rows are ranked by.
    logprobs: (R,) float32, sums under the model (the same tensor as scores without language models).
    sums: (R, n) float32, what they were after each token.
    audio: the window of each row, ascending. origin: (R,) int64, the row at the start.
    candidates: finished hypotheses of each window.
    lm_scores: language model scores and states of the rows; None without language models.
    """

    tokens: Tensor
    scores: Tensor
    logprobs: Tensor
    sums: Tensor
    audio: list[int]
    origin: Tensor
    candidates: list[list[Candidate]]
    lm_scores: RowScores | None = None

    @property
    def n_rows(self) -> int:
        return len(self.audio)

    def candidate(self, row: int) -> Candidate:
        """Make a candidate of an open row."""
        return self.ended(row, float(self.logprobs[row]), float(self.scores[row]))

    def ended(self, row: int, logprob: float, score: float) -> Candidate:
        """Make a candidate of a row that ends here."""
        return Candidate(tuple(self.tokens[row].tolist()), logprob, score, tuple(self.sums[row].tolist()))

    def select(self, rows: Tensor) -> Tensor:
        """Keep `rows` (R',) int64, and return them."""
        self.tokens, self.sums = self.tokens[rows], self.sums[rows]
        same = self.logprobs is self.scores
        self.scores = self.scores[rows]
        self.logprobs = self.scores if same else self.logprobs[rows]
        self.origin = self.origin[rows]
        self.audio = [self.audio[row] for row in rows.tolist()]
        if self.lm_scores is not None:
            self.lm_scores.select(rows)
        return rows


class Search(Protocol):
    """A way to choose tokens: greedy, drawn, or beam search."""

    @property
    def n_hypotheses(self) -> int:
        """Rows of each window at the start."""
        ...

    def start(self, n_audio: int, device: torch.device) -> SearchState:
        """Make the state before the first token: n_audio * n_hypotheses rows, audio-major."""
        ...

    def step(self, logits: Tensor, state: SearchState) -> Tensor | None:
        """Extend every row by one token, given its filtered logits (R, n_vocab) float32.

        Finished windows leave the state. Returns the former rows (R',) int64 that the new ones
        continue; None when every row continues itself.
        """
        ...

    @property
    def n_best(self) -> int | None:
        """How many of each row's likeliest tokens `extend` takes; None where `step` needs all logits."""
        ...

    def extend(self, best: BestTokens, state: SearchState) -> Tensor | None:
        """Extend every row as `step`, given its likeliest tokens alone; returns rows (R',) int64 or None."""
        ...

    def stop(self, state: SearchState, audio: Sequence[int]) -> Tensor:
        """Turn the open rows of these windows into candidates; return the rows (R',) that remain."""
        ...


def ranked_candidates(candidates: Sequence[Candidate], length_penalty: float | None) -> list[Candidate]:
    """Sort candidates by score per length, or per Google's ((5 + n) / 6) ** alpha, best first.

    Source: Wu et al. 2016, https://arxiv.org/abs/1609.08144, equation 14.
    """

    def ranking(candidate: Candidate) -> float:
        length = len(candidate.tokens)
        if length_penalty is None:
            return candidate.score / max(length, 1)
        return float(candidate.score / ((5 + length) / 6) ** length_penalty)

    return sorted(candidates, key=ranking, reverse=True)


def remaining_rows(state: SearchState, leaving: Sequence[int]) -> Tensor:
    """List the rows of all windows but `leaving`: (R',) int64 on the state's device."""
    gone = set(leaving)
    rows = [row for row, audio in enumerate(state.audio) if audio not in gone]
    return torch.tensor(rows, dtype=torch.int64, device=state.tokens.device)
