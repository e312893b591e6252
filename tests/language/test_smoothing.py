"""The forward recursion, Viterbi and the change point against their definitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sottovoce.errors import OptionError
from sottovoce.language.switching import (
    OTHERS,
    SmoothingOptions,
    carried_on,
    change_point,
    log_evidence,
    smoothed,
    transition_matrix,
)


def random_posteriors(seed: int, n_frames: int, n_languages: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(n_languages, 0.5), size=n_frames)


def path_score(posteriors: np.ndarray, path: tuple[int, ...], options: SmoothingOptions) -> float:
    evidence = log_evidence(posteriors, options.evidence)
    moves = np.log(transition_matrix(posteriors.shape[1], options.stay))
    frames = sum(evidence[t, state] for t, state in enumerate(path))
    return float(frames + sum(moves[a, b] for a, b in itertools.pairwise(path)))


@pytest.mark.parametrize("seed", range(5))
def test_a_belief_carried_on_sums_over_all_paths(seed: int) -> None:
    options = SmoothingOptions(stay=0.9, evidence=1.0)
    posteriors = random_posteriors(seed, 5, 3)
    belief = posteriors[0]
    for row in posteriors[1:]:
        belief = carried_on(belief, options.stay) * row
        belief = belief / belief.sum()
    ending = np.zeros(3)
    for path in itertools.product(range(3), repeat=5):
        ending[path[-1]] += np.exp(path_score(posteriors, path, options))
    np.testing.assert_allclose(belief, ending / ending.sum(), rtol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_smoothed_posteriors_sum_over_all_paths(seed: int) -> None:
    options = SmoothingOptions(stay=0.85, evidence=0.6)
    posteriors = random_posteriors(seed, 5, 3)
    expected = np.zeros((5, 3))
    for path in itertools.product(range(3), repeat=5):
        expected[np.arange(5), path] += np.exp(path_score(posteriors, path, options))
    np.testing.assert_allclose(
        smoothed(posteriors, options), expected / expected.sum(axis=1, keepdims=True), rtol=1e-9
    )


@pytest.mark.parametrize("seed", range(10))
def test_the_change_point_is_the_best_split(seed: int) -> None:
    posteriors = random_posteriors(seed, 8, 3)
    kept = log_evidence(posteriors)[:, 0]
    left = np.maximum(log_evidence(posteriors)[:, 2], np.log(OTHERS * (1 - posteriors[:, 0])))
    totals = [kept[:k].sum() + left[k:].sum() for k in range(9)]
    assert totals[change_point(posteriors, 0, 2)] == pytest.approx(max(totals))


def test_the_change_point_can_be_either_end() -> None:
    old, new = np.array([[0.9, 0.1]] * 4), np.array([[0.1, 0.9]] * 4)
    assert change_point(new, 0, 1) == 0
    assert change_point(old, 0, 1) == 4
    assert change_point(np.concatenate([old, new]), 0, 1) == 4
    assert change_point(np.zeros((0, 2)), 0, 1) == 0


def test_words_in_neither_language_come_after_the_change() -> None:
    old, neither, new = [[0.9, 0.08, 0.02]] * 3, [[0.02, 0.03, 0.95]] * 3, [[0.05, 0.9, 0.05]] * 3
    assert change_point(np.array(old + neither + new), 0, 1) == 3


def test_a_start_bonus_moves_an_uncertain_change_to_the_start() -> None:
    unsure, new = [[0.6, 0.4]] * 2, [[0.1, 0.9]] * 3
    assert change_point(np.array(unsure + new), 0, 1) == 2
    assert change_point(np.array(unsure + new), 0, 1, start_bonus=3.0) == 0
    assert change_point(np.array([[0.95, 0.05]] * 2 + new), 0, 1, start_bonus=3.0) == 2


def test_one_language_is_certain() -> None:
    assert carried_on(np.array([1.0]), 0.9) == pytest.approx(1.0)


@pytest.mark.parametrize("bad", [{"renewal": 1.0}, {"stay": 1.0}, {"stay": 0.0}, {"evidence": 0.0}])
def test_impossible_options_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=next(iter(bad))):
        SmoothingOptions(**bad)  # type: ignore[arg-type]
