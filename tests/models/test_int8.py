"""Eight-bit tables: values by hand, products against their own floats, and a whole network."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sottovoce.backends.registry import NumberFormat
from sottovoce.backends.torch import TorchBackend
from sottovoce.models.layers import (
    FEW_INT8_ROWS,
    Int8Linear,
    Int8Table,
    int8_tables,
    quantize,
    with_int8_tables,
)
from sottovoce.types import Features
from tests.models import tiny


def filled(table: torch.Tensor, dtype: torch.dtype) -> Int8Table:
    n_out, n_in = table.shape
    made = Int8Table(n_out, n_in, dtype)
    made.values, made.scales = quantize(table)
    return made


def test_a_row_is_scaled_by_its_largest_value() -> None:
    values, scales = quantize(torch.tensor([[1.27, -0.5, 0.004], [0.0, 0.0, 0.0], [-254.0, 127.0, 2.0]]))
    assert values.tolist() == [[127, -50, 0], [0, 0, 0], [-127, 64, 1]]  # halves go to the even neighbour
    torch.testing.assert_close(scales, torch.tensor([0.01, 1.0, 2.0]))


def test_no_value_is_further_off_than_half_a_step() -> None:
    table = torch.randn(50, 64)
    made = filled(table, torch.float32)
    assert ((made.rows() - table).abs() <= made.scales[:, None] / 2 + 1e-6).all()
    assert torch.equal(made.rows(torch.tensor([3, 3, 7])), made.rows()[[3, 3, 7]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_rows", [1, 3, FEW_INT8_ROWS, FEW_INT8_ROWS + 1])
@pytest.mark.parametrize(("n_out", "n_in"), [(51, 64), (128, 96), (40, 24)])
def test_products_are_those_of_the_floats(n_rows: int, n_out: int, n_in: int, dtype: torch.dtype) -> None:
    """Within the 8 bits of mantissa of the kernel's sums."""
    generator = torch.Generator().manual_seed(n_rows)
    made = filled(torch.randn(n_out, n_in, generator=generator), dtype)
    x = torch.randn(1, n_rows, n_in, generator=generator).to(dtype)
    bias = torch.randn(n_out, generator=generator).to(dtype)
    exact = F.linear(x.double(), made.values.double() * made.scales[:, None].double(), bias.double())
    ours = made.product(x, bias)
    assert ours.dtype == dtype
    assert ours.shape == (1, n_rows, n_out)
    assert (ours.double() - exact).abs().max() < 0.02 * exact.std()


def test_no_rows_give_none() -> None:
    assert filled(torch.randn(4, 32), torch.float32).product(torch.zeros(0, 32)).shape == (0, 4)


def test_layers_are_replaced_wherever_they_are() -> None:
    inner = nn.Sequential(nn.Linear(32, 8, bias=False), nn.GELU())
    model = nn.Sequential(nn.Linear(32, 32), nn.Sequential(inner), nn.LayerNorm(8))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    whole = model(torch.ones(1, 32))
    with_int8_tables(model, torch.float32)
    model.load_state_dict(int8_tables(model, state), strict=True)
    assert sum(isinstance(module, Int8Linear) for module in model.modules()) == 2
    torch.testing.assert_close(model(torch.ones(1, 32)), whole, atol=0.1, rtol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_network_says_nearly_the_same(dtype: torch.dtype) -> None:
    """Relative to the spread of the logits, over a prompt of many rows and single steps."""
    checkpoint = tiny.checkpoint()
    logits = []
    for numbers in (NumberFormat(torch.float32), NumberFormat(dtype, int8=True)):
        backend = TorchBackend.from_checkpoint(
            checkpoint, device=tiny.CPU, dtype=numbers.dtype, int8=numbers.int8
        )
        encoded = backend.encode(Features(torch.linspace(-1, 1, 6400).sin().reshape(1, 80, 80), (80,)))
        state = backend.start(encoded)
        prompt = backend.step(torch.arange(20)[None], state, positions=None).logits
        single = backend.step(torch.tensor([[7]]), state, vocabulary=torch.tensor([5, 6, 7, 8])).logits
        asked = torch.tensor([4, 5, 6])
        first = backend.first_step(encoded, [(0, 20), (5, 9)], token=3, vocabulary=asked)
        logits.append((prompt, single, first))
        assert backend.dtype == numbers.dtype
    for full, eight in zip(*logits, strict=True):
        assert eight.dtype == torch.float32
        assert (full - eight).abs().max() < 0.2 * logits[0][0].std()


def test_every_table_is_small() -> None:
    checkpoint = tiny.checkpoint()
    backend = TorchBackend.from_checkpoint(checkpoint, device=tiny.CPU, dtype=torch.float32, int8=True)
    eight = [module for module in backend._model.modules() if isinstance(module, Int8Table)]
    held = sum(t.values.nbytes + t.scales.nbytes for t in eight)
    tables = {name: t for name, t in checkpoint.tensors.items() if t.ndim == 2 and "positional" not in name}
    assert len(eight) == len(tables)
    assert held < 0.4 * sum(4 * t.numel() for t in tables.values())  # rows of 32 values, and a scale each
