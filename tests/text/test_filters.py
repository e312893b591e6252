"""Filters of the written text: what they write, live as of the whole, and words that keep their times."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import OptionError
from sottovoce.options.text import TextOptions
from sottovoce.streaming.session import EventEmitter
from sottovoce.text.filters import joined
from sottovoce.types import Final, Partial, Word

pytest.importorskip("opencc", reason="the extra chinese is not installed")
pytest.importorskip("text_to_num", reason="the extra numerals is not installed")
CASES = [
    (TextOptions(chinese="simplified"), "zh", " 頭髮很長, 皇后在後面。", " 头发很长, 皇后在后面。"),
    (TextOptions(chinese="traditional"), "zh", "头发和发展,皇后在后面", "頭髮和發展,皇后在後面"),
    (TextOptions(chinese="simplified"), "ja", "漢字の長い髮", "漢字の長い髮"),
    (
        TextOptions(numerals=True),
        "en",
        " One hundred and five apples, twenty-one pears.",
        " 105 apples, 21 pears.",
    ),
    (
        TextOptions(numerals=True),
        "de",
        " Zweihundertfünf Euro im Jahr zweitausend.",
        " 205 Euro im Jahr 2000.",
    ),
    (TextOptions(numerals=True), "pl", " sto pięć", " sto pięć"),
    (
        TextOptions(redact=("numbers", "emails"), numerals=True),
        "en",
        " Call 555-01 99 or twenty five, or ada.l@example.co.uk, please.",
        " Call [number] or [number], or [email], please.",
    ),
    (
        TextOptions(mask_profanity=("damn", "ass")),
        "en",
        " Damn, the ASS is classy.",
        " D***, the A** is classy.",
    ),
]


def filtered(options: TextOptions, text: str, language: str) -> str:
    for each in options.text_filters:
        text = each.text(text, language)
    return text


@pytest.mark.parametrize(("options", "language", "said", "written"), CASES)
def test_what_is_written(options: TextOptions, language: str, said: str, written: str) -> None:
    assert filtered(options, said, language) == written


def words_of(parts: list[str]) -> list[Word]:
    return [Word(part, float(i), i + 0.9, 1 - i / 64) for i, part in enumerate(parts)]


SPOKEN = {
    "zh": ["头", "发", "很", "长", "皇", "后", "在", "后", "面", ",", "干", "部"],
    "en": [f" {word}" for word in ("one", "hundred", "and", "two.", "damn", "at", "ada@example.org", "7-8")],
}


@pytest.mark.parametrize("language", SPOKEN)
@given(st.data())
def test_live_words_become_what_the_whole_becomes(language: str, data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.sampled_from(SPOKEN[language]), max_size=12))
    sizes = data.draw(st.lists(st.integers(1, 4), max_size=12))
    options = TextOptions(
        chinese="traditional", numerals=True, redact=("numbers", "emails"), mask_profanity=["damn"]
    )
    words, emitter = words_of(parts), EventEmitter(1e9, 1e9, filters=options.text_filters)
    rest = list(words)
    for size in [*sizes, len(words)]:
        emitter.emit_words(rest[:size], language, 0.0)
        del rest[:size]
    emitter.emit_final(language, 0.0)
    events = emitter.take()
    whole = tuple(words)
    for each in options.text_filters:
        whole = each.words(whole, language)
    assert [event.words for event in events if isinstance(event, Final)] == ([whole] if whole else [])
    assert joined(whole) == filtered(options, "".join(parts), language)
    assert all(word in whole for event in events if isinstance(event, Partial) for word in event.words)


def test_words_come_from_a_file_and_others_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("damn\nbloody hell\n")
    (masked,) = TextOptions(mask_profanity=tmp_path / "words.txt").text_filters
    assert masked.text("Bloody hell.") == "B**********."
    with pytest.raises(OptionError, match=r"none\.txt"):
        TextOptions(mask_profanity=str(tmp_path / "none.txt"))
