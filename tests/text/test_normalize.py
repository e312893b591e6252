"""Normalised texts, pairs of equal words, and names of languages."""

from __future__ import annotations

import itertools
import sys
import unicodedata
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sottovoce.errors import MissingExtraError, OptionError
from sottovoce.evaluation.manifest import read_manifest
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.server.apis.openai_files import languages_of
from sottovoce.server.errors import ApiError
from sottovoce.server.fields import read_code, read_languages
from sottovoce.streaming.options import LiveOptions
from sottovoce.text import normalize
from sottovoce.text.languages import (
    LANGUAGES,
    UNSPACED,
    LanguageChoice,
    find_language,
    language_code,
    language_codes,
    language_name,
)
from sottovoce.text.normalize import MARKED, join_spaces, normalizer_for, plain
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.text.word_edits import equal_words
from sottovoce.translation.chat import ChatServer, ChatTranslator
from tests.conftest import Reference


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


WORDS = st.lists(st.sampled_from("abcd"), max_size=12)


def longest_common(first: list[str], second: list[str]) -> int:
    rows = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, word in enumerate(first):
        for j, other in enumerate(second):
            rows[i + 1][j + 1] = rows[i][j] + 1 if word == other else max(rows[i][j + 1], rows[i + 1][j])
    return rows[-1][-1]


@given(WORDS, WORDS)
def test_pairs_are_equal_words_in_order_and_as_many_as_can_be(first: list[str], second: list[str]) -> None:
    pairs = equal_words(first, second)
    matches = [(i, j) for i, j in enumerate(pairs) if j is not None]
    assert len(pairs) == len(first)
    assert all(first[i] == second[j] for i, j in matches)
    assert all(a[1] < b[1] for a, b in itertools.pairwise(matches))
    assert len(matches) == longest_common(first, second)


def test_a_vocabulary_has_the_first_languages_of_the_list() -> None:
    assert language_codes(99) == language_codes()[:-1]
    assert set(language_codes()) >= UNSPACED
    for n in (-1, 101):
        with pytest.raises(OptionError, match="0 to 100"):
            language_codes(n)


def test_every_code_name_and_alias_in_any_case_gives_the_code() -> None:
    names = [(name, x.code) for x in LANGUAGES for name in (x.code, x.name, *x.aliases)]
    assert len({name.casefold() for name, _ in names}) == len(names)
    for name, code in names:
        assert find_language(name) == find_language(f" {name.upper()} ") == language_code(name) == code
        assert language_name(name).casefold() in {x.name.casefold() for x in LANGUAGES if x.code == code}


CODES = {
    "mandarin": "zh", "Castilian": "es", "Haitian Creole": "ht", "nb": "no", "pt-BR": "pt",
    "en-US": "en", "eng": "en", "PT": "pt", "zh-Hans": "zh", "zh_Hant_TW": "zh", "zh-yue": "yue",
    "ger": "de", "deu": "de", "fre": "fr", "fra": "fr", "chi": "zh", "zho": "zh", "cmn-Hans-CN": "zh",
    "per": "fa", "de_AT.UTF-8": "de", "es-419": "es", "nb-NO": "no", "jav": "jw", "jv-ID": "jw",
    "iw-IL": "he", "fil-PH": "tl", "arb": "ar", "yue-HK": "yue", "haw": "haw",
}  # fmt: skip
"""Names, ISO 639-1, both kinds of 639-2, tags of BCP 47 and locales, by Whisper's code."""


@pytest.mark.parametrize("given", CODES)
def test_known_codes_tags_and_aliases(given: str) -> None:
    assert find_language(given) == find_language(given.upper()) == CODES[given]


def test_languages_are_taken_in_any_standard_and_kept_as_whispers_codes(tmp_path: Path) -> None:
    decoding = DecodingOptions(language="pt-BR", allowed_languages=("eng", "zh-Hans"))
    assert (decoding.language, decoding.allowed_languages) == ("pt", ("en", "zh"))
    assert TranscribeOptions(language_prior={"deu": -1.0}).language_prior == {"de": -1.0}
    assert LiveOptions(languages=("eng", "pt_BR")).languages == ("en", "pt")
    assert LanguageChoice.parse("pt-BR,pt-PT,eng", language_codes()) == LanguageChoice(None, ("pt", "en"))
    assert Tokenizer.for_model(51865, language="por").language == "pt"
    assert ChatTranslator(cast(ChatServer, None), "pt-BR").target == "pt"
    manifest = tmp_path / "all.jsonl"
    spans = '[{"start": 0, "end": 1, "language": "deu"}, {"start": 1, "end": 2, "language": "x-klingon"}]'
    manifest.write_text(
        f'{{"file": "a.wav", "language": "pt-BR"}}\n{{"file": "b.wav", "language": {spans}}}\n'
    )
    first, second = read_manifest(manifest)
    assert first.languages == ("pt",)
    assert second.languages == ("de", "x-klingon")  # one that Whisper does not have


def test_parameters_of_servers_take_them_too() -> None:
    assert read_code("language", "pt-BR") == "pt"
    assert read_languages("languages", ["eng", "en-US", "auto"]) == ("en",)
    assert languages_of({"language": "por", "languages": None}) == ("pt",)
    assert languages_of({"language": None, "languages": ("por", "pt-BR", "ger")}) == ("pt", "de")
    with pytest.raises(ApiError, match="language 'klingon'"):
        read_code("language", "klingon")


@pytest.mark.parametrize(
    ("given", "hint"),
    [("germn", r"'german' \(de\)"), ("en!", "'en'"), ("qqq-BR", ""), ("English US", "'english'")],
)
def test_an_unknown_language_names_close_ones(given: str, hint: str) -> None:
    with pytest.raises(OptionError, match=f"language '{given}': expected.*{hint}"):
        find_language(given)


def test_a_language_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(OptionError, match="99 languages without it"):
        find_language("Cantonese", language_codes(99))
    with pytest.raises(OptionError, match="this model knows en, de"):
        find_language("fr", ("en", "de"))


@pytest.mark.reference
def test_order_names_and_aliases_equal_openai_whisper(reference: Reference) -> None:
    def compute() -> list[Any]:
        theirs = pytest.importorskip("whisper.tokenizer", reason="openai-whisper is not installed")
        return [theirs.LANGUAGES, theirs.TO_LANGUAGE_CODE]

    names, codes = reference(compute)
    assert {x.code: x.name.lower() for x in LANGUAGES} == names
    assert list(language_codes()) == list(names)
    for name, code in codes.items():
        assert find_language(name) == code
