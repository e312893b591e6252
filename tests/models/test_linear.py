"""Products of few rows: the same numbers, whichever way round they are taken."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sottovoce.models.layers import FEW_ROWS_OF_LARGE, LARGE, Linear, rows_times_table


@pytest.mark.parametrize("n_rows", [0, 1, 2, 5, 6, FEW_ROWS_OF_LARGE, FEW_ROWS_OF_LARGE + 1])
@pytest.mark.parametrize("n_out", [1, 7, 12, 15, LARGE, LARGE + 1, 51865])
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
    assert torch.equal(rows_times_table(x, table), nn.functional.linear(x, table))


def test_the_layer_takes_rows_of_any_shape_and_layout() -> None:
    layer = Linear(24, 36)
    plain = nn.Linear(24, 36)
    plain.load_state_dict(layer.state_dict())
    whole = torch.randn(5, 3, 24)
    for x in (whole, whole[:1, :2], whole[:, 1], whole.transpose(0, 1)[:1], whole[0, 0], whole[:1, :1]):
        torch.testing.assert_close(layer(x), plain(x), atol=2e-6, rtol=1e-5)
