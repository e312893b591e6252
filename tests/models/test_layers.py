"""Products of few rows, packed tables and eight-bit tables: the numbers of the plain product; attention
of a few bfloat16 queries: the numbers of the fused kernel in float32.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sottovoce.models import whisper as room
from sottovoce.models.whisper import (
    FEW_INT8_ROWS,
    FEW_QUERIES,
    FEW_ROWS_OF_LARGE,
    LARGE,
    MANY_KEYS,
    Int8Table,
    Linear,
    MultiHeadAttention,
    PackedEmbedding,
    PackedLinear,
    TokenEmbedding,
    pack,
    packed,
    quantize,
    rows_times_table,
)
from sottovoce.types import Features
from tests.models import tiny
from tests.runtime.reading import start, step


@pytest.mark.parametrize("n_rows", [0, 1, 2, 6, FEW_ROWS_OF_LARGE, FEW_ROWS_OF_LARGE + 1])
@pytest.mark.parametrize("n_out", [1, 7, 12, LARGE, 51865])
def test_equals_the_plain_product(n_rows: int, n_out: int) -> None:
    """float32 sums of 24 products in another order."""
    generator = torch.Generator().manual_seed(n_rows * n_out)
    x = torch.randn(2, n_rows, 24, generator=generator)[:1]
    table = torch.randn(n_out, 24, generator=generator)
    bias = torch.randn(n_out, generator=generator)
    for given in (None, bias):
        ours = rows_times_table(x, table, given)
        assert ours.shape == (1, n_rows, n_out)
        assert ours.is_contiguous()
        torch.testing.assert_close(ours, nn.functional.linear(x, table, given), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_left_to_pytorch(dtype: torch.dtype) -> None:
    x, table = torch.randn(1, 24, dtype=dtype), torch.randn(40, 24, dtype=dtype)
    assert torch.equal(rows_times_table(x, table), F.linear(x, table))


FORMATS = [(torch.float32, 1e-6), (torch.bfloat16, 0.01), (torch.float16, 0.002)]
"""Number formats, and what sums in another order may differ by, relative to the largest product."""


def skip_unless_packed(dtype: torch.dtype) -> None:
    try:
        packed(torch.zeros(32, 32, dtype=dtype))
    except RuntimeError as error:
        pytest.skip(f"no packed tables of {dtype} here: {str(error).splitlines()[0]}")


@pytest.mark.parametrize(("dtype", "tolerance"), FORMATS)
@pytest.mark.parametrize("n_rows", [0, 1, 8, 300])
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


@pytest.mark.parametrize("is_packed", [False, True])
def test_rows_of_any_shape_and_layout(is_packed: bool) -> None:
    layer: nn.Module = Linear(24, 36).requires_grad_(False)
    plain = nn.Linear(24, 36).requires_grad_(False)
    plain.load_state_dict(layer.state_dict())
    if is_packed:
        skip_unless_packed(torch.float32)
        layer = PackedLinear(plain)
    whole = torch.randn(5, 3, 24)
    for x in (whole, whole[:1, :2], whole[:, 1], whole.transpose(0, 1)[:1], whole[0, 0], whole[:1, :1]):
        torch.testing.assert_close(layer(x), plain(x), atol=2e-6, rtol=1e-5)


def test_an_embedding_keeps_its_rows() -> None:
    skip_unless_packed(torch.float32)
    plain = TokenEmbedding(50, 16).requires_grad_(False)
    packed_table = PackedEmbedding(plain)
    tokens = torch.tensor([[1, 49, 1]])
    assert torch.equal(packed_table(tokens), plain(tokens))
    assert torch.equal(packed_table.rows(tokens), plain.weight[tokens])
    assert packed_table.weight.data_ptr() == plain.weight.data_ptr()
    hidden = torch.randn(1, 3, 16)
    torch.testing.assert_close(packed_table.logits(hidden), plain.logits(hidden), atol=2e-6, rtol=1e-5)


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


def filled(table: torch.Tensor, dtype: torch.dtype) -> Int8Table:
    n_out, n_in = table.shape
    int8_table = Int8Table(n_out, n_in, dtype)
    int8_table.values, int8_table.scales = quantize(table)
    return int8_table


def test_a_row_is_scaled_by_its_largest_value() -> None:
    values, scales = quantize(torch.tensor([[1.27, -0.5, 0.004], [0.0, 0.0, 0.0], [-254.0, 127.0, 2.0]]))
    assert values.tolist() == [[127, -50, 0], [0, 0, 0], [-127, 64, 1]]  # halves go to the even neighbour
    torch.testing.assert_close(scales, torch.tensor([0.01, 1.0, 2.0]))


def test_no_value_is_further_off_than_half_a_step() -> None:
    table = torch.randn(50, 64)
    int8_table = filled(table, torch.float32)
    assert ((int8_table.rows() - table).abs() <= int8_table.scales[:, None] / 2 + 1e-6).all()
    assert torch.equal(int8_table.rows(torch.tensor([3, 3, 7])), int8_table.rows()[[3, 3, 7]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_rows", [1, 3, FEW_INT8_ROWS, FEW_INT8_ROWS + 1])
@pytest.mark.parametrize(("n_out", "n_in"), [(51, 64), (128, 96), (40, 24)])
def test_products_are_those_of_the_floats(n_rows: int, n_out: int, n_in: int, dtype: torch.dtype) -> None:
    """Within the 8 bits of mantissa of the kernel's sums."""
    generator = torch.Generator().manual_seed(n_rows)
    eight = filled(torch.randn(n_out, n_in, generator=generator), dtype)
    x = torch.randn(1, n_rows, n_in, generator=generator).to(dtype)
    bias = torch.randn(n_out, generator=generator).to(dtype)
    exact = F.linear(x.double(), eight.values.double() * eight.scales[:, None].double(), bias.double())
    ours = eight.product(x, bias)
    assert ours.dtype == dtype
    assert ours.shape == (1, n_rows, n_out)
    assert (ours.double() - exact).abs().max() < 0.02 * exact.std()


