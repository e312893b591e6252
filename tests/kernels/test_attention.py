"""Attention of the decoder: near float64, alike on every instruction set, exact where frames are hidden."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.arrays import BFLOAT16, HERE, Array, kernels, normal, using

Span = tuple[int, int]


def softmax(logits: Array) -> Array:
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def attend_cross(
    queries: Array, keys: Array, values: Array, *, span: Span | None = None, bias: Array | None = None
) -> tuple[Array, Array]:
    out = np.empty_like(queries)
    weights = np.empty((len(queries), len(keys)), np.float32)
    arrays = [np.ascontiguousarray(array) for array in (queries, keys, values)]
    kernels.attend_cross(
        arrays[0].ctypes.data,
        len(queries),
        arrays[1].ctypes.data,
        arrays[2].ctypes.data,
        keys.shape,
        span or (0, len(keys)),
        0 if bias is None else bias.ctypes.data,
        out.ctypes.data,
        weights.ctypes.data,
    )
    return out, weights


def exact_cross(queries: Array, keys: Array, values: Array, bias: Array | None = None) -> tuple[Array, Array]:
    queries, keys, values = (array.astype(np.float64) for array in (queries, keys, values))
    logits = queries @ keys.T / np.sqrt(queries.shape[1])
    weights = softmax(logits if bias is None else logits + bias)
    return weights @ values, weights


@given(
    n_queries=st.integers(1, 11),
    n_frames=st.integers(1, 90),
    d_head=st.integers(1, 80),
    seed=st.integers(0, 2**32),
)
@pytest.mark.parametrize("name", HERE)
def test_cross_attention_is_near_float64(
    name: str, n_queries: int, n_frames: int, d_head: int, seed: int
) -> None:
    """A logit is wrong by what bfloat16 rounds of its products; weights and outputs by as much again."""
    queries, keys, values = (
        normal(seed + i, n, d_head, scale=0.5) for i, n in enumerate((n_queries, n_frames, n_frames))
    )
    expected, shares = exact_cross(queries, keys, values)
    with using(name):
        result, weights = attend_cross(queries, keys, values)
    size = (np.abs(queries.astype(float)) @ np.abs(keys.astype(float)).T).max() / np.sqrt(d_head)
    relative = np.expm1(2 * (BFLOAT16 * size + 1e-5))
    assert (np.abs(weights - shares) <= relative * shares + 1e-6).all()
    assert (np.abs(result - expected) <= (relative + 2 * BFLOAT16) * (shares @ np.abs(values)) + 1e-5).all()


@pytest.mark.parametrize("name", HERE)
@given(
    n_queries=st.integers(1, 11),
    n_frames=st.integers(2, 90),
    d_head=st.sampled_from([8, 16, 24, 64]),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_hidden_frames_are_as_if_they_were_not_there(
    name: str, n_queries: int, n_frames: int, d_head: int, seed: int, data: st.DataObject
) -> None:
    """A span, and a bias of -inf outside of it, say the same bit by bit, whatever the hidden frames are."""
    start = data.draw(st.integers(0, n_frames - 1))
    end = data.draw(st.integers(start + 1, n_frames))
    queries, keys, values = (
        normal(seed + i, n, d_head) for i, n in enumerate((n_queries, n_frames, n_frames))
    )
    bias = np.full(n_frames, -np.inf, np.float32)
    bias[start:end] = normal(seed + 3, end - start)
    others = keys + (np.isinf(bias))[:, None].astype(np.float32)
    with using(name):
        by_span = attend_cross(queries, keys, values, span=(start, end), bias=bias)
        by_bias = attend_cross(queries, others, values, bias=bias)
    for result, expected in zip(by_span, by_bias, strict=True):
        assert np.array_equal(result, expected)
    assert not by_bias[1][:, np.isinf(bias)].any()


@pytest.mark.parametrize("name", HERE)
@given(n_queries=st.integers(2, 23), n_frames=st.integers(1, 90), seed=st.integers(0, 2**32))
def test_a_query_is_answered_the_same_in_any_company(
    name: str, n_queries: int, n_frames: int, seed: int
) -> None:
    queries, keys, values = (normal(seed + i, n, 64) for i, n in enumerate((n_queries, n_frames, n_frames)))
    with using(name):
        together = attend_cross(queries, keys, values)
        alone = [attend_cross(query[None], keys, values) for query in queries]
    for which in (0, 1):
        assert np.array_equal(together[which], np.concatenate([item[which] for item in alone]))


@pytest.mark.parametrize("name", HERE)
@given(n_tokens=st.integers(1, 60), d_head=st.integers(1, 140), seed=st.integers(0, 2**32))
def test_self_attention_is_that_of_float64(name: str, n_tokens: int, d_head: int, seed: int) -> None:
    query, keys_values = normal(seed, d_head, scale=0.5), normal(seed + 1, n_tokens, 2, d_head, scale=0.5)
    out = np.empty(d_head, np.float32)
    with using(name):
        kernels.attend_self(query.ctypes.data, keys_values.ctypes.data, n_tokens, d_head, out.ctypes.data)
    expected = exact_cross(query[None], keys_values[:, 0], keys_values[:, 1])[0][0]
    np.testing.assert_allclose(out, expected, rtol=2e-4, atol=2e-4)
