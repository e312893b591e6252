"""Every language is found by code, name and alias; what is not a language is refused with a hint."""

from __future__ import annotations

import pytest

from sottovoce.errors import OptionError
from sottovoce.text.languages import LANGUAGES, UNSPACED, find_language, language_codes, language_name


def test_codes_are_unique_and_count_as_in_the_vocabularies() -> None:
    assert len(set(language_codes())) == len(LANGUAGES) == 100
    assert language_codes(99) == language_codes()[:-1]
    assert language_codes()[-1] == "yue"
    assert set(language_codes()) >= UNSPACED


@pytest.mark.parametrize("n", [-1, 101])
def test_no_vocabulary_has_that_many_languages(n: int) -> None:
    with pytest.raises(OptionError, match="0 to 100"):
        language_codes(n)


def test_every_code_name_and_alias_in_any_case_gives_the_code() -> None:
    names = [(name, x.code) for x in LANGUAGES for name in (x.code, x.name, *x.aliases)]
    assert len({name.casefold() for name, _ in names}) == len(names)
    for name, code in names:
        assert find_language(name) == find_language(f" {name.upper()} ") == code
        assert language_name(name).casefold() in {x.name.casefold() for x in LANGUAGES if x.code == code}


@pytest.mark.parametrize(
    ("given", "code"), [("mandarin", "zh"), ("Castilian", "es"), ("Haitian Creole", "ht"), ("nb", "no")]
)
def test_known_aliases(given: str, code: str) -> None:
    assert find_language(given) == code


@pytest.mark.parametrize(
    ("given", "hint"), [("germn", r"'german' \(de\)"), ("en-US", "'en'"), ("pt_BR", "'pt'"), ("qqq", "")]
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
def test_order_names_and_aliases_equal_openai_whisper() -> None:
    theirs = pytest.importorskip("whisper.tokenizer", reason="openai-whisper is not installed")
    assert {x.code: x.name.lower() for x in LANGUAGES} == theirs.LANGUAGES
    assert list(language_codes()) == list(theirs.LANGUAGES)
    for name, code in theirs.TO_LANGUAGE_CODE.items():
        assert find_language(name) == code