def test_no_rows_give_none() -> None:
    assert filled(torch.randn(4, 32), torch.float32).product(torch.zeros(0, 32)).shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_network_says_nearly_the_same(dtype: torch.dtype) -> None:
    """Relative to the spread of the logits, over a prompt of many rows and single steps."""
    checkpoint = tiny.checkpoint()
    logits = []
    for kind, int8 in ((torch.float32, False), (dtype, True)):
        backend = tiny.backend(checkpoint, dtype=kind, int8=int8)
        encoded = backend.encode(
            Features(torch.linspace(-1, 1, 6400).sin().reshape(1, 80, 80).numpy(), (80,))
        )
        rows = start(backend, encoded)
        prompt = step(rows, [range(20)]).logits
        single = step(rows, [[7]], vocabulary=np.array([5, 6, 7, 8])).logits
        some, spans = np.array([4, 5, 6]), [(0, 20), (5, 9)]
        first = step(start(backend, encoded, 2), [[3], [3]], vocabulary=some, spans=spans).logits
        logits.append((prompt, single, first))
        assert backend.dtype == kind
    for full, eight in zip(*logits, strict=True):
        assert eight.dtype == np.float32
        assert np.abs(full - eight).max() < 0.2 * logits[0][0].std()


def test_every_table_is_small() -> None:
    checkpoint = tiny.checkpoint()
    backend = tiny.backend(checkpoint, int8=True)
    eight = [module for module in backend.network.modules() if isinstance(module, Int8Table)]
    held = sum(t.values.nbytes + t.scales.nbytes for t in eight)
    tables = {name: t for name, t in checkpoint.tensors.items() if t.ndim == 2 and "positional" not in name}
    assert len(eight) == len(tables)
    assert held < 0.4 * sum(4 * t.size for t in tables.values())  # rows of 32 values, and a scale each


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
