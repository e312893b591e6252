"""Language models in the recorded steps of an accelerator: the arcs of a `ShallowFusion` as tensors.

No method waits for the device, and the operators do not depend on the states.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.decoding.search import Fusion
from sottovoce.errors import OptionError
from sottovoce.lm.boosting import BackoffTable, WholeWordBooster
from sottovoce.lm.fusion import ShallowFusion, TokenNgram

_made: WeakKeyDictionary[ShallowFusion, dict[torch.device, TorchFusion]] = WeakKeyDictionary()


def fusion_on(fusion: Fusion, device: torch.device) -> TorchFusion:
    """Return the models on a device; they are copied there once."""
    assert isinstance(fusion, ShallowFusion)
    of_devices = _made.setdefault(fusion, {})
    if device not in of_devices:
        of_devices[device] = TorchFusion(fusion, device)
    return of_devices[device]


class TorchFusion:
    """A static `ShallowFusion` on a device.

    Raises:
        OptionError: a model that only the host can score.
    """

    def __init__(self, fusion: ShallowFusion, device: torch.device) -> None:
        self.n_tokens = fusion.n_tokens
        self._models: list[tuple[_Ngram | _Booster, float]] = []
        for model, weight in fusion.models:
            if isinstance(model, TokenNgram):
                self._models.append((_Ngram(model, device), weight))
            elif isinstance(model, WholeWordBooster):
                self._models.append((_Booster(model, device), weight))
            else:
                raise OptionError(f"fusion: expected n-grams and phrases, got {type(model).__name__}")

    def after(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the states (R, n_models) after tokens (R,); those above n_tokens keep their row's state."""
        is_known = (tokens < self.n_tokens)[:, None]
        known = tokens.masked_fill(~is_known[:, 0], 0)
        moved = [model.after(states[:, i], known) for i, (model, _) in enumerate(self._models)]
        return torch.where(is_known, torch.stack(moved, dim=1), states)

    def fused(self, states: Tensor, logprobs: Tensor, eot: int) -> Tensor:
        """Add the weighted scores of every next token to log-probabilities (R, n_vocab) float32."""
        fused, end = logprobs.clone(), logprobs[:, eot].clone()
        for i, (model, weight) in enumerate(self._models):
            fused[:, : self.n_tokens] += _weighted(model.scores(states[:, i]), weight)
            end += _weighted(model.ends_of(states[:, i]), weight)
        fused[:, eot] = end
        return fused


def _weighted(scores: Tensor, weight: float) -> Tensor:
    # -inf stays -inf, which a weight of 0 would make NaN.
    return torch.where(scores.isneginf(), scores, scores * weight)


