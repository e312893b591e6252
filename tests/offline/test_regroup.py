"""Segments by rules of one's own: no word is lost or moved, limits hold, what is unclear is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.errors import OptionError
from sottovoce.offline.regroup import parse_rules, regrouped
from sottovoce.types import Segment, Word

TEXT = "Hello there. How are you? Fine, thanks."


def spoken(text: str, start: float = 0.0, number: int = 0, speaker: str | None = None) -> Segment:
    """Words of 0.3 s, with 0.7 s after a sentence."""
    words, now = [], start
    for piece in text.split():
        words.append(Word(f" {piece}", now, now + 0.3, 0.9, speaker=speaker))
        now += 1.0 if piece[-1] in ".?!" else 0.3
    return Segment(number, start, words[-1].end, f" {text}", "en", words=tuple(words), speaker=speaker)


def texts(segments: list[Segment], rules: str) -> list[str]:
    return [segment.text.strip() for segment in regrouped(segments, parse_rules(rules))]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("split pause=0.5", ["Hello there.", "How are you?", "Fine, thanks."]),
        ("split after=?", ["Hello there. How are you?", "Fine, thanks."]),
        ("split after=,?", ["Hello there. How are you?", "Fine,", "thanks."]),
        ("split letters=25", ["Hello there. How are", "you? Fine, thanks."]),
        ("split words=3", ["Hello there. How", "are you? Fine,", "thanks."]),
        ("split seconds=1.2", ["Hello there.", "How are you?", "Fine, thanks."]),
        ("split letters=3", TEXT.split()),
        ("split pause=0.5; merge letters=26", ["Hello there. How are you?", "Fine, thanks."]),
        ("split pause=0.5; merge pause=0.6", ["Hello there.", "How are you?", "Fine, thanks."]),
        ("split pause=9", [TEXT]),
    ],
)
def test_rules(rules: str, expected: list[str]) -> None:
    assert texts([spoken(TEXT)], rules) == expected


@pytest.mark.parametrize(
    ("words", "rules", "expected"),
    [
        (
            "今|日|は|、|「|海|へ|」|。|行|く|。",
            "split words=3",
            ["今日", "は、", "「海", "へ」。", "行く。"],
        ),
        ("今|日|は|、|海|へ|。", "split pause=0.01", ["今", "日", "は、", "海", "へ。"]),
        ("た|。|」|ま", "split after=。", ["た。」", "ま"]),
        ("อ|ร|่|อ|ย|ๆ|ท|ี|่", "split words=2", ["อ", "ร่", "อ", "ยๆ", "ที่"]),
        (" Quoi| ?| Rien| !", "split words=1", ["Quoi ?", "Rien !"]),
        (" स्वामी| स्वामी| अक्सर", "split letters=5", ["स्वामी स्वामी", "अक्सर"]),
    ],
)
def test_no_segment_begins_with_a_closing_mark_or_inside_a_cluster(
    words: str, rules: str, expected: list[str]
) -> None:
    timed = tuple(Word(word, 0.1 * at, 0.1 * at + 0.05, 0.9) for at, word in enumerate(words.split("|")))
    segment = Segment(0, 0.0, timed[-1].end, words.replace("|", ""), "ja", words=timed)
    assert texts([segment], rules) == expected


def test_segments_are_joined_across_windows_and_counted_anew() -> None:
    segments = [spoken("One two", 0.0, 0), spoken("three.", 0.7, 1), spoken("Four", 5.0, 2)]
    result = list(regrouped(segments, parse_rules("merge pause=1")))
    assert [(item.id, item.text, item.start, item.end) for item in result] == [
        (0, " One two three.", 0.0, 1.0),
        (1, " Four", 5.0, 5.3),
    ]


def test_a_translation_is_divided_and_joined_with_its_text() -> None:
    segment = replace(spoken(TEXT), translation="Hallo. Wie geht es dir? Gut, danke.")
    parts = list(regrouped([segment], parse_rules("split pause=0.5")))
    assert [part.translation for part in parts] == ["Hallo. Wie", "geht es dir?", "Gut, danke."]
    (whole,) = regrouped(parts, parse_rules("merge letters=99"))
    assert whole.translation == segment.translation
    assert [part.translation for part in regrouped([spoken(TEXT)], parse_rules("split words=3"))] == [
        None,
        None,
        None,
    ]


def test_speakers_stay_apart_and_signs_may_be_quoted() -> None:
    segments = [spoken("Yes.", 0.0, 0, "A"), spoken("No.", 1.0, 1, "B")]
    assert texts(segments, "merge pause=9") == ["Yes.", "No."]
    assert texts([spoken('"Yes." he said')], "split after=.") == ['"Yes."', "he said"]


def test_what_is_no_rule_is_refused_in_one_line() -> None:
    for rules in ("", ";", "cut pause=1", "split", "split pause=", "split pause=x", "merge after=."):
        with pytest.raises(OptionError, match="regroup: expected split or merge with pause="):
            parse_rules(rules)
    for rules in ("split letters=0", "merge words=-1", "split seconds=nan", "split pause=-1"):
        with pytest.raises(OptionError, match=r"regroup: \w+: expected"):
            parse_rules(rules)
    with pytest.raises(OptionError, match="with word times"):
        texts([Segment(0, 0.0, 1.0, " a", "en")], "split pause=1")


LETTERS = st.text(st.characters(categories=["L", "P"]), min_size=1, max_size=12)
RULES = st.lists(
    st.builds(
        "{} pause={:.2f} letters={} seconds={:.2f}".format,
        st.sampled_from(["split", "merge"]),
        st.floats(0, 2),
        st.integers(1, 50),
        st.floats(0.1, 9),
    ),
    min_size=1,
    max_size=3,
).map("; ".join)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.tuples(LETTERS, st.floats(0, 2), st.floats(0, 1)), max_size=8), max_size=5), RULES
)
def test_no_word_is_lost_or_moved(said: list[list[tuple[str, float, float]]], rules: str) -> None:
    segments, now = [], 0.0
    for number, each in enumerate(said):
        words = []
        for text, pause, length in each:
            words.append(Word(f" {text}", now + pause, now + pause + length, 1.0))
            now += pause + length
        start, end = (words[0].start, words[-1].end) if words else (now, now)
        segments.append(Segment(number, start, end, "".join(w.word for w in words), "en", words=tuple(words)))
    result = list(regrouped(segments, parse_rules(rules)))
    before = [word for segment in segments for word in segment.words or ()]
    assert [word for segment in result for word in segment.words or ()] == before
    assert "".join(segment.text for segment in result) == "".join(segment.text for segment in segments)
    assert [segment.id for segment in result] == list(range(len(result)))
    assert all(first.end <= second.start + 1e-9 for first, second in pairwise(result))
    assert all(segment.start <= segment.end for segment in result)
