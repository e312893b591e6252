"""Accuracy counts and their interval."""

from __future__ import annotations

import math

import pytest

from sottovoce.evaluation.language_scores import LanguageScores


def test_accuracy_is_per_window_and_per_language() -> None:
    scores = LanguageScores()
    scores.update([("en", "en"), ("en", "en"), ("en", "de"), ("de", "de")])
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
