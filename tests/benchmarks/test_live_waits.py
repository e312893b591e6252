"""What words wait for: every second of a latency has one reason, and readings are kept as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jiwer")
pytest.importorskip("whisper_normalizer")

from benchmarks.live.runs import Item, Whole
from benchmarks.live.waits import REASONS, Seen, Update, Watched, mean_waits, readings, waited, watching, why
from sottovoce.evaluation.live_run import LiveRun
from sottovoce.streaming.commit_policy import Agreement
from sottovoce.streaming.options import CommitOptions
from sottovoce.types import Word
from tests.streaming.sessions import listen, session, words_of
from tests.streaming.speech import say, silence

OPTIONS = CommitOptions(commit_prob=0.7)
RED, BLUE, BLEW = Seen("red", 0.9, 40), Seen("blue", 0.6, 30), Seen("blew", 0.4, 10)


def update(end_s: float, *words: Seen, n_said: int = 0, n_safe: int = 0, early: bool = False) -> Update:
    return Update(end_s, n_said, words, n_safe, early)


@pytest.mark.parametrize(
    ("reading", "place", "said", "reason"),
    [
        (update(1.0, RED), 1, "blue", "it was not read yet"),
        (update(1.0, RED, BLEW), 1, "blue", "another word was read"),
        (update(1.0, RED, BLUE, early=True), 0, "red", "little audio was in"),
        (update(1.0, RED, BLUE), 1, "blue", "a word before it waited"),
        (update(1.0, RED, BLUE), 0, "red", "it was near the end"),
        (update(1.0, BLUE, n_said=1), 1, "blue", "it was unsure"),
        (update(1.0, RED, n_safe=1), 0, "red", "the rest was read out"),
    ],
)
def test_a_word_waits_for_one_thing(reading: Update, place: int, said: str, reason: str) -> None:
    assert why(reading, place, said, OPTIONS) == reason
    assert reason in REASONS


def of(updates: tuple[Update, ...]) -> Watched:
    words = (Word(" red", 0.0, 0.4, 0.9), Word(" blue", 0.5, 0.8, 0.9))
    run = LiveRun(words, (1.5, 2.5), (1.5, 2.5), None, (), 3.0, 1.0, 1.0)
    return Watched(Item("a", Path("a"), text="red blue"), Whole("red blue", words), run, updates)


def test_every_second_of_a_latency_has_a_reason() -> None:
    found = of((update(1.0, RED), update(1.5, RED, BLEW, n_safe=1), update(2.0, BLUE, n_said=1)))
    red, blue = waited(found, OPTIONS)
    assert red == pytest.approx({"the next update": 0.6, "it was near the end": 0.5})
    assert blue == pytest.approx(
        {
            "the next update": 0.2,
            "it was not read yet": 0.5,
            "another word was read": 0.5,
            "it was unsure": 0.5,
        }
    )
    assert sum(mean_waits([red, blue]).values()) == pytest.approx((1.1 + 1.7) / 2)


def test_words_that_did_not_stay_are_counted_by_probability_and_distance() -> None:
    found = of((update(1.5, RED, BLEW, BLUE), update(2.0, BLUE, n_said=1)))
    assert readings([found]) == [(0.3, 10, False, 1, 1), (0.6, 25, False, 1, 0), (0.9, 35, False, 1, 0)]


def test_readings_of_a_session_are_watched_and_no_others() -> None:
    usual = Agreement.count_stable
    words = ["time", "year", "people", "way", "day", "man"]
    with watching() as updates:
        events = listen(session(["en"]), np.concatenate([silence(0.5), say(words), silence(1.0)]))
    assert words_of(events) == words
    assert Agreement.count_stable is usual
    assert updates
    assert all(word.letters in words for one in updates for word in one.words)
    assert [one.n_said for one in updates] == sorted(one.n_said for one in updates)
