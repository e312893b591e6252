"""Windows of a long recording hold every word; words and speech begin and end where it is loud."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.alignment.forced import (
    MOST_TOKENS,
    NO_LEVELS,
    LevelMeter,
    Unit,
    at_loud_bounds,
    at_quiet_bounds,
    guess_times,
    in_order,
    move_to_speech,
    plan_windows,
)
from sottovoce.audio.vad import SpeechSegment
from sottovoce.decoding.alignment import TimedWord
from sottovoce.types import SAMPLE_RATE, AudioChunk, Samples


def tone(*spans: tuple[float, float], seconds: float = 4.0, floor: float = 1e-4) -> Samples:
    """Loud in some spans of seconds, faint elsewhere."""
    samples = np.full(round(seconds * SAMPLE_RATE), floor, np.float32)
    for start, end in spans:
        samples[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] = 0.1
    return samples


def metered(samples: Samples, n_chunk: int = 1000) -> np.ndarray:
    meter = LevelMeter()
    chunks = [AudioChunk(samples[i : i + n_chunk], i) for i in range(0, len(samples), n_chunk)]
    assert list(meter.through(chunks)) == chunks
    return meter.levels


def segment(start: float, end: float) -> SpeechSegment:
    return SpeechSegment(round(start * SAMPLE_RATE), round(end * SAMPLE_RATE))


@pytest.mark.parametrize("n_chunk", [160, 1000, 100_000])
def test_levels_are_those_of_whole_steps_however_audio_comes(n_chunk: int) -> None:
    samples = np.random.default_rng(0).normal(0, 0.1, 16_050).astype(np.float32)
    steps = samples[:16_000].reshape(100, 160)
    np.testing.assert_allclose(metered(samples, n_chunk), np.sqrt((steps**2).mean(axis=1)), rtol=1e-5)


def test_bounds_move_to_the_sound() -> None:
    levels = metered(tone((1.0, 2.0)))
    (moved,) = at_loud_bounds([segment(0.9, 2.15)], levels)
    assert (moved.start_s, moved.end_s) == (1.0, 2.0)
    (moved,) = at_loud_bounds([segment(1.1, 1.9)], levels)
    assert (moved.start_s, moved.end_s) == (1.0, 2.0)


def test_bounds_stay_near_what_was_detected_and_apart() -> None:
    levels = metered(tone((0.0, 4.0)))
    first, second = at_loud_bounds([segment(1.0, 1.9), segment(2.0, 3.0)], levels)
    assert (first.start_s, first.end_s) == (0.8, 1.95)
    assert (second.start_s, second.end_s) == (1.95, 3.2)


def test_silence_is_left_as_it_is() -> None:
    detected = [segment(1.0, 2.0)]
    assert at_loud_bounds(detected, metered(tone(floor=0.0))) == detected
    assert at_loud_bounds(detected, np.zeros(0, np.float32)) == detected


def test_a_sign_does_not_cut_off_the_word_that_is_stretched_to_the_end_of_the_speech() -> None:
    words = [
        TimedWord(" One", (1,), 1.1, 1.7, 0.9),
        TimedWord(".", (2,), 1.7, 1.7, 0.9),
        TimedWord(" Two", (3,), 2.9, 3.4, 0.9),
        TimedWord("!", (4,), 3.4, 3.4, 0.9),
    ]
    moved = in_order(move_to_speech(words, [segment(1.0, 2.0), segment(3.0, 3.6)]))
    assert [(word.start, word.end) for word in moved] == [(1.0, 2.0), (2.0, 2.0), (3.0, 3.6), (3.6, 3.6)]


def word(text: str, start: float, end: float) -> TimedWord:
    return TimedWord(text, (), start, end, 0.9)


def test_words_begin_and_end_with_their_sound() -> None:
    """A soft "f" before a word is of it, as far as the quiet before that, and of no other word."""
    samples = tone((1.0, 1.5), (2.0, 2.5))
    samples[round(0.9 * SAMPLE_RATE) : SAMPLE_RATE] = 0.003  # 30 dB softer
    levels = metered(samples)
    moved = at_quiet_bounds([word("four", 1.02, 1.4), word("one", 2.0, 2.5)], levels)
    assert [(round(word.start, 2), round(word.end, 2)) for word in moved] == [(0.9, 1.5), (2.0, 2.5)]


@pytest.mark.parametrize(
    ("sound", "words"),
    [
        (tone((0.0, 4.0)), [word("no", 1.0, 1.5), word("pause", 1.6, 2.0)]),
        (tone((0.5, 1.0), (1.0, 1.5)), [word("one", 0.5, 1.0), word("two", 1.0, 1.5)]),
        (tone((1.0, 2.0), floor=0.01), [word("noise", 1.2, 1.8)]),
        (tone(floor=0.0), [word("silence", 1.0, 2.0)]),
        (tone((1.0, 2.0)), [word("outside", 9.0, 9.5)]),
    ],
)
def test_words_stay_where_nothing_is_quiet_beside_them(sound: Samples, words: list[TimedWord]) -> None:
    assert at_quiet_bounds(words, metered(sound)) == words
    assert at_quiet_bounds(words, NO_LEVELS) == words


def units(n: int) -> list[Unit]:
    return [Unit(0, " word", (1, 2), "word") for _ in range(n)]


@given(st.integers(1, 400), st.floats(0.05, 3.0), st.sets(st.integers(0, 399)))
def test_windows_hold_every_word_once_and_fit_the_model(n: int, pace_s: float, unheard: set[int]) -> None:
    given = units(n)
    heard = [None if i in unheard else (i * pace_s, (i + 1) * pace_s) for i in range(n)]
    windows = plan_windows(given, heard, n * pace_s + 5.0)
    assert [window.first for window in windows] == [0, *(window.end for window in windows[:-1])]
    assert windows[-1].end == n
    for window in windows:
        assert 0 <= window.start_s < window.end_s <= n * pace_s + 5.0 + 0.1
        assert window.end_s - window.start_s <= 30.001
        assert sum(len(unit.tokens) for unit in given[window.first : window.end]) <= MOST_TOKENS
    assert all(a.end_s <= b.start_s + 1e-6 or a.start_s <= b.start_s for a, b in itertools.pairwise(windows))


def test_words_without_times_lie_between_their_neighbours() -> None:
    spans = guess_times(units(5), [None, (2.0, 3.0), None, None, (9.0, 9.5)], 20.0)
    assert spans[1] == (2.0, 3.0)
    assert spans[2] == (3.0, 6.0)
    assert spans[3] == (6.0, 9.0)
    assert 0 <= spans[0][0] < spans[0][1] <= 2.0


def test_windows_are_cut_in_the_longest_pause() -> None:
    heard = [
        (i * 0.5 + (3.0 if i >= 40 else 0.0), i * 0.5 + 0.4 + (3.0 if i >= 40 else 0.0)) for i in range(80)
    ]
    first, *_ = plan_windows(units(80), heard, 50.0)
    assert first.end == 40
