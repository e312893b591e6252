"""The seam between searches and language models: batched start, score, finish.

N-gram, neural, phrase boosting and grammar all stand behind it. States are opaque to the search;
it only selects rows of them. Log-probabilities are natural logs.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

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
