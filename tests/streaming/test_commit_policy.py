"""Which words are safe: surely heard, read again, or far from the end of the audio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.streaming.commit_policy import Agreement, HypothesisWord
from sottovoce.streaming.options import CommitOptions
from sottovoce.types import Word
from tests.streaming.sessions import blank_window

NEAR, FAR = 20, 60
STEP = 25
"""Frames (0.5 s) between two hypotheses of these tests."""
OPTIONS = CommitOptions(commit_prob=0.8, agreed_s=1.0)
N_FRAMES = 300


@dataclass(frozen=True)
class Decoded:
    """A word, its probability, and how many frames before the end of the audio it is attended to."""

    text: str
    probability: float
    n_behind: int


def words_of(words: Sequence[Decoded], n_frames: int = N_FRAMES) -> list[HypothesisWord]:
    placed = []
    for word in words:
        last = n_frames - word.n_behind
        timed = Word(word.text, last / 50, last / 50 + 0.1, word.probability)
        placed.append(HypothesisWord(timed, (1,), last))
    return placed


class Readings:
    """Consecutive hypotheses, each with half a second more audio; a word stays where it is spoken."""

    def __init__(self, options: CommitOptions = OPTIONS, near: float = NEAR, far: float = FAR) -> None:
        self.agreement = Agreement(options, near, far)
        self.n_frames = N_FRAMES

    def n_stable(self, *words: Decoded, after: int = STEP) -> int:
        """Count the stable words of a hypothesis whose audio is `after` frames longer than the last."""
        self.n_frames += after
        return self.agreement.add(words_of(words, self.n_frames), blank_window(self.n_frames))


@pytest.mark.parametrize(
    ("probability", "n_behind", "after"),
    [
        (1.0, NEAR - 1, None),
        (1.0, NEAR, 1),
        (0.8, NEAR, 1),
        (0.79, NEAR, 3),
        (0.1, NEAR, 3),
        (0.1, NEAR - 1, None),
        (0.1, FAR - 1, 3),
        (0.1, FAR, 1),
    ],
)
def test_a_word_is_safe_by_its_distance_its_probability_and_its_readings(
    probability: float, n_behind: int, after: int | None
) -> None:
    readings = Readings()
    for n_seen in range(1, 5):
        n_stable = readings.n_stable(Decoded(" time", probability, n_behind))
        assert n_stable == (after is not None and n_seen >= after)


@pytest.mark.parametrize(("step", "after"), [(10, 6), (25, 3), (50, 2), (75, 2)])
def test_what_counts_is_audio_and_not_the_number_of_readings(step: int, after: int) -> None:
    readings = Readings()
    counts = [readings.n_stable(Decoded(" time", 0.5, NEAR), after=step) for _ in range(after)]
    assert counts == [0] * (after - 1) + [1]


def test_unsure_words_at_the_beginning_wait_for_a_second_reading() -> None:
    """The first reading comes when much audio is in: by their distance alone its words would all be safe."""
    readings = Readings(CommitOptions(), 25)
    assert readings.n_stable(Decoded(" Er", 0.6, 50), Decoded(" zeichnet", 0.65, 40)) == 0
    assert readings.n_stable(Decoded(" Erzeichnet", 0.9, 55)) == 1


def test_a_word_that_waits_holds_back_those_behind_it() -> None:
    assert Readings().n_stable(Decoded(" a", 1.0, 55), Decoded(" b", 0.1, 50), Decoded(" c", 1.0, 30)) == 1


def test_an_unsure_word_is_no_nearer_than_the_threshold() -> None:
    for n_behind, expected in ((NEAR - 1, 0), (NEAR, 1)):
        readings = Readings()
        word = Decoded(" time", 0.6, n_behind)
        assert [readings.n_stable(word) for _ in range(3)][-1] == expected


def test_spelling_is_not_looked_at_but_letters_are() -> None:
    for second, is_same in ((" Time,", True), (" time", True), (" times", False), (" thyme", False)):
        readings = Readings()
        readings.n_stable(Decoded(" time", 0.6, 45))
        assert readings.n_stable(Decoded(second, 0.6, 45), after=2 * STEP) == is_same


def test_a_word_counts_only_where_all_before_it_stayed() -> None:
    readings = Readings()
    first = [Decoded(" the", 0.6, 58), Decoded(" candidate", 0.6, 50), Decoded(" jays", 0.6, 45)]
    readings.n_stable(*first)
    changed = [first[0], Decoded(" Canada", 0.6, 50), first[2]]
    assert readings.n_stable(*changed, after=2 * STEP) == 1
    assert readings.n_stable(*changed, after=2 * STEP) == 3


def test_what_was_committed_is_counted_no_more_and_the_rest_goes_on() -> None:
    readings = Readings()
    words = [Decoded(" a", 1.0, 58), Decoded(" b", 0.6, 45)]
    assert readings.n_stable(*words) == 1
    readings.agreement.drop_committed(words_of(words[:1]))
    assert readings.n_stable(words[1], after=2 * STEP) == 1


def test_a_lost_reading_is_forgotten() -> None:
    readings = Readings()
    readings.n_stable(Decoded(" a", 0.6, 45))
    readings.agreement.reset()
    assert readings.n_stable(Decoded(" a", 0.6, 45), after=2 * STEP) == 0
    assert readings.n_stable(Decoded(" a", 0.6, 45), after=2 * STEP) == 1


WORDS = st.builds(Decoded, st.sampled_from([" a", " b", " c"]), st.floats(0.0, 1.0), st.integers(0, 120))
READINGS = st.lists(
    st.lists(WORDS, max_size=6).map(lambda w: sorted(w, key=lambda word: -word.n_behind)), max_size=6
)
CHOSEN = st.builds(CommitOptions, commit_prob=st.floats(0.0, 1.0), agreed_s=st.floats(0.0, 4.0))
NEARNESS = st.integers(0, 60)
"""How near to the end of the audio a word may be."""


@given(READINGS, CHOSEN, NEARNESS)
def test_no_word_near_the_end_is_ever_safe_and_far_ones_always_are(
    hypotheses: list[list[Decoded]], options: CommitOptions, near: int
) -> None:
    readings = Readings(options, near)
    for words in hypotheses:
        n = readings.n_stable(*words)
        assert 0 <= n <= len(words)
        assert all(word.n_behind >= near for word in words[:n])
        far = max(near, FAR)
        assert n >= next((i for i, word in enumerate(words) if word.n_behind < far), len(words))
        readings.agreement.drop_committed(words_of(words[:n]))


@given(READINGS, CHOSEN, NEARNESS)
def test_who_asks_for_more_says_no_more(
    hypotheses: list[list[Decoded]], options: CommitOptions, near: int
) -> None:
    """Of the same readings, stricter options let no more words through."""
    strict = CommitOptions(min(1.0, options.commit_prob + 0.1), options.agreed_s + 0.5)
    loose_one, strict_one = Readings(options, near), Readings(strict, near + 5, FAR + 5)
    for words in hypotheses:
        assert strict_one.n_stable(*words) <= loose_one.n_stable(*words)


@given(READINGS)
def test_where_nothing_is_asked_all_is_safe(hypotheses: list[list[Decoded]]) -> None:
    readings = Readings(CommitOptions(commit_prob=0.0, agreed_s=0.0), 0)
    assert all(readings.n_stable(*words) == len(words) for words in hypotheses)


@given(READINGS, CHOSEN)
def test_waiting_for_ever_says_nothing(hypotheses: list[list[Decoded]], options: CommitOptions) -> None:
    readings = Readings(options, float("inf"))
    assert all(readings.n_stable(*words) == 0 for words in hypotheses)
