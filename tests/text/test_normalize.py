"""Normalised texts differ only where something else was said."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sottovoce.errors import MissingExtraError, OptionError
from sottovoce.text import normalize
from sottovoce.text.languages import language_codes
from sottovoce.text.normalize import MARKED, join_spaces, normalizer_for, plain


@given(st.text())
@example("don’t stop ẹ́kọ́ สวัสดี مرحبًا")
def test_plain_keeps_letters_digits_and_marks_and_single_spaces(text: str) -> None:
    folded = plain(text)
    assert folded == plain(folded) == join_spaces(folded)
    assert all(c == " " or unicodedata.category(c)[0] in "LNM" for c in folded)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't, DON’T; donʼt!", "dont dont dont"),
        ("'quoted' well-known", "quoted well known"),
        ("STRASSE Straße", "strasse strasse"),
        ("Ａ１ ﬁne", "a1 fine"),
        ("हिन्दी में।", "हिन्दी में"),
        ("你好,世界。", "你好 世界"),
        ("3.5 % «ça»", "3 5 ça"),
    ],
)
def test_plain_examples(text: str, expected: str) -> None:
    assert plain(text) == expected


def test_whispers_normalisers_by_language() -> None:
    assert normalizer_for("English")("Mr. Brown doesn't like colour, $20!") == (
        "mister brown does not like color $20"
    )
    assert normalizer_for("de")("Größe: Äpfel (lacht).") == "größe äpfel"
    assert normalizer_for("hi")("हिन्दी में।") == "हिन्दी में"
    assert normalizer_for(None)("Don't") == "dont"
    assert normalizer_for("en", "none")("  Don't\n stop! ") == "Don't stop!"
    assert set(language_codes()) > MARKED


def test_unknown_names_are_refused() -> None:
    with pytest.raises(OptionError, match="expected 'whisper', 'plain' or 'none', got 'loud'"):
        normalizer_for("en", "loud")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="language 'klingon'"):
        normalizer_for("klingon")


def test_without_the_extra_only_whispers_normaliser_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("english", "basic"):
        monkeypatch.setitem(sys.modules, f"whisper_normalizer.{name}", None)
    normalize._whisper.cache_clear()
    for language in ("en", "de"):
        with pytest.raises(MissingExtraError, match=r"pip install .*\[eval\]"):
            normalizer_for(language)
        assert normalizer_for(language, "plain")("A!") == "a"
    assert normalizer_for("hi")("A!") == "a"
