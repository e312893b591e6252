"""Shallow fusion: any number of language models over the tokens of a search, weighted, as one object.

For Whisper's beam search `ShallowFusion` is a `LanguageModel`, for the CTC prefix search a `PrefixScorer`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sottovoce.errors import LanguageModelError, OptionError
from sottovoce.lm.base import (
    Arcs,
    Automaton,
    AutomatonModel,
    Endings,
    FlatModels,
    FlatScorer,
    LanguageModel,
)
from sottovoce.lm.flat import flat_models, token_scorer

NEVER = float("-inf")
TensorModel = LanguageModel[Tensor]
"""A language model whose states are (N,) int64."""


class Relabelled:
    """A language model under other ids: token i here is token ids[i] of the model inside.

    ids: (n_tokens,) int64.
    Raises: LanguageModelError for ids that the model does not have.
    """

    def __init__(self, model: TensorModel, ids: Tensor) -> None:
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < model.n_tokens:
            raise LanguageModelError(
                f"language model: expected ids below {model.n_tokens}, got up to {int(ids.max())}"
            )
        self._model = model
        self._ids = ids

    @property
    def n_tokens(self) -> int:
        return len(self._ids)

    def start(self, n: int) -> Tensor:
        return self._model.start(n)

    def score(self, states: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if tokens is None:
            return self._model.score(states)[0][:, self._ids], states
        return self._model.score(states, self._ids[tokens])

    def finish(self, states: Tensor) -> Tensor:
        return self._model.finish(states)

    def select(self, states: Tensor, rows: Tensor) -> Tensor:
        return states[rows]

    def automaton(self) -> Automaton | None:
        """Return the model inside as arrays under these ids; None where it has no such form."""
        inside = self._model.automaton() if isinstance(self._model, AutomatonModel) else None
        if inside is None:
            return None
        ids = self._ids.cpu().numpy()
        begins = None if inside.begins is None else inside.begins[ids]
        return inside._replace(ids=inside.ids[ids], begins=begins)


class ShallowFusion:
    """A weighted sum of language models over the same tokens; states are (N, n_models) int64.

    weights: one per model, times its natural log-probability. A token that a model scores -inf is forbidden,
    whatever the weight.
    Raises: OptionError unless there is one weight a model, and models have the same number of tokens.
    """

    def __init__(self, models: Sequence[TensorModel], weights: Sequence[float]) -> None:
        if len(models) != len(weights) or not models:
            raise OptionError(
                f"fusion: expected a weight per model, got {len(models)} models and {len(weights)} weights"
            )
        sizes = {model.n_tokens for model in models}
        if len(sizes) > 1:
            raise OptionError(f"fusion: expected models over the same tokens, got {sorted(sizes)} tokens")
        self._models = tuple(models)
        self._weights = tuple(weights)

    @property
    def n_tokens(self) -> int:
        return self._models[0].n_tokens

    @property
    def n_arcs(self) -> int:
        return 1

    @property
    def word_separator(self) -> int | None:
        return None

    def start(self, n: int, device: torch.device | None = None) -> Tensor:
        return torch.stack([model.start(n).to(device) for model in self._models], dim=1)

    def score(self, states: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Score as `LanguageModel.score`; a row whose token is not below n_tokens gets 0 and keeps its
        state.
        """
        if tokens is None:
            shape = (len(states), self.n_tokens)
            total = torch.zeros(shape, device=states.device)
            for i, (model, weight) in enumerate(zip(self._models, self._weights, strict=True)):
                total += weighted_scores(model.score(states[:, i])[0], weight)
            return total, states
        in_range = tokens < self.n_tokens
        total, after = self._follow(states, tokens.masked_fill(~in_range, 0))
        return total.masked_fill(~in_range, 0.0), torch.where(in_range[:, None], after, states)

    def finish(self, states: Tensor) -> Tensor:
        """Return the scores (N,) of ending."""
        total = torch.zeros(len(states), device=states.device)
        for i, (model, weight) in enumerate(zip(self._models, self._weights, strict=True)):
            total += weighted_scores(model.finish(states[:, i]), weight)
        return total

    def select(self, states: Tensor, rows: Tensor) -> Tensor:
        return states[rows]

    def arcs(self, states: Tensor, tokens: Tensor) -> Arcs:
        n_rows, n_tokens = tokens.shape
        rows = states[:, None, :].expand(-1, n_tokens, -1).reshape(n_rows * n_tokens, -1)
        scores, after = self._follow(rows, tokens.reshape(-1))
        shape = (n_rows, n_tokens, 1)
        marks = torch.zeros(shape, dtype=torch.int64, device=tokens.device)
        return Arcs(scores.view(shape), marks, after.view(*shape, -1))

    def endings(self, states: Tensor) -> Endings:
        scores = self.finish(states)[:, None]
        return Endings(scores, torch.zeros_like(scores, dtype=torch.int64))

    def flat(self) -> FlatScorer | None:
        """Return the fusion as arrays, for compiled searches; None where a model has no such form."""
        models = self.flat_models()
        return None if models is None else token_scorer(models, self.n_tokens)

    def flat_models(self) -> FlatModels | None:
        return flat_models(list(zip(self._models, self._weights, strict=True)), self.n_tokens)

    def _follow(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(tokens.shape, device=tokens.device)
        after = []
        for i, (model, weight) in enumerate(zip(self._models, self._weights, strict=True)):
            scores, moved = model.score(states[:, i], tokens)
            total = total + weighted_scores(scores, weight)
            after.append(moved)
        return total, torch.stack(after, dim=1)


def weighted_scores(scores: Tensor, weight: float) -> Tensor:
    """Multiply scores by a weight; -inf stays -inf, which a weight of 0 would make NaN."""
    if weight == 1.0:
        return scores
    return torch.where(scores == NEVER, scores, scores * weight)
