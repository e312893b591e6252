"""Attention of a few bfloat16 queries by plain products: what the fused kernel gives in float32."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from sottovoce.models.layers import FEW_QUERIES, MANY_KEYS, MultiHeadAttention


def masks(n_queries: int, n_keys: int) -> list[torch.Tensor | None]:
    hidden = torch.ones(1, 1, n_queries, n_keys, dtype=torch.bool)
    hidden[..., n_keys // 2 :] = False
    bias = torch.linspace(-3, 0, n_keys).expand(1, 1, n_queries, -1).to(torch.bfloat16)
    return [None, hidden, bias]


@pytest.mark.parametrize("n_queries", [1, 5, 40, FEW_QUERIES + 1])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("n_keys", [MANY_KEYS - 1, MANY_KEYS])
def test_bfloat16_queries_of_any_number(n_queries: int, n_keys: int, which: int) -> None:
    torch.manual_seed(n_queries)
    layer = MultiHeadAttention(32, 4).requires_grad_(False)
    queries, keys, values = (torch.randn(2, 4, n, 8).bfloat16() for n in (n_queries, n_keys, n_keys))
    mask = masks(n_queries, n_keys)[which]
    exact_mask = mask if mask is None or mask.dtype == torch.bool else mask.float()
    exact = F.scaled_dot_product_attention(queries.float(), keys.float(), values.float(), exact_mask)
    expected = layer.out(exact.transpose(1, 2).flatten(2))
    ours = layer.bfloat16()(queries, keys, values, mask=mask)
    assert ours.dtype == torch.bfloat16
    assert (ours.float() - expected).abs().max() < 0.05 * expected.std()


def test_causal_queries_do_not_see_ahead() -> None:
    layer = MultiHeadAttention(16, 2).bfloat16().requires_grad_(False)
    queries, keys, values = (torch.randn(1, 2, 4, 8).bfloat16() for _ in range(3))
    whole = layer(queries, keys, values, causal=True)
    first = layer(queries[:, :, :2], keys[:, :, :2], values[:, :, :2], causal=True)
    torch.testing.assert_close(whole[:, :2], first, atol=0.02, rtol=0.02)
