"""A causal network over a tree of token sequences: every token is run once, in padded batches.

Each node stores the keys and values of its own tokens alone; those of its prefix are collected from its
ancestors when it is continued.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sottovoce.threads import all_torch_threads

if TYPE_CHECKING:
    from transformers.cache_utils import DynamicLayer

_BATCH = 64


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A sequence: kv (n_layers, 2, n_heads, n_own, d) of its own last tokens, log_probs (V,) float32 of
    the next token, and the number of its tokens."""

    parent: Node | None
    kv: Tensor
    log_probs: Tensor
    n_tokens: int

    def path_kv(self) -> Tensor:
        """Collect keys and values of all tokens (n_layers, 2, n_heads, n_tokens, d)."""
        parts = [self.kv]
        node = self.parent
        while node is not None:
            parts.append(node.kv)
            node = node.parent
        return torch.cat(parts[::-1], dim=3)


class NodeExtension(NamedTuple):
    """A node to continue (None: the empty sequence) and the tokens that follow."""

    parent: Node | None
    tokens: tuple[int, ...]


class ContinuedNode(NamedTuple):
    """The new node, and the log-probability of its tokens after the first, given those before."""

    node: Node
    inner: float


class CausalTree:
    """Runs a causal language model of transformers over continued sequences."""

    def __init__(self, network: torch.nn.Module, device: torch.device) -> None:
        self._network = network.eval().to(device)
        self._device = device
        taken = inspect.signature(network.forward).parameters
        self._cache_argument = "cache" if "cache" in taken else "past_key_values"  # renamed in transformers 5
        self.n_run = 0
        """Tokens run through the network so far, padding aside."""

    def extend(self, continuations: Sequence[NodeExtension]) -> list[ContinuedNode]:
        """Continue nodes in batches; return the new ones in the order given."""
        order = sorted(range(len(continuations)), key=lambda i: _length(continuations[i]))  # little padding
        extended: dict[int, ContinuedNode] = {}
        for begin in range(0, len(order), _BATCH):
            places = order[begin : begin + _BATCH]
            extended.update(zip(places, self._run([continuations[i] for i in places]), strict=True))
        return [extended[i] for i in range(len(continuations))]

    @torch.no_grad()
    @all_torch_threads()
    def _run(self, rows: Sequence[NodeExtension]) -> list[ContinuedNode]:
        """Run one batch: padding stands left of the past and right of the new tokens."""
        n_past = torch.tensor([0 if row.parent is None else row.parent.n_tokens for row in rows])
        n_new = torch.tensor([len(row.tokens) for row in rows])
        past, new = int(n_past.max()), int(n_new.max())
        ids = torch.zeros((len(rows), new), dtype=torch.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row.tokens)] = torch.tensor(row.tokens)
        columns = torch.arange(past + new)
        mask = (columns >= past - n_past[:, None]) & (columns < past + n_new[:, None])
        positions = (n_past[:, None] + torch.arange(new)).clamp_max(int((n_past + n_new).max()) - 1)
        logits, kv = self._forward(ids, mask, positions, _padded_past(rows, past))
        self.n_run += int(n_new.sum())
        return [
            _continued(row, logits[place], kv[:, :, place, :, past : past + len(row.tokens)])
            for place, row in enumerate(rows)
        ]

    def _forward(
        self, ids: Tensor, mask: Tensor, positions: Tensor, past: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Logits (R, n_new, V), and keys and values (n_layers, 2, R, n_heads, n_past + n_new, d)."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        cache = DynamicCache()
        for layer in range(0 if past is None else len(past)):
            assert past is not None
            cache.update(past[layer, 0], past[layer, 1], layer)
        output = self._network(
            input_ids=ids.to(self._device),
            attention_mask=mask.to(self._device, torch.int64),
            position_ids=positions.to(self._device),
            use_cache=True,
            **{self._cache_argument: cache},
        )
        layers = [_stacked(layer) for layer in cache.layers if isinstance(layer, DynamicLayer)]
        return output.logits, torch.stack(layers)


def _length(continuation: NodeExtension) -> int:
    return len(continuation.tokens) + (0 if continuation.parent is None else continuation.parent.n_tokens)


def _padded_past(rows: Sequence[NodeExtension], width: int) -> Tensor | None:
    """Keys and values (n_layers, 2, R, n_heads, width, d), padded at the left."""
    if not width:
        return None
    paths = [row.parent.path_kv() for row in rows if row.parent is not None]
    padded = [torch.nn.functional.pad(kv, (0, 0, width - kv.shape[3], 0)) for kv in paths]
    return torch.stack(padded, dim=2)


def _continued(row: NodeExtension, logits: Tensor, kv: Tensor) -> ContinuedNode:
    log_probs = logits[: len(row.tokens)].float().log_softmax(dim=1)
    inner = sum(float(log_probs[i, token]) for i, token in enumerate(row.tokens[1:]))
    n_tokens = _length(row)
    return ContinuedNode(Node(row.parent, kv.clone(), log_probs[-1].clone(), n_tokens), inner)


def _stacked(layer: DynamicLayer) -> Tensor:
    assert layer.keys is not None
    assert layer.values is not None
    return torch.stack((layer.keys, layer.values))
