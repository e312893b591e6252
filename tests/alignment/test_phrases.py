"""Where a phrase is said."""

from __future__ import annotations

import pytest

from sottovoce.alignment.phrases import find_phrase, unlikeness
from sottovoce.errors import OptionError
from sottovoce.types import Segment, Transcript, Word


def transcript(text: str, language: str = "en", *, with_words: bool = True) -> Transcript:
    words = tuple(Word(" " + word, float(i), i + 0.8, 0.9, language) for i, word in enumerate(text.split()))
    segment = Segment(0, 0.0, float(len(words)), " " + text, language, words=words if with_words else None)
    return Transcript((segment,), language, float(len(words)), "model")


def test_every_place_is_found_with_its_times() -> None:
    matches = find_phrase(transcript("The cat sat. A dog, the CAT, sat down."), "the cat")
    assert [(match.start, match.end, match.text) for match in matches] == [
        (0.0, 1.8, "The cat"),
        (5.0, 6.8, "the CAT,"),
    ]
    assert all(match.score == 1.0 for match in matches)


def test_a_misheard_word_is_found_and_scored_by_its_letters() -> None:
    (match,) = find_phrase(transcript("we met miss Haverford at the station"), "Haversford at the")
    assert match.text == "Haverford at the"
    assert 0.85 < match.score < 1


@pytest.mark.parametrize("phrase", ["grand mother", "grandmother"])
@pytest.mark.parametrize("said", ["my grand mother sang", "my grandmother sang"])
def test_words_written_as_one_or_as_two(phrase: str, said: str) -> None:
    (match,) = find_phrase(transcript(said), phrase)
    assert match.text.replace(" ", "") == "grandmother"
    assert match.score > 0.9


def test_a_phrase_that_was_not_said_has_no_match() -> None:
    assert find_phrase(transcript("nothing of the kind was said"), "purple elephants") == []
    assert find_phrase(Transcript((), "", 0.0, ""), "anything") == []


def test_languages_without_spaces_are_searched_by_letters() -> None:
    words = (Word("今天天气", 0.0, 2.0, 0.9, "zh"), Word("很好", 2.0, 3.0, 0.9, "zh"))
    matches = find_phrase(
        Transcript((Segment(0, 0.0, 3.0, "今天天气很好", "zh", words=words),), "zh", 3.0, ""), "天气很"
    )
    assert [(match.text, match.start, match.end) for match in matches] == [("天气很", 1.0, 2.5)]


def test_subtitles_without_a_language_are_searched_by_letters_too() -> None:
    (match,) = find_phrase(transcript("今天天气很好", "", with_words=False), "天气很")
    assert match.text == "天气很"
    assert 0.0 < match.start < match.end < 1.0
    (match,) = find_phrase(transcript("das neue 今天天气 von heute", "de"), "neue 今天")
    assert match.score == 1.0


def test_without_word_times_the_segment_is_shared_out() -> None:
    (match,) = find_phrase(transcript("one two three four", with_words=False), "three")
    assert 1.0 < match.start < match.end < 3.5


@pytest.mark.parametrize(("phrase", "score"), [("", 0.7), ("?!", 0.7), ("word", 0.0), ("word", 1.5)])
def test_bad_phrases_and_scores_are_refused(phrase: str, score: float) -> None:
    with pytest.raises(OptionError, match=r"expected"):
        find_phrase(transcript("a word"), phrase, least_score=score)


def test_likeness_counts_letters() -> None:
    assert unlikeness("night", "night") == 0
    assert unlikeness("night", "nigth") == 2 / 5
    assert unlikeness("", "word") == 1
    assert unlikeness("abc", "xyz") == 1