class _Arcs(NamedTuple):
    """A `BackoffTable` as tensors. depth: most steps from a node to the root. width: most arcs of a node."""

    first: Tensor
    keys: Tensor
    weights: Tensor
    targets: Tensor
    backoff: Tensor
    parent: Tensor
    root_weights: Tensor
    root_targets: Tensor
    depth: int
    width: int

    @classmethod
    def of(cls, table: BackoffTable, device: torch.device) -> _Arcs:
        tensors = (torch.from_numpy(array).to(device) for array in table)
        depth, nodes = 1, table.parent
        while nodes.any():
            depth, nodes = depth + 1, table.parent[nodes]
        return cls._make((*tensors, depth, int((table.first[1:] - table.first[:-1]).max())))

    def follow(self, nodes: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (N,) and next nodes (N,) of tokens (N,) after nodes (N,)."""
        weight, target = torch.zeros(nodes.shape, device=nodes.device), torch.zeros_like(nodes)
        is_open = torch.ones_like(nodes, dtype=torch.bool)
        for context in self._contexts(nodes):
            wanted = context * len(self.root_weights) + tokens
            place = torch.searchsorted(self.keys, wanted).clamp_max_(len(self.keys) - 1)
            is_arc = (self.keys[place] == wanted) & is_open
            weight = torch.where(is_arc, weight + self.weights[place], weight)
            target = torch.where(is_arc, self.targets[place], target)
            is_open = is_open & ~is_arc
            weight = torch.where(is_open, weight + self.backoff[context], weight)
        weight = torch.where(is_open, weight + self.root_weights[tokens], weight)
        return weight, torch.where(is_open, self.root_targets[tokens], target)

    def row_weights(self, nodes: Tensor) -> Tensor:
        """Return the weights (N, V) of every token after nodes (N,)."""
        contexts, paid = list(self._contexts(nodes)), [torch.zeros(nodes.shape, device=nodes.device)]
        for context in contexts:
            paid.append(paid[-1] + self.backoff[context])
        n_tokens, arc = len(self.root_weights), torch.arange(self.width, device=nodes.device)
        # The last column takes what lies behind the arcs of a node.
        weight = F.pad(self.root_weights, (0, 1)) + paid[-1][:, None]
        for context, price in zip(reversed(contexts), reversed(paid[:-1]), strict=True):
            first = self.first[context][:, None]
            place = (first + arc).clamp_max_(len(self.keys) - 1)
            is_behind = arc >= self.first[context + 1][:, None] - first
            tokens = (self.keys[place] % n_tokens).masked_fill(is_behind, n_tokens)
            weight.scatter_(1, tokens, self.weights[place] + price[:, None])
        return weight[:, :n_tokens]

    def _contexts(self, nodes: Tensor) -> Iterator[Tensor]:
        for _ in range(self.depth if len(self.keys) else 0):
            yield nodes
            nodes = self.parent[nodes]


class _Ngram:
    def __init__(self, ngram: TokenNgram, device: torch.device) -> None:
        model = ngram.model
        self._arcs = _Arcs.of(model.table(), device)
        self._ids = torch.from_numpy(ngram.ids).to(device)
        self._end = model.ids(["</s>"])[0] if "</s>" in model else None

    def scores(self, states: Tensor) -> Tensor:
        return self._arcs.row_weights(states)[:, self._ids]

    def after(self, states: Tensor, tokens: Tensor) -> Tensor:
        return self._arcs.follow(states, self._ids[tokens])[1]

    def ends_of(self, states: Tensor) -> Tensor:
        if self._end is None:
            return torch.zeros(states.shape, device=states.device)
        return self._arcs.follow(states, torch.full_like(states, self._end))[0]


class _Booster:
    """See `WholeWordBooster`."""

    def __init__(self, booster: WholeWordBooster, device: torch.device) -> None:
        inside = booster.inside
        self._arcs, self._n_nodes = _Arcs.of(inside.table, device), inside.n_nodes
        arrays = (*booster.edges, inside.gained, inside.after, inside.ends)
        tensors = (torch.from_numpy(array).to(device) for array in arrays)
        self._before, self._ends_word, self._gained, self._moved, self._ends = tensors

    def scores(self, states: Tensor) -> Tensor:
        ended, nodes = self._after_word(states)
        gained, next_nodes = self._between(nodes, states < self._n_nodes)
        plain = self._arcs.row_weights(nodes)[:, :-1]
        apart = self._arcs.row_weights(next_nodes)[:, :-1] + gained[:, None]
        return torch.where(self._before, apart, plain) + ended[:, None]

    def after(self, states: Tensor, tokens: Tensor) -> Tensor:
        _, nodes = self._after_word(states)
        _, next_nodes = self._between(nodes, states < self._n_nodes)
        _, nodes = self._arcs.follow(torch.where(self._before[tokens], next_nodes, nodes), tokens)
        return nodes + self._n_nodes * self._ends_word[tokens]

    def ends_of(self, states: Tensor) -> Tensor:
        ended, nodes = self._after_word(states)
        return ended + self._ends[nodes]

    def _after_word(self, states: Tensor) -> tuple[Tensor, Tensor]:
        return self._between(states % self._n_nodes, states >= self._n_nodes)

    def _between(self, nodes: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        return self._gained[nodes].masked_fill(~where, 0.0), torch.where(where, self._moved[nodes], nodes)
