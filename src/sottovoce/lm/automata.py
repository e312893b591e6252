"""Automata of language models: as tensors with batched look-ups, and as arrays for compiled searches.

An n-gram model and an Aho-Corasick tree are the same automaton: a node without an arc for a token backs
off to the node of its longest shorter context, at a cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.lm.base import (
    ARC,
    CACHE_ENTRY,
    MODEL,
    NODE,
    ROOT_ARC,
    Automaton,
    AutomatonModel,
    Bools,
    FlatLexicon,
    FlatModels,
    FlatScorer,
    Floats,
    Ints,
    LanguageModel,
    Records,
    silent_scorer,
)

DENSE_ENTRIES = 2**22
"""Tables of up to this many (node, token) pairs are dense: one look-up instead of a search."""


@dataclass(frozen=True, slots=True)
class KeyTable:
    """Finds arcs by node and token.

    keys: (n,) int64, node * n_tokens + token, ascending. dense: (n_nodes * n_tokens,) int32 indices into
    keys, -1: none; or None.
    """

    keys: Tensor
    n_tokens: int
    dense: Tensor | None = None

    @classmethod
    def of(cls, keys: Tensor, n_nodes: int, n_tokens: int) -> KeyTable:
        if n_nodes * n_tokens > DENSE_ENTRIES:
            return cls(keys, n_tokens)
        dense = torch.full((n_nodes * n_tokens,), -1, dtype=torch.int32)
        dense[keys] = torch.arange(len(keys), dtype=torch.int32)
        return cls(keys, n_tokens, dense)

    def find(self, nodes: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Find arcs by nodes and tokens (...): indices (...) int64, 0 for missing ones, and whether they
        exist.
        """
        wanted = nodes * self.n_tokens + tokens
        if self.dense is not None:
            place = self.dense.index_select(0, wanted.flatten()).view(wanted.shape).long()
            return place.clamp_min(0), place >= 0
        if not len(self.keys):
            return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
        place = torch.searchsorted(self.keys, wanted).clamp_max_(len(self.keys) - 1)
        found = self.keys.index_select(0, place.flatten()).view(wanted.shape) == wanted
        return place.masked_fill(~found, 0), found

    def to(self, device: torch.device) -> KeyTable:
        dense = None if self.dense is None else self.dense.to(device)
        return replace(self, keys=self.keys.to(device), dense=dense)


