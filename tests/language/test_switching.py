"""Smoothing and the change point against their definitions; the rules of switching: strict margin, frames
and dwell, latch, capped wait, undoing.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sottovoce.errors import OptionError
from sottovoce.language.switching import (
    OTHERS,
    Hysteresis,
    SwitchOptions,
    allowed_indices,
    carried_on,
    change_point,
    log_evidence,
    transition_matrix,
)


def random_posteriors(seed: int, n_frames: int, n_languages: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(n_languages, 0.5), size=n_frames)


def path_score(posteriors: np.ndarray, path: tuple[int, ...], stay: float) -> float:
    evidence = log_evidence(posteriors)
    moves = np.log(transition_matrix(posteriors.shape[1], stay))
    frames = sum(evidence[t, state] for t, state in enumerate(path))
    return float(frames + sum(moves[a, b] for a, b in itertools.pairwise(path)))


@pytest.mark.parametrize("seed", range(5))
def test_a_belief_carried_on_sums_over_all_paths(seed: int) -> None:
    stay = 0.9
    posteriors = random_posteriors(seed, 5, 3)
    belief = posteriors[0]
    for row in posteriors[1:]:
        belief = carried_on(belief, stay) * row
        belief = belief / belief.sum()
    ending = np.zeros(3)
    for path in itertools.product(range(3), repeat=5):
        ending[path[-1]] += np.exp(path_score(posteriors, path, stay))
    np.testing.assert_allclose(belief, ending / ending.sum(), rtol=1e-9)


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


OPTIONS = SwitchOptions(
    margin=0.2, min_frames=4, first_frames=4, first_margin=0.2, min_dwell_s=0.5, max_wait_s=1.0
)


def feed(hysteresis: Hysteresis, p_new: float, n: int, start_s: float = 0.0, hop_s: float = 0.1) -> float:
    for i in range(n):
        hysteresis.step(np.array([1.0 - p_new, p_new]), start_s + i * hop_s)
    return start_s + (n - 1) * hop_s


def test_the_margin_is_strict() -> None:
    hysteresis = Hysteresis(SwitchOptions(margin=0.25, min_frames=1, min_dwell_s=0.0), current=0)
    hysteresis.step(np.array([0.375, 0.625]), 0.0)  # leads by exactly 0.25 in binary
    assert hysteresis.pending is None
    hysteresis.step(np.array([0.374, 0.626]), 0.1)
    assert hysteresis.pending is not None


def test_both_frames_and_dwell_are_needed() -> None:
    slow = Hysteresis(OPTIONS, current=0)
    feed(slow, 0.9, 5)  # 5 frames span 0.4 s
    assert slow.pending is None
    feed(slow, 0.9, 1, start_s=0.5)
    assert slow.pending is not None

    sparse = Hysteresis(OPTIONS, current=0)
    feed(sparse, 0.9, 3, hop_s=1.0)  # 2 s, but 3 frames
    assert sparse.pending is None


def test_one_frame_of_doubt_starts_the_count_again() -> None:
    hysteresis = Hysteresis(OPTIONS, current=0)
    feed(hysteresis, 0.9, 5)
    feed(hysteresis, 0.55, 1, start_s=0.5)
    feed(hysteresis, 0.9, 5, start_s=0.6)
    assert hysteresis.pending is None


def test_a_latched_switch_waits_for_a_boundary_and_survives_weak_doubt() -> None:
    hysteresis = Hysteresis(OPTIONS, current=0)
    now = feed(hysteresis, 0.9, 6)
    assert hysteresis.due(now, at_end=False) is None
    feed(hysteresis, 0.45, 3, start_s=now + 0.1)
    switch = hysteresis.due(now + 0.4, at_end=True)
    assert switch is not None
    assert (switch.source, switch.target) == (0, 1)
    assert switch.confirmed_s == pytest.approx(0.5)
    assert hysteresis.current == 1
    assert hysteresis.due(now + 0.5, at_end=True) is None, "a switch is executed once"


def test_the_wait_is_capped() -> None:
    hysteresis = Hysteresis(OPTIONS, current=0)
    now = feed(hysteresis, 0.9, 6)
    assert hysteresis.due(now + 0.99, at_end=False) is None
    assert hysteresis.due(now + 1.0, at_end=False) is not None


def test_only_equal_evidence_undoes_a_latched_switch() -> None:
    hysteresis = Hysteresis(OPTIONS, current=0)
    now = feed(hysteresis, 0.9, 6)
    feed(hysteresis, 0.1, 5, start_s=now + 0.1)
    assert hysteresis.pending is not None
    feed(hysteresis, 0.1, 1, start_s=now + 0.6)
    assert hysteresis.pending is None
    assert hysteresis.current == 0


def test_a_third_language_can_take_over_a_latched_switch() -> None:
    hysteresis = Hysteresis(SwitchOptions(margin=0.6, min_frames=2, min_dwell_s=0.0), current=0)
    for i in range(2):
        hysteresis.step(np.array([0.1, 0.8, 0.1]), 0.1 * i)
    for i in range(2, 4):
        hysteresis.step(np.array([0.1, 0.1, 0.8]), 0.1 * i)
    switch = hysteresis.due(0.4, at_end=True)
    assert switch is not None
    assert (switch.source, switch.target) == (0, 2)


def test_the_first_language_is_not_made_to_wait() -> None:
    hysteresis = Hysteresis(OPTIONS)
    now = feed(hysteresis, 0.9, 6)
    switch = hysteresis.due(now, at_end=False)
    assert switch is not None
    assert switch.source is None
    assert switch.target == 1


def test_the_first_language_takes_its_own_number_of_frames() -> None:
    hysteresis = Hysteresis(SwitchOptions(min_frames=1, first_frames=4, first_margin=0.2, min_dwell_s=0.0))
    feed(hysteresis, 0.9, 3)
    assert hysteresis.pending is None
    feed(hysteresis, 0.9, 1, start_s=0.3)
    assert hysteresis.pending is not None


def test_the_first_language_takes_a_larger_lead_until_it_has_waited() -> None:
    options = SwitchOptions(margin=0.2, first_frames=2, first_margin=0.8, first_wait_s=3.0, min_dwell_s=0.0)
    sure, unsure = Hysteresis(options), Hysteresis(options)
    feed(sure, 0.95, 2)
    assert sure.pending is not None
    feed(unsure, 0.85, 30)  # leads by 0.7, up to 2.9 s
    assert unsure.pending is None
    feed(unsure, 0.55, 2, start_s=3.0)
    assert unsure.pending is not None


def test_the_first_language_waits_from_where_speech_began_and_no_longer() -> None:
    """Silence before it does not count, and one frame decides then."""
    unsure = Hysteresis(SwitchOptions())
    unsure.begin(60.0)
    for time_s in (60.5, 61.0, 61.5, 62.0, 62.5, 63.0):
        unsure.step(np.array([0.45, 0.55]), time_s, opening=True)
        assert unsure.pending is None
    unsure.step(np.array([0.45, 0.55]), 63.5, opening=True)
    switch = unsure.due(63.5, at_end=False)
    assert switch is not None
    assert switch.target == 1


def test_flapping_input_gives_at_most_one_switch_a_dwell() -> None:
    hysteresis = Hysteresis(SwitchOptions(min_frames=1, min_dwell_s=0.5), current=0)
    rng = np.random.default_rng(3)
    times = []
    for i in range(1000):
        p = float(rng.integers(0, 2))
        hysteresis.step(np.array([1 - p, p]), 0.1 * i)
        if hysteresis.due(0.1 * i, at_end=True):
            times.append(0.1 * i)
    assert np.diff(times).min() >= 0.5


def test_a_single_language_never_switches() -> None:
    hysteresis = Hysteresis(OPTIONS, current=0)
    for i in range(100):
        hysteresis.step(np.array([1.0]), 0.1 * i)
    assert hysteresis.due(99.0, at_end=True) is None


def test_the_allow_list_is_checked_against_the_model() -> None:
    assert allowed_indices(("de", "en"), ("en", "zh", "de")) == (2, 0)
    with pytest.raises(OptionError, match="'xx'"):
        allowed_indices(("xx",), ("en",))
    with pytest.raises(OptionError, match="once"):
        allowed_indices(("en", "en"), ("en",))
    with pytest.raises(OptionError, match="none"):
        allowed_indices((), ("en",))
