"""Products of words and attention in tiles: near float64, alike on every set, alone as in company."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.arrays import HERE, Array, kernels, normal, using
from tests.kernels.test_attention import exact_cross

encoder = pytest.importorskip("sottovoce_kernels.encoder", reason="the kernels have no encoder")

Float64 = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

SHAPES = {
    "n_rows": st.integers(1, 40),
    "n_out": st.integers(1, 100),
    "n_in": st.integers(1, 300),
    "seed": st.integers(0, 2**32),
}
POWER = 1e-4
"""Relative error of a power of two in attention, and of what is rounded on the way to it."""
MOST_SUM, MOST_ACTIVATION, MOST_SHARE, MOST_VALUE = 2**31 - 1, 8191, 4095, 2047
"""The largest whole sum and the largest words, as `encoder_kernels.h` says."""


def multiply(
    weight: Array, bias: Array, x: Array, *, epilogue: int = kernels.STORE, onto: Array | None = None
) -> Array:
    out = np.zeros((len(x), len(weight)), np.float32) if onto is None else onto.copy()
    arrays = [np.ascontiguousarray(array) for array in (weight, bias, x)]
    shape = (len(weight), weight.shape[1])
    addresses = [array.ctypes.data for array in arrays]
    encoder.multiply_words(addresses[0], addresses[1], shape, addresses[2], len(x), out.ctypes.data, epilogue)
    return out


def attend(queries: Array, keys: Array, values: Array, bias: Array | None = None) -> Array:
    out = np.empty_like(queries)
    arrays = [np.ascontiguousarray(array) for array in (queries, keys, values)]
    addresses = [array.ctypes.data for array in arrays]
    added = 0 if bias is None else bias.ctypes.data
    encoder.attend_tiles(
        addresses[0], len(queries), addresses[1], addresses[2], keys.shape, added, out.ctypes.data
    )
    return out


def wrong_by(of: Array, other: Array, step: Float64) -> Float64:
    """The most that products of rows can be wrong by half a word of `of`; one is worth step (len(of),)."""
    assert step.shape == (len(of),)
    return step[:, None] / 2 * np.abs(other.astype(float)).sum(1)


def table_steps(weight: Array) -> Float64:
    """What a word of each output is worth (n_out,): as little as words and their sums have room for."""
    rows, n_in = np.abs(weight.astype(float)), weight.shape[1]
    room = MOST_SUM // MOST_ACTIVATION - (n_in + 1) // 2 - 1
    return np.maximum(rows.max(1) / (2**15 - 1), rows.sum(1) / room)


@pytest.mark.parametrize("name", HERE)
@given(**SHAPES, scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_products_are_within_half_a_word(
    name: str, n_rows: int, n_out: int, n_in: int, seed: int, scale: float
) -> None:
    weight, bias = normal(seed, n_out, n_in), normal(seed + 1, n_out)
    x = normal(seed + 2, n_rows, n_in, scale=scale)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T + bias
    size = np.abs(x.astype(np.float64)) @ np.abs(weight.astype(np.float64)).T
    with using(name):
        apart = np.abs(multiply(weight, bias, x) - exact)
    steps, of_x = table_steps(weight), np.abs(x).max(1).astype(float) / MOST_ACTIVATION
    both = n_in * steps[None] * of_x[:, None] / 4
    bound = wrong_by(x, weight, of_x) + wrong_by(weight, x, steps).T + both
    assert (apart <= 1.001 * bound + 1e-5 * size + 1e-6 * np.abs(bias) + 1e-30).all()


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("n_in", [1, 512, 5120, 20_000])
def test_no_sum_of_words_overflows(name: str, n_in: int) -> None:
    """Where all products are as large as they can be, and of one sign."""
    weight = np.full((3, n_in), 3.0, np.float32)
    weight[1] *= -1.0
    weight[2] = np.linspace(2.9, 3.0, n_in)
    x, bias = np.full((7, n_in), -2.0, np.float32), np.zeros(3, np.float32)
    with using(name):
        result = multiply(weight, bias, x)
    np.testing.assert_allclose(result / n_in, x @ weight.T / n_in, rtol=0.05)


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("d_head", [64, 128, 256])
def test_no_sum_of_attention_overflows(name: str, d_head: int) -> None:
    """All frames alike, so that every share and every word is as large as it can be."""
    queries, keys = np.full((7, d_head), 9.0, np.float32), np.full((600, d_head), 9.0, np.float32)
    with using(name):
        result = attend(queries, keys, np.full((600, d_head), -3.0, np.float32))
    np.testing.assert_allclose(result, -3.0, rtol=1e-3)


@pytest.mark.parametrize("name", HERE)
def test_numbers_that_are_hard_to_round(name: str) -> None:
    weight = np.concatenate([np.zeros((1, 8)), np.eye(8)]).astype(np.float32)
    rows = np.array([[0.0] * 8, [3.0] * 8, [-2.0] * 8, [1e-38] * 8, [1e30] * 8], np.float32)
    with using(name):
        result = multiply(weight, np.zeros(9, np.float32), rows)
    assert not result[:, 0].any()
    np.testing.assert_allclose(result[:, 1:], rows, rtol=1e-4, atol=1e-30)


@pytest.mark.parametrize("name", HERE[1:])
@given(**SHAPES)
def test_every_instruction_set_multiplies_as_the_portable_one(
    name: str, n_rows: int, n_out: int, n_in: int, seed: int
) -> None:
    """Whole sums are the same; what follows them rounds apart."""
    weight, bias, x = normal(seed, n_out, n_in), normal(seed + 1, n_out), normal(seed + 2, n_rows, n_in)
    with using("portable"):
        expected = multiply(weight, bias, x)
    with using(name):
        result = multiply(weight, bias, x)
    size = np.abs(x) @ np.abs(weight).T + np.abs(bias) + 1e-6
    assert (np.abs(result - expected) <= 1e-6 * size).all()


@pytest.mark.parametrize("name", HERE)
def test_products_are_added_and_bent(name: str) -> None:
    weight, bias, x, before = normal(0, 45, 70), normal(3, 45), normal(1, 17, 70), normal(2, 17, 45)
    with using(name):
        plain = multiply(weight, bias, x)
        added = multiply(weight, bias, x, epilogue=kernels.ADD, onto=before)
        bent = multiply(weight, bias, x, epilogue=kernels.GELU)
    np.testing.assert_allclose(added, plain + before, rtol=1e-6, atol=1e-5)
    assert (np.abs(bent) <= np.abs(plain) + 1e-6).all()
    np.testing.assert_allclose(bent[plain > 5], plain[plain > 5], rtol=1e-5)
    np.testing.assert_allclose(bent[plain < -6], 0.0, atol=1e-5)


@pytest.mark.parametrize("name", HERE)
@given(
    n_queries=st.integers(1, 30),
    n_frames=st.integers(1, 600),
    d_head=st.sampled_from([1, 8, 16, 24, 33, 48, 64, 80, 128]),
    seed=st.integers(0, 2**32),
)
def test_attention_in_tiles_is_near_float64(
    name: str, n_queries: int, n_frames: int, d_head: int, seed: int
) -> None:
    """A logit is wrong by half a word of queries and keys, outputs also by one of values and shares."""
    queries, keys, values = (
        normal(seed + i, n, d_head, scale=0.5) for i, n in enumerate((n_queries, n_frames, n_frames))
    )
    expected, shares = exact_cross(queries, keys, values)
    with using(name):
        result = attend(queries, keys, values)
    most = 5792 if d_head <= 64 else 4095
    steps = [np.abs(array).max(1).astype(float) / most for array in (queries, keys)]
    both = d_head * steps[0].max() * steps[1].max() / 4
    logit = wrong_by(queries, keys, steps[0]).max() + wrong_by(keys, queries, steps[1]).max() + both
    relative = np.expm1(2 * (logit / np.sqrt(d_head) + POWER))
    largest = np.abs(values).max(1).astype(float)
    of_values = shares @ largest / MOST_VALUE / 2
    of_shares = n_frames * (shares * largest).max(1) / MOST_SHARE / 2
    bound = relative * (shares @ np.abs(values)) + (1 + relative) * (of_values + of_shares)[:, None]
    assert (np.abs(result - expected) <= bound + 1e-5).all()


@pytest.mark.parametrize("name", HERE)
def test_a_larger_logit_in_a_later_tile_counts(name: str) -> None:
    """Frames of the last tile that outweigh all before them, and the other way round."""
    keys = np.zeros((600, 16), np.float32)
    values = np.repeat(np.arange(600, dtype=np.float32)[:, None] / 600, 16, axis=1)
    queries = np.full((3, 16), 8.0, np.float32)
    for loud in (3, 300, 599):
        keys[:] = 0.0
        keys[loud] = 8.0
        with using(name):
            result = attend(queries, keys, values)
        np.testing.assert_allclose(result, values[loud, 0], rtol=0.005)


@pytest.mark.parametrize("name", HERE)
@given(n_queries=st.integers(2, 40), n_frames=st.integers(1, 300), seed=st.integers(0, 2**32))
def test_a_row_is_the_same_in_any_company(name: str, n_queries: int, n_frames: int, seed: int) -> None:
    queries, keys, values = (normal(seed + i, n, 64) for i, n in enumerate((n_queries, n_frames, n_frames)))
    weight, bias = normal(seed + 3, 40, 64), normal(seed + 4, 40)
    with using(name):
        attended, multiplied = attend(queries, keys, values), multiply(weight, bias, queries)
        for row, query in enumerate(queries):
            assert np.array_equal(attend(query[None], keys, values)[0], attended[row])
            assert np.array_equal(multiply(weight, bias, query[None])[0], multiplied[row])


@pytest.mark.parametrize("name", HERE)
@given(n_frames=st.integers(2, 600), seed=st.integers(0, 2**32), data=st.data())
def test_a_frame_that_counts_as_several_is_as_if_it_were_there_so_often(
    name: str, n_frames: int, seed: int, data: st.DataObject
) -> None:
    """A bias of log2 n on a frame is n of it; its place is any, in a tile of its own as well."""
    queries, keys, values = (normal(seed + i, n, 16) for i, n in enumerate((5, n_frames, n_frames)))
    place, times = data.draw(st.integers(0, n_frames - 1)), data.draw(st.sampled_from([2, 4, 30]))
    bias = np.zeros(n_frames, np.float32)
    bias[place] = np.log2(times)
    repeated = np.repeat(np.arange(n_frames), [times if at == place else 1 for at in range(n_frames)])
    with using(name):
        weighted = attend(queries, keys, values, bias)
        expected = attend(queries, keys[repeated], values[repeated])
    np.testing.assert_allclose(weighted, expected, rtol=0.01, atol=0.01 * float(np.abs(values).max()))
