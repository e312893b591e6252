"""The choice of a row's next tokens: what log-softmax and a sort of all logits in float64 give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.arrays import HERE, Array, kernels, normal, using


def chosen(
    logits: Array, spans: tuple[int, int, int, int], n_best: int
) -> tuple[list[int], list[float], bool]:
    best, tokens = np.zeros(n_best, np.float32), np.zeros(n_best, np.int32)
    is_clear = kernels.choose(logits.ctypes.data, spans, n_best, best.ctypes.data, tokens.ctypes.data)
    return tokens.tolist(), best.tolist(), is_clear


def judged(logits: Array, spans: tuple[int, int, int, int]) -> Array:
    """Log-probabilities (n_vocab,) float64 among the tokens that may follow."""
    first_text, time_begin, first_time, end_time = spans
    exact = np.full(len(logits), -np.inf)
    exact[first_text:time_begin] = logits[first_text:time_begin]
    exact[first_time:end_time] = logits[first_time:end_time]
    together = np.logaddexp.reduce(exact[time_begin:], initial=-np.inf)
    if together > exact[:time_begin].max(initial=-np.inf):
        exact[:time_begin] = -np.inf
    is_allowed = exact > -np.inf
    exact[is_allowed] -= np.logaddexp.reduce(exact[is_allowed], initial=-np.inf)
    return exact


@pytest.mark.parametrize("name", HERE)
@given(
    n_text=st.integers(1, 400),
    n_times=st.integers(0, 200),
    from_text=st.floats(0, 1),
    of_times=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    lift=st.sampled_from([-3.0, 0.0, 3.0]),
    n_best=st.integers(1, 7),
    seed=st.integers(0, 2**32),
)
def test_the_likeliest_tokens_are_those_of_all_log_probabilities(
    name: str,
    n_text: int,
    n_times: int,
    from_text: float,
    of_times: tuple[float, float],
    lift: float,
    n_best: int,
    seed: int,
) -> None:
    logits = normal(seed, n_text + n_times)
    logits[n_text:] += lift
    logits[np.random.default_rng(seed).random(len(logits)) < 0.1] = -np.inf
    low, high = sorted(of_times)
    spans = (round(from_text * n_text), n_text, n_text + round(low * n_times), n_text + round(high * n_times))
    expected = judged(logits, spans)
    with using(name):
        tokens, logprobs, is_clear = chosen(logits, spans, n_best)
    n_allowed = int((expected > -np.inf).sum())
    assert is_clear == (n_allowed >= n_best)
    n_found = min(n_allowed, n_best)
    assert tokens[:n_found] == np.argsort(-expected, kind="stable")[:n_found].tolist()
    np.testing.assert_allclose(logprobs[:n_found], expected[tokens[:n_found]], atol=2e-5)


@pytest.mark.parametrize("name", HERE)
def test_equal_ones_are_told(name: str) -> None:
    logits = np.linspace(-3, 0, 200, dtype=np.float32)
    logits[20] = logits[150] = 1.0
    with using(name):
        assert not chosen(logits, (0, 200, 200, 200), 2)[2]
        assert chosen(logits, (21, 200, 200, 200), 2)[2]
