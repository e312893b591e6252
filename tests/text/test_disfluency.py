"""Fillers and repetitions by rule: what goes in each language, and that nothing else does."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.errors import OptionError
from sottovoce.text.disfluency import DISFLUENCIES, PIECE, check_cleanable, clean_pieces

EXAMPLES = {
    "en": (
        ("So, um, I think", "So, I think"),
        ("I um, think", "I think"),
        ("the, uh, house", "the house"),
        ("Um, so we go.", "So we go."),
        ("and er, uhm, hmm, mmm goes on", "and goes on"),
        ("I I I think", "I think"),
        ("I, I, um, I think", "I think"),
        ("I-I think", "I think"),
        ("The the thing", "The thing"),
        ("we are we are going", "we are going"),
        ("I tend, I tend to agree", "I tend to agree"),
        ("it was a it was a cat", "it was a cat"),
        ("in the, in the house", "in the house"),
        ("the house, the house is", "the house is"),
        ("I want to, to go", "I want to go"),
        ("thi- thinking of th- this", "thinking of this"),
        ("We go, um. Then", "We go. Then"),
        ("We go. Um. Then", "We go. Then"),
        ("It's, um... good", "It's good"),
        ("It is, um...", "It is..."),
        ("Um... So I go", "So I go"),
        ("So we, um", "So we"),
    ),
    "de": (
        ("Ähm, also ich ich gehe, äh, um vier", "Also ich gehe, um vier"),
        ("und, öh, und, ähm, hm, dann", "und dann"),
        ("Aber aber wenn, wenn er", "Aber wenn er"),
        ("das ist das ist gut", "das ist gut"),
        ("den neu- neuen Plan", "den neuen Plan"),
    ),
    "es": (
        ("Eh, bueno, el, el lunes", "Bueno, el lunes"),
        ("y, em, y, mmm, vamos", "y vamos"),
        ("lo que lo que tienen", "lo que tienen"),
    ),
    "fr": (
        ("Euh, je je pense, heu, que", "Je pense, que"),
        ("on a, on a parlé", "on a parlé"),
        ("et, hmm, et puis", "et puis"),
    ),
    "it": (("Ehm, io io penso, uhm, che", "Io penso, che"), ("e, mmm, e poi", "e poi")),
    "nl": (("Uh, ik ik denk, ehm, dat", "Ik denk, dat"), ("het is het is goed", "het is goed")),
    "pl": (("Yyy, ja ja myślę, eee, że", "Ja myślę, że"), ("w, w domu", "w domu")),
    "pt": (("Eh, eu eu acho, hmm, um carro", "Eu acho, um carro"), ("de, de casa", "de casa")),
    "ru": (("Эм, я я думаю, ммм, что", "Я думаю, что"), ("в, в доме", "в доме")),
}
BY_RIGHT = {
    "en": (
        *("very very good", "I know that that is", "he had had enough", "bye bye then", "five five two"),
        *("No, no, no.", "I know, I know.", "again and again and again until", "on and on and on it goes"),
        *("the one I listened to to learn", "I told you you were", "blah blah", "555 555 1", "I, II, III"),
        *(
            "Ah, indeed.",
            "Uh-huh.",
            "Mm-hmm, yes",
            "the ER is full",
            "UM. UH",
            "to err is human",
            "5 mm wide",
        ),
        *('I said, "Um, no."', "Um?", "Hmm!", "like, you know, well", "West- and south", "re-read t-test"),
        *("Confusing the audience the audience is", "the question of the question of form"),
        *("in the The Hague", "and so on and so on.", "long- and short-term", "I? I think"),
    ),
    "de": (
        *(
            "Der Hof, der der Burg gehört",
            "Pfosten, die die Gruppe teilen",
            "Nein, nein, danke",
            "sehr sehr gut",
        ),
        *("um vier", "Er will er", "eh schon", "West- und Südseite", "wenn sie sie sieht", "die EM im Juni"),
    ),
    "es": ("¿Eh?", "más vale que que venga", "no, no sé", "muy muy bien", "este este", "pues, bueno"),
    "fr": ("nous nous levons", "vous vous trompez", "eh bien", "un un deux", "faire faire", "très très bien"),
    "it": ("eh sì", "piano piano", "un poco", "da da", "mah, boh"),
    "nl": ("dat dat kan", "het het", "om om te", "hè", "een een twee"),
    "pl": ("to to jest", "bardzo bardzo", "nie, nie wiem", "e", "y"),
    "pt": ("um carro em casa", "não, não sei", "que que", "é"),
    "ru": ("да, да, да", "очень очень", "5 мм", "Э. Т. А. Гофман", "что, что"),
}


def clean_text(text: str, language: str) -> str:
    return "".join(clean_pieces(PIECE.findall(text), DISFLUENCIES[language]).values())


@pytest.mark.parametrize(
    ("language", "text", "clean"),
    [(language, *pair) for language, pairs in EXAMPLES.items() for pair in pairs],
)
def test_disfluencies_are_removed(language: str, text: str, clean: str) -> None:
    assert clean_text(text, language) == clean
    assert clean_text(f" {text}", language) == f" {clean}"


@pytest.mark.parametrize(
    ("language", "text"), [(language, text) for language, texts in BY_RIGHT.items() for text in texts]
)
def test_other_words_stay(language: str, text: str) -> None:
    assert clean_text(text, language) == text


def test_every_language_has_examples_of_both() -> None:
    assert set(EXAMPLES) == set(BY_RIGHT) == set(DISFLUENCIES)


def test_nothing_but_fillers_is_nothing() -> None:
    assert clean_text(" Um, uh...", "en") == ""


def test_a_language_without_rules_is_refused() -> None:
    with pytest.raises(OptionError, match=r"clean: expected a language whose rules were checked .*'Finnish'"):
        check_cleanable("Finnish")


@st.composite
def utterances(draw: st.DrawFn, language: str) -> str:
    """Words of the rules and others, with any signs at both ends."""
    rules = DISFLUENCIES[language]
    listed = [*sorted(rules.restarts), *sorted(rules.openers)]
    fillers = [pair[0].split()[0].strip(",") for pair in EXAMPLES[language][:2]]
    word = st.sampled_from(
        [*listed, *fillers, "um", "uh", "hmm", "five", "house", "thin", "thinking", "I", "-"]
    )
    sign = st.sampled_from(["", "", "", ",", ".", "...", "-", "?", "…", '"'])
    cased = st.builds(lambda text, is_capital: text.capitalize() if is_capital else text, word, st.booleans())
    pieces = draw(st.lists(st.tuples(sign, cased, sign), max_size=12))
    return "".join(f" {lead if lead == chr(34) else ''}{text}{tail}" for lead, text, tail in pieces)


@given(st.data(), st.sampled_from(sorted(DISFLUENCIES)))
@settings(max_examples=120)
def test_cleaning_takes_words_out_and_adds_none(data: st.DataObject, language: str) -> None:
    text = data.draw(utterances(language))
    clean = clean_text(text, language)
    assert clean_text(clean, language) == clean
    left = iter(re.findall(r"\w+", text.casefold()))
    assert all(word in left for word in re.findall(r"\w+", clean.casefold())), "words in their order"
