"""The seam between searches and language models: batched start, score, finish.

N-gram, neural, phrase boosting and grammar all stand behind it. States are opaque to the search;
it only selects rows of them. Log-probabilities are natural logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

State = TypeVar("State")


class LanguageModel(Protocol, Generic[State]):
    """A batched language model over a token set of n_tokens ids."""

    @property
    def n_tokens(self) -> int: ...

    def start(self, n: int) -> State:
        """States of n hypotheses that have said nothing yet."""
        ...

    def score(self, states: State, tokens: Tensor | None = None) -> tuple[Tensor, State]:
        """Score the next token of every hypothesis.

        tokens None: log_probs (N, n_tokens) of every possible next token, and `states` unchanged.
        tokens (N,) int64: log_probs (N,) of just these tokens, and the states after saying them.
        """
        ...

    def finish(self, states: State) -> Tensor:
        """Log-probability (N,) of ending here."""
        ...

    def select(self, states: State, rows: Tensor) -> State:
        """The states of `rows` (N',) int64: beams that survive, in their new order."""
        ...


@dataclass(frozen=True, slots=True)
class Arcs:
    """Ways of saying tokens: A of them for each of M tokens of N hypotheses.

    One token has several arcs where it may end a word or not, or end one of several homophones.
    scores: (N, M, A) float32, weighted; -inf where there is no such arc.
    marks: (N, M, A) int64, what the arc ends: 0 nothing, w + 1 word w; other numbers keep apart what would
        otherwise be the same prefix. Arcs of a state and token that exist have different marks.
    states: (N, M, A, s) int64, the states after the arcs.
    """

    scores: Tensor
    marks: Tensor
    states: Tensor


@dataclass(frozen=True, slots=True)
class Endings:
    """Ways of ending: scores (N, E) float32, -inf where none; marks (N, E) int64 as in `Arcs`."""

    scores: Tensor
    marks: Tensor


class PrefixScorer(Protocol):
    """All that a prefix search asks of language models, lexicon and boosting together.

    States are rows of integers (N, s), so that the search selects and merges them as tensors; what is
    no number (a key-value cache) stays with its owner and the row holds an index. The arcs of a state
    and a token are always the same, in the same order.
    """

    @property
    def n_arcs(self) -> int:
        """A, the most arcs that any token has in any state."""
        ...

    @property
    def n_tokens(self) -> int: ...

    def start(self, n: int, device: torch.device | None = None) -> Tensor:
        """States (n, s) of hypotheses that have said nothing yet."""
        ...

    def arcs(self, states: Tensor, tokens: Tensor) -> Arcs:
        """Arcs of tokens (N, M) int64 after states (N, s)."""
        ...

    def endings(self, states: Tensor) -> Endings:
        """Endings of states (N, s); an unfinished word is completed or has no ending."""
        ...


class HistoryScorer(Protocol):
    """Scores whole word histories, to replace what was added for their words during the search."""

    def adjustments(self, histories: Sequence[tuple[str, ...]], *, final: bool) -> list[float]:
        """What to add to the score of hypotheses that have said these words, in place of earlier values.

        final: the hypotheses have ended, so the end of the sentence is scored too.
        """
        ...
