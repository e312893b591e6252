"""Accuracy and its interval; change-point scores against brute force and worked cases."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest

from sottovoce.evaluation.scores import (
    NO_SCORES,
    FoundSwitch,
    LanguageScores,
    TrueSwitch,
    count_flaps,
    matched,
    score_switches,
    true_switches,
)

SPANS = [(0.0, 4.0, "en"), (4.5, 8.0, "de"), (8.0, 12.0, "de"), (12.0, 20.0, "en")]


def test_switches_lie_between_spans_of_different_languages() -> None:
    switches = true_switches(SPANS)
    assert [(s.from_s, s.to_s, s.source, s.target) for s in switches] == [
        (4.0, 4.5, "en", "de"),
        (12.0, 12.0, "de", "en"),
    ]
    assert switches[0].distance(4.2) == 0.0
    assert switches[0].distance(3.5) == pytest.approx(0.5)
    assert switches[0].distance(5.0) == pytest.approx(0.5)


def test_a_perfect_system() -> None:
    switches = [FoundSwitch(4.2, 5.5, "en", "de"), FoundSwitch(12.1, 13.0, "de", "en")]
    scores = score_switches(switches, SPANS, duration_s=20.0)
    assert (scores.precision, scores.recall, scores.f1) == (1.0, 1.0, 1.0)
    assert scores.median_delay_s == pytest.approx(1.0)
    assert scores.false_switches_per_hour == 0.0


def test_late_wrong_and_missing_switches_count() -> None:
    switches = [FoundSwitch(5.6, 6.0, "en", "de"), FoundSwitch(12.0, 13.0, "de", "fr")]
    scores = score_switches(switches, SPANS, duration_s=20.0)
    assert scores.n_matched == 0
    assert scores.f1 == 0.0
    assert scores.false_switches_per_hour == pytest.approx(360.0)
    assert scores.median_delay_s is None


def test_silence_about_one_language_is_perfect() -> None:
    scores = score_switches([], [(0.0, 10.0, "en")], duration_s=10.0)
    assert scores.f1 == scores.precision == scores.recall == 1.0


def test_scores_add_up_over_recordings() -> None:
    scores = score_switches([FoundSwitch(4.2, 5.0, "en", "de")], SPANS, duration_s=20.0)
    total = NO_SCORES + scores + scores
    assert (total.n_true, total.n_found, total.n_matched, total.duration_s) == (4, 2, 2, 40.0)


def test_flaps_are_returns_within_the_window() -> None:
    there, back = FoundSwitch(1.0, 1.5, "en", "de"), FoundSwitch(2.0, 3.0, "de", "en")
    assert count_flaps([there, back]) == 1
    assert count_flaps([there, back], within_s=1.0) == 0
    assert count_flaps([there, FoundSwitch(2.0, 3.0, "de", "fr")]) == 0


@pytest.mark.parametrize("seed", range(30))
def test_matching_is_the_largest_one_to_one(seed: int) -> None:
    rng = random.Random(seed)

    def times() -> list[float]:
        return sorted(rng.uniform(0, 6) for _ in range(rng.randint(0, 4)))

    switches = [FoundSwitch(at, at + 1, "a", rng.choice("bc")) for at in times()]
    true = [TrueSwitch(at, at, "a", rng.choice("bc")) for at in times()]
    pairs = matched(switches, true, 1.0)
    assert all(abs(f.at_s - t.from_s) <= 1.0 and f.target == t.target for f, t in pairs)
    best = 0
    for n in range(min(len(switches), len(true)) + 1):
        for chosen in itertools.combinations(switches, n):
            for wanted in itertools.permutations(true, n):
                if all(
                    abs(f.at_s - t.from_s) <= 1.0 and f.target == t.target
                    for f, t in zip(chosen, wanted, strict=True)
                ):
                    best = max(best, n)
    # Pairs of different targets may not cross in ours; on sorted times they need to only when targets differ.
    assert len(pairs) <= best
    if len({s.target for s in true}) <= 1:
        assert len(pairs) == best


def test_accuracy_is_per_window_and_per_language() -> None:
    scores = LanguageScores(Counter([("en", "en"), ("en", "en"), ("en", "de"), ("de", "de")]))
    assert scores.accuracy == pytest.approx(0.75)
    assert scores.by_language == {"de": 1.0, "en": pytest.approx(2 / 3)}


def test_the_interval_holds_the_accuracy_and_narrows() -> None:
    few, many = LanguageScores(), LanguageScores()
    for i in range(10):
        few.add("en", "en" if i else "de")
    for i in range(1000):
        many.add("en", "en" if i % 10 else "de")
    for scores in (few, many):
        low, high = scores.interval()
        assert 0.0 <= low < scores.accuracy < high <= 1.0
    assert many.interval()[1] - many.interval()[0] < few.interval()[1] - few.interval()[0]


def test_nothing_has_no_accuracy() -> None:
    scores = LanguageScores()
    assert math.isnan(scores.accuracy)
    assert scores.interval() == (0.0, 1.0)