@dataclass(frozen=True, slots=True)
class BackoffTable:
    """Weighted arcs between nodes, with back-off; node 0 is the root, which has every token.

    arcs: of all nodes but the root. weights, targets: (n,) of the arcs, in the order of their keys. first:
    (n_nodes + 1,) int64, the first arc of each node. root_weights, root_targets: (V,). backoff, parent:
    (n_nodes,), cost and node of the shorter context; 0 for the root. n_levels: the longest chain of
    back-offs.
    """

    arcs: KeyTable
    weights: Tensor
    targets: Tensor
    first: Tensor
    root_weights: Tensor
    root_targets: Tensor
    backoff: Tensor
    parent: Tensor
    n_levels: int

    @property
    def n_tokens(self) -> int:
        return len(self.root_weights)

    def follow(self, nodes: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (N,) float32 and next nodes (N,) of tokens (N,) after nodes (N,)."""
        weight = torch.zeros(nodes.shape, device=nodes.device)
        target = torch.zeros_like(nodes)
        open_ = torch.ones_like(nodes, dtype=torch.bool)
        for level in range(self.n_levels):
            if level and self._are_roots(nodes):
                break
            place, found = self.arcs.find(nodes, tokens)
            found &= open_
            if len(self.weights):
                weight = torch.where(found, weight + self.weights[place], weight)
                target = torch.where(found, self.targets[place], target)
            open_ = open_ & ~found
            weight = torch.where(open_, weight + self.backoff[nodes], weight)
            nodes = self.parent[nodes]
        weight = torch.where(open_, weight + self.root_weights[tokens], weight)
        return weight, torch.where(open_, self.root_targets[tokens], target)

    def row_weights(self, nodes: Tensor) -> Tensor:
        """Return the weights (N, V) of every token after nodes (N,)."""
        chain, paid = [nodes], [torch.zeros(nodes.shape, device=nodes.device)]
        while len(chain) < self.n_levels and not self._are_roots(chain[-1]):
            paid.append(paid[-1] + self.backoff[chain[-1]])
            chain.append(self.parent[chain[-1]])
        weight = self.root_weights + (paid[-1] + self.backoff[chain[-1]])[:, None]
        for level, price in zip(reversed(chain), reversed(paid), strict=True):
            row, place = self._arcs_of(level)
            weight[row, self.arcs.keys[place] % self.n_tokens] = self.weights[place] + price[row]
        return weight

    def _are_roots(self, nodes: Tensor) -> bool:
        """Return whether all nodes are the root; False on a device, to avoid waiting for it."""
        return nodes.device.type == "cpu" and not bool(nodes.any())

    def _arcs_of(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the arcs of nodes (N,): index of the node, and of the arc, (n,) each."""
        counts = self.first[nodes + 1] - self.first[nodes]
        row = torch.arange(len(nodes), device=nodes.device).repeat_interleave(counts)
        before = counts.cumsum(0) - counts
        place = torch.arange(len(row), device=nodes.device) - before[row] + self.first[nodes][row]
        return row, place

    def to(self, device: torch.device) -> BackoffTable:
        names = (field.name for field in fields(self) if field.name != "n_levels")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def backoff_table(
    keys: Tensor,
    weights: Tensor,
    targets: Tensor,
    *,
    root: tuple[Tensor, Tensor],
    backoff: Tensor,
    parent: Tensor,
) -> BackoffTable:
    """Sort arcs into a table.

    keys: (n,) int64, node * V + token. weights, targets: (n,). root: weights and targets (V,) of the root.
    backoff, parent: (n_nodes,).
    """
    n_tokens, n_nodes = len(root[0]), len(parent)
    order = keys.argsort()
    keys = keys[order]
    first = torch.searchsorted(keys, torch.arange(n_nodes + 1) * n_tokens)
    level, n_levels = parent, 1
    while bool(level.any()):
        level, n_levels = parent[level], n_levels + 1
    return BackoffTable(
        arcs=KeyTable.of(keys, n_nodes, n_tokens),
        weights=weights[order].float(),
        targets=targets[order],
        first=first,
        root_weights=root[0].float(),
        root_targets=root[1],
        backoff=backoff.float(),
        parent=parent,
        n_levels=n_levels,
    )


Weighted = tuple[LanguageModel, float]


def automaton_of(table: BackoffTable, ends: Tensor) -> Automaton:
    """Convert a back-off table to an automaton over its own ids; ends: (n_nodes,) scores of ending."""
    return Automaton(
        first=_ints(table.first),
        tokens=(table.arcs.keys % table.n_tokens).to("cpu", torch.int32).numpy(),
        weights=_floats(table.weights),
        targets=_ints(table.targets),
        backoff=_floats(table.backoff),
        parent=_ints(table.parent),
        root_weights=_floats(table.root_weights),
        root_targets=_ints(table.root_targets),
        ids=np.arange(table.n_tokens),
        ends=_floats(ends),
    )


def flat_models(models: Sequence[Weighted], n_tokens: int) -> FlatModels | None:
    """Convert weighted models to one set of arrays; None if one of them has no automaton."""
    if not models:
        return silent_scorer(n_tokens).tokens
    found: list[Automaton] = []
    for model, weight in models:
        automaton = model.automaton() if isinstance(model, AutomatonModel) else None
        if automaton is None or (automaton.callback is not None and weight < 0):
            return None  # no upper bound: low scores times a negative weight
        found.append(automaton)
    n_nodes = [len(each.parent) for each in found]
    weights = [weight for _, weight in models]
    return FlatModels(
        models=_models(found, n_nodes, weights),
        nodes=_nodes(found),
        arcs=_records(
            ARC,
            token=np.concatenate([each.tokens for each in found]),
            target=np.concatenate([each.targets for each in found]),
            weight=np.concatenate([each.weights for each in found]),
        ),
        roots=np.stack([_root(each) for each in found]),
        ends=np.concatenate([_ends(each, w) for each, w in zip(found, weights, strict=True)]),
        bounds=np.sum([_bounds(each, w) for each, w in zip(found, weights, strict=True)], axis=0),
        cache=_caches(found),
    )


def _models(found: Sequence[Automaton], n_nodes: Sequence[int], weights: Sequence[float]) -> Records:
    sizes = [0 if each.callback is None else len(each.callback.cache) for each in found]
    return _records(
        MODEL,
        base=_before(n_nodes),
        weight=np.array(weights, np.float32),
        address=np.array([0 if each.callback is None else each.callback.address for each in found], np.int64),
        cache_first=_before(sizes),
        cache_size=np.array(sizes, np.int64),
    )


def _caches(found: Sequence[Automaton]) -> Records:
    """Concatenate the caches of callbacks; a single one is shared, since it is written to."""
    tables = [each.callback.cache for each in found if each.callback is not None]
    if len(tables) == 1:
        return tables[0]
    return np.concatenate(tables) if tables else np.zeros(0, CACHE_ENTRY)


def _nodes(found: Sequence[Automaton]) -> Records:
    """Concatenate the nodes of automata, and a last one that marks the end of the arcs."""
    before = _before([len(each.tokens) for each in found])
    first = [each.first[:-1] + arcs for each, arcs in zip(found, before, strict=True)]
    end = np.array([sum(len(each.tokens) for each in found)])
    return _records(
        NODE,
        first=np.concatenate((*first, end)),
        parent=np.concatenate((*(each.parent for each in found), [0])),
        backoff=np.concatenate((*(each.backoff for each in found), np.zeros(1, np.float32))),
    )


def _root(automaton: Automaton) -> Records:
    """Return the root's arcs of all tokens, and of the word boundary."""
    ids = np.append(automaton.ids, 0 if automaton.silent is None else automaton.silent)
    weights, targets = automaton.root_weights[ids], automaton.root_targets[ids]
    is_begun = np.append(_begins(automaton), False)
    return _records(ROOT_ARC, id=ids, target=targets, weight=weights, is_begun=is_begun)


def _begins(automaton: Automaton) -> Bools:
    return np.zeros(len(automaton.ids), np.bool_) if automaton.begins is None else automaton.begins


def _ends(automaton: Automaton, factor: float) -> Floats:
    """Return weighted scores of ending; -inf stays -inf, also times 0."""
    allowed = np.isfinite(automaton.ends)
    found: Floats = np.full_like(automaton.ends, -np.inf)
    found[allowed] = automaton.ends[allowed] * np.float32(factor)
    return found


def _records(kind: np.dtype[np.void], **fields: npt.NDArray[np.generic]) -> Records:
    made = np.empty(len(next(iter(fields.values()))), kind)
    for name, values in fields.items():
        made[name] = values
    return made


def token_scorer(models: FlatModels, n_tokens: int) -> FlatScorer:
    return silent_scorer(n_tokens)._replace(tokens=models, bound=_bound(models))


def word_scorer(lexicon: FlatLexicon, words: FlatModels, tokens: FlatModels, n_arcs: int) -> FlatScorer:
    _bound_endings(lexicon, words.bounds + lexicon.word_scores)
    return FlatScorer(n_arcs, lexicon, words, tokens, _bound(tokens))


def _bound(models: FlatModels) -> float:
    return float(models.bounds.max(initial=float("-inf")))


def _bound_endings(lexicon: FlatLexicon, bounds: Floats) -> None:
    """Set each node's upper bound of the score of ending a word there; bounds: (n_words,)."""
    nodes = lexicon.nodes[:-1]
    best = np.full(len(nodes), -np.inf, np.float32)
    np.maximum.at(best, np.repeat(np.arange(len(nodes)), nodes["n_words"]), bounds[lexicon.words])
    if lexicon.separator >= 0:
        best[0] = 0.0
    else:  # a word ends with the step to the node that spells it
        parents = np.repeat(np.arange(len(nodes)), np.diff(lexicon.nodes["first"]))
        above = np.full(len(nodes), -np.inf, np.float32)
        np.maximum.at(above, parents, best[lexicon.children["target"]])
        best = above
    if lexicon.unknown >= 0:
        best = np.maximum(best, bounds[lexicon.unknown])
    nodes["ending"] = best - nodes["ahead"]


def _bounds(automaton: Automaton, factor: float) -> Floats:
    """Return the highest weighted score (n_tokens,) of each token in any state."""
    sign = np.float32(1.0 if factor >= 0 else -1.0)
    best = automaton.root_weights * sign
    np.maximum.at(best, automaton.tokens, automaton.weights * sign)
    backoff, parent = automaton.backoff * sign, automaton.parent
    paid = np.zeros(len(parent), np.float32)  # upper bound of the score of backing off from a node
    while True:
        more = np.maximum(backoff + paid[parent], 0).astype(np.float32)
        more[0] = 0
        if np.array_equal(more, paid):
            break
        paid = more
    best += paid.max(initial=0.0)
    bounds = best[automaton.ids]
    if automaton.silent is not None:
        bounds = bounds + np.where(_begins(automaton), best[automaton.silent], 0.0)
    found: Floats = (np.where(np.isfinite(bounds), bounds, 0.0) * abs(factor)).astype(np.float32)
    return found


def _before(counts: Sequence[int]) -> Ints:
    return np.cumsum([0, *counts], dtype=np.int64)[:-1]


def _ints(values: Tensor) -> Ints:
    found: Ints = values.to("cpu", torch.int64).contiguous().numpy()
    return found


def _floats(values: Tensor) -> Floats:
    found: Floats = values.to("cpu", torch.float32).contiguous().numpy()
    return found
