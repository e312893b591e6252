"""Hotwords as labels: every way to spell one counts alike, and one that cannot be spelled harms no other."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from sottovoce.ctc import CtcDecoder
from sottovoce.ctc.labels import Labels
from sottovoce.ctc.models import PhraseSpeller
from sottovoce.ctc.options import CtcOptions
from sottovoce.errors import LanguageModelError
from tests.ctc.enumeration import Reading, Tokens, all_texts, best_of, emissions, one_reading

SMALL = Labels.of([*"-abcdefghijklmnopqrstuvwxyz "], 0)
WIDE = CtcOptions(beam_size=3000, n_best=20, times=False)


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("anna", ["anna"]),
        ("Anna B", ["anna b"]),
        ("Jean-Luc", ["jean luc", "jeanluc"]),
        ("O'Brien", ["obrien"]),
        ("O’Brien–Smith", ["obrien smith", "obriensmith"]),
        ("Zoë", ["zoe"]),
        ("U.S. Army", ["us army"]),
    ],
)
def test_small_letters_spell_what_is_said(text: str, spelled: list[str]) -> None:
    assert [SMALL.spell(way) for way in PhraseSpeller(SMALL).spellings(text)] == spelled


def test_signs_that_labels_have_stay() -> None:
    signs = Labels.of(["<b>", *"-abjenluc' "], 0)
    assert [signs.spell(way) for way in PhraseSpeller(signs).spellings("Jean-Luc’")] == ["jean-luc'"]


@pytest.mark.parametrize("text", ["B52", "4"])
def test_numbers_have_to_be_written_out(text: str) -> None:
    with pytest.raises(LanguageModelError, match=rf"got '{text}' at '[54]' \(write numbers in words\)"):
        PhraseSpeller(SMALL).spellings(text)
    digits = Labels.of([*"-b0123456789"], 0)
    assert len(PhraseSpeller(digits).spellings(text)) == 1


def test_every_way_into_pieces_counts_alike() -> None:
    """By enumeration: the sum for a text is the same however its pieces are cut."""
    names = ["-", "▁a", "n", "▁an", "na", "a"]
    log_probs = emissions(5, 6, seed=3)

    def score(tokens: Tokens, _: Reading) -> float:
        said = "".join(names[token] for token in tokens) + "▁"
        return 2.0 * 2 * sum(said.startswith("▁anna▁", at) for at in range(len(said)))

    ways = PhraseSpeller(Labels.of(names, 0)).spellings("anna")
    assert {"".join(names[token] for token in way) for way in ways} == {"▁anna"}
    assert len(ways[0]) == 2
    assert len(ways) == len(set(ways)) == 4
    truth = best_of(all_texts(log_probs, 0), one_reading, score)[:20]
    result = CtcDecoder(names, hotwords={"anna": 2.0}, options=WIDE).decode(log_probs)[0]
    assert [h.score for h in result] == pytest.approx([score for score, _, _ in truth], abs=1e-4)


@pytest.mark.parametrize("separator", [True, False])
def test_phonemes_are_those_of_the_lexicon(separator: bool) -> None:
    """In every pronunciation, whatever the case of the list, and of homophones the one that is meant."""
    names = ["<b>", "R", "EH", "D", *(["|"] if separator else ["IY"])]
    lexicon = [("read", [1, 2, 3]), ("Red", [1, 2, 3]), ("de", [3, 2]), ("de", [3])]
    log_probs = emissions(6, 5, seed=4)
    for word, others in (("read", ("Red", "de")), ("DE", ("read", "Red"))):
        lists = []
        for hotwords in (None, {word: 1.5}):
            decoder = CtcDecoder(names, lexicon=lexicon, hotwords=hotwords, options=WIDE)
            lists.append({(h.text, h.tokens): h.score for h in decoder.decode(log_probs)[0]})
        plain, boosted = lists
        shared = [key for key in plain if key in boosted]
        assert shared
        for text, tokens in shared:
            gained = boosted[text, tokens] - plain[text, tokens]
            n_said = text.split().count(word.lower())
            assert (gained > 0.1) == (n_said > 0)
            assert n_said or set(text.split()) <= set(others)


def test_a_phrase_that_cannot_be_spelled_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "names.txt"
    path.write_text("[names] 3\nab\nCafé 9\nb\n")
    names = ["-", "a", "b", " "]
    log_probs = emissions(6, 4, seed=1)
    given = CtcDecoder(names, hotwords=path, options=WIDE).decode(log_probs)[0]
    assert len(caplog.records) == 1
    assert f"{path}, line 3: hotwords: expected text that the labels can spell, got 'Café 9'" in caplog.text
    plain = CtcDecoder(names, hotwords={"ab": 3.0, "b": 3.0}, options=WIDE).decode(log_probs)[0]
    assert [(h.text, h.score) for h in given] == [(h.text, h.score) for h in plain]


@pytest.mark.parametrize("lexicon", [[("ab", [1, 2])], None])
def test_a_word_outside_the_lexicon_that_cannot_be_spelled_is_a_warning(
    lexicon: list[tuple[str, list[int]]] | None, caplog: pytest.LogCaptureFixture
) -> None:
    decoder = CtcDecoder(["-", "a", "b", " "], lexicon=lexicon, hotwords=["ab", "xyz", "ba"])
    assert [record.getMessage() for record in caplog.records] == [
        "hotwords: expected text that the labels can spell, got 'xyz' at 'x' (space is ' '): left out"
    ]
    if decoder.lexicon is not None:
        assert set(decoder.lexicon.words) == {"ab", "ba"}


def test_spellings_of_a_lexicon_are_read_from_its_tree() -> None:
    spelled = [("a", (1,)), ("b", (1, 2)), ("a", (2, 2)), ("c", (1,))]
    decoder = CtcDecoder(["-", "x", "y"], lexicon=spelled)
    assert decoder.lexicon is not None
    expected = {
        word: {way for name, way in spelled if name == word} for word, _ in itertools.islice(spelled, 3)
    }
    result = decoder.lexicon.spellings_of({"a", "b", "none"})
    assert {word: set(ways) for word, ways in result.items()} == expected


def test_a_list_without_a_word_that_can_be_spelled_is_refused() -> None:
    with pytest.raises(LanguageModelError, match="got 'xyz'"):
        CtcDecoder(["-", "a", "b", " "], hotwords=["xyz", "zz"])
