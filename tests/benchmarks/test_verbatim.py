"""What `benchmarks/text/verbatim.py` counts: fillers, voiced sound, rates with their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.text.verbatim import (
    REPEATED,
    Reading,
    errors,
    fillers_of,
    is_repeated,
    rate,
    spans_of,
    voiced_frames,
)
from sottovoce.types import Word


def reading(text: str, *, said: str = "", again: str = "", language: str = "en") -> Reading:
    return Reading("x", "read", "default", language, 60.0, text, said, said, again)


def test_answers_are_no_fillers() -> None:
    assert fillers_of("Uh-huh. So, uh, um- I mean, mm-hmm, the ER", "en") == 2
    assert fillers_of("um vier, äh, ähm", "de") == 2


def test_fillers_count_as_errors_or_not() -> None:
    one = reading("So, uh, I go home", said="So I went home")
    assert errors(one, one.said, are_counted=True) == (2, 4)
    assert errors(one, one.said, are_counted=False) == (1, 4)


def test_repetitions_are_found_whatever_stands_between() -> None:
    assert is_repeated(reading("We, we- go", again=" we"))
    assert is_repeated(reading("of the, of the house", again=" of the"))
    assert not is_repeated(reading("We go. Are we", again=" we"))
    assert REPEATED.findall("i i know that we are we are going in 5 5") == ["i", "we are"]


def test_a_hum_is_voiced_and_noise_is_not() -> None:
    time_s = np.arange(16_000) / 16_000
    hum = sum(np.sin(2 * np.pi * 120 * n * time_s) / n for n in (1, 2, 3))
    noise = np.random.default_rng(0).standard_normal(16_000)
    samples = np.concatenate([hum, noise, np.zeros(16_000)]).astype(np.float32)
    voiced = voiced_frames(samples)
    assert voiced[5:95].mean() > 0.95
    assert voiced[105:195].mean() < 0.05
    assert not voiced[205:].any()


def test_spans_are_those_of_what_spaces_separate() -> None:
    words = [Word(" L", 0.0, 0.1, 1), Word("'Europe.", 0.1, 0.5, 1), Word(" C", 0.6, 0.7, 1)]
    assert spans_of(words) == [(0.0, 0.5), (0.6, 0.7)]


def test_rates_are_of_all_clips_together() -> None:
    value, low, high = rate([(1, 10), (3, 10), (0, 20)])
    assert value == pytest.approx(0.1)
    assert 0 <= low < value < high <= 0.3
    assert rate([(1, 10), (3, 10), (0, 20)]) == (value, low, high)
