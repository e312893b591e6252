"""Back-off automata of n-gram models and of phrases (Aho-Corasick), as tensors with batched look-ups.

A node without an arc for a token backs off to the node of its longest shorter context, at a cost.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from sottovoce.lm.base import Automaton, Floats, Ints

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
        """Return False on a device, to avoid waiting for it."""
        return nodes.device.type == "cpu" and not bool(nodes.any())

    def _arcs_of(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
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


def automaton_of(table: BackoffTable, *, ends: Tensor) -> Automaton:
    """View a table as an automaton. ends: (n_nodes,) scores of ending."""
    return Automaton(
        first=_ints(table.first),
        keys=_ints(table.arcs.keys),
        weights=_floats(table.weights),
        targets=_ints(table.targets),
        backoff=_floats(table.backoff),
        parent=_ints(table.parent),
        root_weights=_floats(table.root_weights),
        root_targets=_ints(table.root_targets),
        ids=np.arange(table.n_tokens, dtype=np.int64),
        ends=_floats(ends),
    )


def _ints(values: Tensor) -> Ints:
    found: Ints = values.to("cpu", torch.int64).contiguous().numpy()
    return found


def _floats(values: Tensor) -> Floats:
    found: Floats = values.to("cpu", torch.float32).contiguous().numpy()
    return found
