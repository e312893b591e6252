"""Products in eight bits: within what eight bits can be wrong, and alike on every instruction set."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.arrays import HERE, Layer, kernels, normal, using

SHAPES = {
    "n_rows": st.integers(1, 70),
    "n_out": st.integers(1, 100),
    "n_in": st.integers(1, 300),
    "seed": st.integers(0, 2**32),
}


@given(**SHAPES, scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_portable_products_are_within_eight_bits(
    n_rows: int, n_out: int, n_in: int, seed: int, scale: float
) -> None:
    layer = Layer(normal(seed, n_out, n_in), normal(seed + 1, n_out))
    x = normal(seed + 2, n_rows, n_in, scale=scale)
    with using("portable"):
        apart = np.abs(layer(x) - layer.exact(x))
    assert (apart <= layer.bound(x)).all()


@pytest.mark.parametrize("name", HERE[1:])
@given(**SHAPES)
def test_every_instruction_set_multiplies_as_the_portable_one(
    name: str, n_rows: int, n_out: int, n_in: int, seed: int
) -> None:
    """The whole sums are the same; only the last steps round apart, where numbers are fused."""
    layer = Layer(normal(seed, n_out, n_in), normal(seed + 1, n_out))
    x = normal(seed + 2, n_rows, n_in)
    with using("portable"):
        expected = layer(x)
    with using(name):
        result = layer(x)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4 * float(np.abs(expected).max()))


@pytest.mark.parametrize("name", HERE)
@given(**SHAPES, n_threads=st.integers(1, 4))
def test_a_row_is_the_same_in_any_company(
    name: str, n_rows: int, n_out: int, n_in: int, seed: int, n_threads: int
) -> None:
    layer = Layer(normal(seed, n_out, n_in))
    x = normal(seed + 2, n_rows, n_in)
    with using(name):
        together = layer(x, n_threads=n_threads)
        alone = np.concatenate([layer(row[None]) for row in x])
    assert np.array_equal(together, alone)


@pytest.mark.parametrize("name", HERE)
def test_products_are_added_and_bent(name: str) -> None:
    layer, x, before = Layer(normal(0, 45, 70)), normal(1, 9, 70), normal(2, 9, 45)
    with using(name):
        plain = layer(x)
        added = layer(x, epilogue=kernels.ADD, onto=before)
        bent = layer(x, epilogue=kernels.GELU)
    np.testing.assert_allclose(added, plain + before, rtol=1e-6, atol=1e-6)
    expected = [
        0.5 * number * (1 + math.erf(number / math.sqrt(2))) for number in plain.ravel().astype(float)
    ]
    np.testing.assert_allclose(bent.ravel(), expected, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("name", HERE)
def test_numbers_that_are_hard_to_round(name: str) -> None:
    layer = Layer(np.concatenate([np.zeros((1, 8)), np.eye(8)]).astype(np.float32))
    rows = np.array([[0.0] * 8, [3.0] * 8, [-2.0] * 8, [1e-38] * 8, [1e30] * 8], np.float32)
    with using(name):
        result = layer(rows)
    assert not result[:, 0].any()
    np.testing.assert_allclose(result[:, 1:], rows, rtol=0.005, atol=1e-30)


def test_a_table_keeps_its_rows_within_half_a_step() -> None:
    layer = Layer(normal(0, 33, 65))
    steps = np.abs(layer.weight).max(1, keepdims=True) / 127
    assert (np.abs(layer.table() - layer.weight) <= steps * 0.5001).all()


@pytest.mark.parametrize("name", HERE)
@given(n=st.integers(1, 200), seed=st.integers(0, 2**32), scale=st.sampled_from([1e-2, 1.0, 100.0]))
def test_norms_are_those_of_float64(name: str, n: int, seed: int, scale: float) -> None:
    x, weight, bias = normal(seed, 3, n, scale=scale), normal(seed + 1, n), normal(seed + 2, n)
    out = np.empty_like(x)
    with using(name):
        kernels.layer_norm(x.ctypes.data, weight.ctypes.data, bias.ctypes.data, 3, n, out.ctypes.data)
    exact = x.astype(np.float64)
    exact = exact - exact.mean(1, keepdims=True)
    exact = exact / np.sqrt(exact.var(1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(out, exact, rtol=1e-4, atol=1e-4 * float(1 + np.abs(weight).max()))


def test_an_instruction_set_is_chosen_by_name() -> None:
    assert HERE[0] == "portable"
    with using("portable"):
        assert kernels.in_use() == "portable"
    kernels.use("auto")
    assert kernels.in_use() == HERE[-1]
    with pytest.raises(kernels.KernelsError, match="expected auto or one of portable"):
        kernels.use("nonsense")
