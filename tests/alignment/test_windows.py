"""Windows over a long recording: nothing is lost, nothing is longer than the model hears."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sottovoce.alignment.forced import MOST_TOKENS, guess_times, plan_windows
from sottovoce.alignment.given_text import Unit


def words(n: int) -> list[Unit]:
    return [Unit(0, " word", (1, 2), "word") for _ in range(n)]


@given(st.integers(1, 400), st.floats(0.05, 3.0), st.sets(st.integers(0, 399)))
def test_windows_hold_every_word_once_and_fit_the_model(n: int, pace_s: float, unheard: set[int]) -> None:
    units = words(n)
    heard = [None if i in unheard else (i * pace_s, (i + 1) * pace_s) for i in range(n)]
    windows = plan_windows(units, heard, n * pace_s + 5.0)
    assert [window.first for window in windows] == [0, *(window.end for window in windows[:-1])]
    assert windows[-1].end == n
    for window in windows:
        assert 0 <= window.start_s < window.end_s <= n * pace_s + 5.0 + 0.1
        assert window.end_s - window.start_s <= 30.001
        assert sum(len(unit.tokens) for unit in units[window.first : window.end]) <= MOST_TOKENS
    assert all(a.end_s <= b.start_s + 1e-6 or a.start_s <= b.start_s for a, b in itertools.pairwise(windows))


def test_what_was_not_heard_lies_between_what_was() -> None:
    spans = guess_times(words(5), [None, (2.0, 3.0), None, None, (9.0, 9.5)], 20.0)
    assert spans[1] == (2.0, 3.0)
    assert spans[2] == (3.0, 6.0)
    assert spans[3] == (6.0, 9.0)
    assert 0 <= spans[0][0] < spans[0][1] <= 2.0


def test_windows_are_cut_in_the_longest_pause() -> None:
    heard = [
        (i * 0.5 + (3.0 if i >= 40 else 0.0), i * 0.5 + 0.4 + (3.0 if i >= 40 else 0.0)) for i in range(80)
    ]
    first, *_ = plan_windows(words(80), heard, 50.0)
    assert first.end == 40
