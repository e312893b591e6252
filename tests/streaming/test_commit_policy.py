"""Which words are safe: surely heard, read again, or far from the end of the audio; and never too early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.streaming.commit_policy import Agreement
from sottovoce.streaming.options import CommitOptions
from sottovoce.streaming.words import HypothesisWord
from sottovoce.types import Word
from tests.streaming.sessions import blank_window

NEAR, AGREED, FAR = 20, 40, 60
OPTIONS = CommitOptions(
    commit_prob=0.8,
    low_prob=0.5,
    agreed_frames=AGREED,
    always_commit_frames=FAR,
    n_agreeing=2,
    n_agreeing_low=3,
    min_audio_s=2.0,
)
N_FRAMES = 300


@dataclass(frozen=True)
class Decoded:
    """A word, its probability, and how many frames before the end of the audio it is attended to."""

    text: str
    probability: float
    n_behind: int


def words_of(words: Sequence[Decoded], n_frames: int = N_FRAMES) -> list[HypothesisWord]:
    found = []
    for one in words:
        last = n_frames - one.n_behind
        found.append(HypothesisWord(Word(one.text, last / 50, last / 50 + 0.1, one.probability), (1,), last))
    return found


def n_stable(agreement: Agreement, *words: Decoded, n_frames: int = N_FRAMES) -> int:
    return agreement.count_stable(words_of(words, n_frames), blank_window(n_frames))


@pytest.mark.parametrize(
    ("probability", "n_behind", "after"),
    [
        (1.0, NEAR - 1, None),
        (1.0, NEAR, 1),
        (0.8, NEAR, 1),
        (0.79, NEAR, None),
        (0.79, AGREED - 1, None),
        (0.79, AGREED, 2),
        (0.5, AGREED, 2),
        (0.49, AGREED, 3),
        (0.49, FAR - 1, 3),
        (0.1, FAR, 1),
    ],
)
def test_a_word_is_safe_by_its_distance_its_probability_and_its_readings(
    probability: float, n_behind: int, after: int | None
) -> None:
    agreement = Agreement(OPTIONS, NEAR)
    word = Decoded(" time", probability, n_behind)
    for n_seen in range(1, 5):
        assert n_stable(agreement, word) == (after is not None and n_seen >= after)


def test_unsure_words_at_the_beginning_wait_for_a_second_reading() -> None:
    """The first reading comes when much audio is in: by their distance alone its words would all be safe."""
    agreement = Agreement(CommitOptions(), 25)
    words = [Decoded(" Er", 0.6, 90), Decoded(" zeichnet", 0.65, 60)]
    assert n_stable(agreement, *words, n_frames=100) == 0
    mended = [Decoded(" Erzeichnet", 0.9, 85)]
    assert n_stable(agreement, *mended, n_frames=125) == 1


def test_a_word_that_waits_holds_back_those_behind_it() -> None:
    agreement = Agreement(OPTIONS, NEAR)
    assert n_stable(agreement, Decoded(" a", 1.0, 80), Decoded(" b", 0.1, 50), Decoded(" c", 1.0, 30)) == 1


def test_nothing_is_said_before_there_is_enough_audio() -> None:
    agreement = Agreement(OPTIONS, NEAR)
    assert n_stable(agreement, Decoded(" time", 1.0, 70), n_frames=99) == 0
    assert n_stable(agreement, Decoded(" time", 1.0, 70), n_frames=100) == 1


def test_an_unsure_word_is_no_nearer_than_the_threshold() -> None:
    """Whatever distance is asked of it besides."""
    agreement = Agreement(OPTIONS, FAR + 20)
    for n_behind, expected in ((FAR + 19, 0), (FAR + 20, 1)):
        word = Decoded(" time", 0.6, n_behind)
        assert [n_stable(agreement, word) for _ in range(3)][-1] == expected
        agreement.reset()


def test_what_was_read_while_there_was_too_little_audio_counts() -> None:
    agreement = Agreement(OPTIONS, NEAR)
    assert n_stable(agreement, Decoded(" time", 0.6, 50), n_frames=80) == 0
    assert n_stable(agreement, Decoded(" time", 0.6, 50), n_frames=105) == 1


def test_spelling_is_not_looked_at_but_letters_are() -> None:
    for second, is_same in ((" Time,", True), (" time", True), (" times", False), (" thyme", False)):
        agreement = Agreement(OPTIONS, NEAR)
        n_stable(agreement, Decoded(" time", 0.6, 45))
        assert n_stable(agreement, Decoded(second, 0.6, 45)) == is_same


def test_a_word_counts_only_where_all_before_it_stayed() -> None:
    agreement = Agreement(OPTIONS, NEAR)
    first = [Decoded(" the", 0.6, 58), Decoded(" candidate", 0.6, 50), Decoded(" jays", 0.6, 45)]
    n_stable(agreement, *first)
    changed = [first[0], Decoded(" Canada", 0.6, 50), first[2]]
    assert n_stable(agreement, *changed) == 1
    assert n_stable(agreement, *changed) == 3


def test_what_was_committed_is_counted_no_more_and_the_rest_goes_on() -> None:
    agreement = Agreement(OPTIONS, NEAR)
    words = [Decoded(" a", 1.0, 58), Decoded(" b", 0.6, 45)]
    assert n_stable(agreement, *words) == 1
    agreement.drop_committed(1)
    assert n_stable(agreement, words[1]) == 1


def test_a_lost_reading_is_forgotten() -> None:
    agreement = Agreement(OPTIONS, NEAR)
    n_stable(agreement, Decoded(" a", 0.6, 45))
    agreement.reset()
    assert n_stable(agreement, Decoded(" a", 0.6, 45)) == 0
    assert n_stable(agreement, Decoded(" a", 0.6, 45)) == 1


WORDS = st.builds(Decoded, st.sampled_from([" a", " b", " c"]), st.floats(0.0, 1.0), st.integers(0, 120))
READINGS = st.lists(
    st.lists(WORDS, max_size=6).map(lambda w: sorted(w, key=lambda one: -one.n_behind)), max_size=6
)
CHOSEN = st.builds(
    CommitOptions,
    commit_prob=st.floats(0.0, 1.0),
    low_prob=st.floats(0.0, 1.0),
    agreed_frames=st.integers(0, 100),
    always_commit_frames=st.integers(0, 100),
    n_agreeing=st.integers(1, 4),
    n_agreeing_low=st.integers(1, 4),
    min_audio_s=st.floats(0.0, 8.0),
)
NEARNESS = st.integers(0, 60)
"""How near to the end of the audio a word may be."""


@given(READINGS, CHOSEN, NEARNESS)
def test_no_word_near_the_end_is_ever_safe_and_far_ones_always_are(
    readings: list[list[Decoded]], options: CommitOptions, near: int
) -> None:
    agreement = Agreement(options, near)
    for words in readings:
        n = n_stable(agreement, *words)
        assert 0 <= n <= len(words)
        assert all(word.n_behind >= near for word in words[:n])
        if options.min_audio_s * 50 <= N_FRAMES:
            far = max(near, options.always_commit_frames)
            assert n >= next((i for i, word in enumerate(words) if word.n_behind < far), len(words))
        else:
            assert n == 0
        agreement.drop_committed(n)


@given(READINGS, CHOSEN, NEARNESS)
def test_who_asks_for_more_says_no_more(
    readings: list[list[Decoded]], options: CommitOptions, near: int
) -> None:
    """Of the same readings, stricter options let no more words through."""
    strict = replace(
        options,
        commit_prob=min(1.0, options.commit_prob + 0.1),
        agreed_frames=options.agreed_frames + 10,
        always_commit_frames=options.always_commit_frames + 10,
        n_agreeing=options.n_agreeing + 1,
        n_agreeing_low=options.n_agreeing_low + 1,
        min_audio_s=options.min_audio_s + 0.5,
    )
    loose_one, strict_one = Agreement(options, near), Agreement(strict, near + 5)
    for words in readings:
        assert n_stable(strict_one, *words) <= n_stable(loose_one, *words)


@given(READINGS)
def test_where_nothing_is_asked_all_is_safe(readings: list[list[Decoded]]) -> None:
    agreement = Agreement(
        CommitOptions(
            commit_prob=0.0, agreed_frames=0, always_commit_frames=0, n_agreeing=1, min_audio_s=0.0
        ),
        0,
    )
    assert all(n_stable(agreement, *words) == len(words) for words in readings)


@given(READINGS, CHOSEN)
def test_waiting_for_ever_says_nothing(readings: list[list[Decoded]], options: CommitOptions) -> None:
    agreement = Agreement(options, float("inf"))
    assert all(n_stable(agreement, *words) == 0 for words in readings)
