"""Multi-head attention: a fused kernel for every layer, and weights of single heads on request.

Shapes: B batch, H heads, T queries, S keys, d_head = d / H.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sottovoce.models.linear import Linear

KeysValues = tuple[Tensor, Tensor]
"""Keys and values, (B, H, S, d_head) each."""
FEW_QUERIES = 8
"""Up to here PyTorch's bfloat16 kernel on a CPU takes twice as long as plain products (on Zen 4). It does so
for hundreds of queries too, but a product's logits are rounded to bfloat16, and words change: of a minute of
German read with int8 weights 24 were wrong, where the kernel's logits give 20 to 22."""
MANY_KEYS = 64
"""Below, as in a cache that grows, plain products would cost a new kernel for every number of keys."""


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention with Whisper's projections (keys have no bias)."""

    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.query = Linear(n_state, n_state)
        self.key = Linear(n_state, n_state, bias=False)
        self.value = Linear(n_state, n_state)
        self.out = Linear(n_state, n_state)

    def keys_values(self, x: Tensor) -> KeysValues:
        """Project x (B, S, d) to keys and values, (B, H, S, d_head) each."""
        return self.split_heads(self.key(x)), self.split_heads(self.value(x))

    def queries(self, x: Tensor) -> Tensor:
        """Project x (B, T, d) to queries (B, H, T, d_head)."""
        return self.split_heads(self.query(x))

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Attend from queries (B, H, T, d_head) to keys and values (B, H, S, d_head); returns (B, T, d).

        mask: broadcastable to (B, H, T, S); bool (True: may attend) or added to the logits.
        """
        return self.merged(attend(queries, keys, values, mask, causal=causal))

    def merged(self, attended: Tensor) -> Tensor:
        """Merge the outputs of heads (B, H, T, d_head) by the output projection: (B, T, d)."""
        merged: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return merged

    def split_heads(self, x: Tensor) -> Tensor:
        """View (B, T, d) as heads (B, H, T, d_head)."""
        return x.reshape(*x.shape[:2], self.n_head, -1).transpose(1, 2)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, *, causal: bool = False
) -> Tensor:
    """Attend from queries (B, H, T, d_head) to keys and values (B, H, S, d_head); returns (B, H, T, d_head).

    mask: broadcastable to (B, H, T, S); bool (True: may attend) or added to the logits. causal: query t
    attends to keys up to t. Runs PyTorch's fused kernel, or another product where that is much faster.
    """
    few = queries.shape[2] <= FEW_QUERIES and not causal
    if few and queries.dtype == torch.bfloat16 and queries.device.type == "cpu":
        if keys.shape[2] >= MANY_KEYS:
            return _by_products(queries, keys, values, mask)
        if queries.shape[2] == 1:  # for one the fused kernel takes longer than for two
            doubled = queries.expand(-1, -1, 2, -1)
            return F.scaled_dot_product_attention(doubled, keys, values, attn_mask=mask)[:, :, :1]
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=causal)


def _by_products(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    logits = (queries * queries.shape[-1] ** -0.5 @ keys.transpose(-1, -2)).float()
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
    attended: Tensor = logits.softmax(dim=-1).to(values.dtype) @ values
    return attended


def head_weights(queries: Tensor, keys: Tensor, heads: Sequence[int], bias: Tensor | None = None) -> Tensor:
    """Compute attention probabilities of single heads: (B, T, len(heads), S) float32.

    queries: (B, H, T, d_head). keys: (B, H, S, d_head). bias: broadcastable to (B, 1, T, S), added to the
    logits of every head; None adds nothing.
    """
    scale = queries.shape[-1] ** -0.5
    logits = [scale * queries[:, head].float() @ keys[:, head].float().transpose(-1, -2) for head in heads]
    stacked = torch.stack(logits, dim=2)  # (B, T, len(heads), S)
    if bias is not None:
        stacked = stacked + bias.transpose(1, 2)
    return stacked.softmax(dim=-1)
