"""Marks, sentence ends and the last second of a transcript."""

from __future__ import annotations

import pytest

from benchmarks.live.counts import ended_units, ends_f1, n_marks, tail_errors
from sottovoce.types import Word


def test_a_word_with_marks_counts_once() -> None:
    assert n_marks('He said: "Really?!" Yes, at 3.5 per cent') == 3


def test_a_sentence_ends_behind_a_word_and_nowhere_inside_one() -> None:
    assert ended_units('It is 3.5 "miles." Go', "en") == [
        *(("it", False), ("is", False), ("3.5", False), ("miles", True), ("go", False))
    ]


def test_sentence_ends_are_shared_behind_aligned_words() -> None:
    said = ["One two. Three four. Five."]
    assert ends_f1(said, said, ["en"]) == 1.0
    # Of two and three ends, that behind "two" and the last are shared.
    assert ends_f1(["Won two. Three, four five."], said, ["en"]) == pytest.approx(4 / 5)
    assert ends_f1(["one two"], ["one two"], ["en"]) is None


SAID = [Word(f" {text}", i * 0.5, i * 0.5 + 0.5, 1.0) for i, text in enumerate(("a", "long", "way", "home"))]


@pytest.mark.parametrize(
    ("heard", "n_errors"),
    [
        ("a long way home", 0),
        ("the wrong way home", 0),
        ("a long weigh home", 1),
        ("a long", 2),
        ("a long way home again", 1),
    ],
)
def test_only_the_last_second_counts(heard: str, n_errors: int) -> None:
    counts = tail_errors(heard, SAID, "en")
    assert counts.n_errors == n_errors
    assert counts.n_reference == 2


def test_a_text_without_times_counts_nothing() -> None:
    assert tail_errors("a long way", (), "en").n_reference == 0
