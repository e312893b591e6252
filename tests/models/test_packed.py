"""Packed tables: the products are the plain ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sottovoce.models import layers as room
from sottovoce.models.layers import PackedEmbedding, PackedLinear, TokenEmbedding, pack, packed

FORMATS = [(torch.float32, 1e-6), (torch.bfloat16, 0.01), (torch.float16, 0.002)]
"""Number formats, and what sums in another order may differ by, relative to the largest product."""


def skip_unless_packed(dtype: torch.dtype) -> None:
    try:
        packed(torch.zeros(32, 32, dtype=dtype))
    except RuntimeError as error:
        pytest.skip(f"no packed tables of {dtype} here: {str(error).splitlines()[0]}")


@pytest.mark.parametrize(("dtype", "tolerance"), FORMATS)
@pytest.mark.parametrize("n_rows", [0, 1, 2, 5, 8, 9, 300])
@pytest.mark.parametrize(("n_out", "n_in"), [(1, 8), (7, 24), (64, 64), (1001, 48)])
def test_products_are_the_plain_ones(
    n_rows: int, n_out: int, n_in: int, dtype: torch.dtype, tolerance: float
) -> None:
    skip_unless_packed(dtype)
    generator = torch.Generator().manual_seed(n_rows * n_out)
    for bias in (True, False):
        layer = nn.Linear(n_in, n_out, bias=bias, dtype=dtype).requires_grad_(False)
        x = torch.randn(2, n_rows, n_in, generator=generator).to(dtype)[:1]
        exact = F.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
        ours = PackedLinear(layer)(x)
        assert ours.dtype == dtype
        assert ours.shape == (1, n_rows, n_out)
        if n_rows:
            assert (ours.double() - exact).abs().max() <= tolerance * exact.abs().max()


def test_rows_of_any_shape_and_layout() -> None:
    skip_unless_packed(torch.float32)
    plain = nn.Linear(24, 36).requires_grad_(False)
    layer = PackedLinear(plain)
    whole = torch.randn(5, 3, 24)
    for x in (whole, whole[:1, :2], whole[:, 1], whole.transpose(0, 1)[:1], whole[0, 0], whole[:1, :1]):
        torch.testing.assert_close(layer(x), plain(x), atol=2e-6, rtol=1e-5)


def test_an_embedding_keeps_its_rows() -> None:
    skip_unless_packed(torch.float32)
    plain = TokenEmbedding(50, 16).requires_grad_(False)
    made = PackedEmbedding(plain)
    tokens = torch.tensor([[1, 49, 1]])
    assert torch.equal(made(tokens), plain(tokens))
    assert torch.equal(made.rows(tokens), plain.weight[tokens])
    assert made.weight.data_ptr() == plain.weight.data_ptr()
    hidden = torch.randn(1, 3, 16)
    torch.testing.assert_close(made.logits(hidden), plain.logits(hidden), atol=2e-6, rtol=1e-5)


def small() -> nn.Sequential:
    parts = (TokenEmbedding(9, 16), nn.Sequential(nn.Linear(16, 16), nn.GELU()), nn.LayerNorm(16))
    return nn.Sequential(*parts).requires_grad_(False)


def test_layers_are_packed_wherever_they_are() -> None:
    skip_unless_packed(torch.float32)
    model = small()
    tokens = torch.tensor([[1, 2]])
    before = model(tokens)
    pack(model)
    assert [type(m) for m in model.modules()].count(PackedLinear) == 1
    assert not any(type(module) in (nn.Linear, TokenEmbedding) for module in model.modules())
    torch.testing.assert_close(model(tokens), before, atol=2e-6, rtol=1e-5)


def test_where_nothing_can_be_packed_all_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(table: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no")

    monkeypatch.setattr(room, "packed", refuse)
    model = small()
    before = list(model.modules())
    pack(model)
    assert list(model.modules()) == before
