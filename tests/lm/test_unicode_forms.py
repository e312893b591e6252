"""Words in any Unicode form are one word, and labels are spelled in the form that they have."""

from __future__ import annotations

import logging
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from sottovoce.ctc.decoder import CtcDecoder
from sottovoce.ctc.options import CtcFusionOptions
from sottovoce.decoding.decode import context_tokens
from sottovoce.evaluation.scores import ScoredUtterance, count_errors
from sottovoce.lm.fusion import text_fusion
from sottovoce.lm.grammar import Grammar
from sottovoce.lm.lexicon import Lexicon, read_lexicon
from sottovoce.lm.ngram import NgramModel, load_ngram
from sottovoce.options.decoding import DecodingOptions
from sottovoce.text.normalize import forms_of, ids_by_form, letter_spellings
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.translation.chat import Glossary

pytestmark = pytest.mark.usefixtures("kernels")
CAFE, CAFE_APART = "caf\u00e9", "cafe\u0301"
BINARIES = Path(__file__).parent / "binaries"
LABELS = ["-", "|", "c", "a", "f", "e", "\u00e9"]
ARPA = "\\data\\\nngram 1=5\nngram 2=1\n\n\\1-grams:\n-3\t<unk>\n-99\t<s>\t0\n-1\t</s>\n"
ARPA += "-0.5\t{0}\t0\n-1\tcafe\t0\n\n"
ARPA += "\\2-grams:\n-0.1\t<s> {0}\n\n\\end\\\n"


def said(labels: list[str], text: list[str], *rivals: tuple[str, str]) -> np.ndarray:
    """Log-probabilities (T, V) of labels, a blank after each; of rivals the second is less likely."""
    likely = np.full((2 * len(text), len(labels)), 0.01, np.float32)
    for i, label in enumerate(text):
        likely[2 * i, labels.index(label)] = 1.0
        likely[2 * i + 1, 0] = 1.0
        for first, second in rivals:
            if label == first:
                likely[2 * i, labels.index(second)] = 0.7
    return np.log(likely / likely.sum(axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("word", "labels", "spelled"),
    [
        (CAFE_APART, ["c", "a", "f", "\u00e9"], ["c", "a", "f", "\u00e9"]),
        (CAFE, ["c", "a", "f", "e", "\u0301"], ["c", "a", "f", "e", "\u0301"]),
        (CAFE, ["c", "a", "f", "e\u0301"], ["c", "a", "f", "e\u0301"]),  # a label of two code points
        ("\u1ead", ["\u00e2", "\u0323"], ["\u00e2", "\u0323"]),  # Vietnamese, as Windows writes it
        ("\u00e2\u0323", ["\u1ead"], ["\u1ead"]),
        ("\ud55c", ["\u1112", "\u1161", "\u11ab"], ["\u1112", "\u1161", "\u11ab"]),  # Hangul
        ("\u1112\u1161\u11ab", ["\ud55c"], ["\ud55c"]),
        ("\u0915\u093c\u093f", ["\u0958", "\u093f"], ["\u0958", "\u093f"]),  # Hindi: NFC takes this one apart
        ("\u0915\u094d\u0937", ["\u0915", "\u094d", "\u0937"], ["\u0915", "\u094d", "\u0937"]),
        ("\u0622", ["\u0627", "\u0653"], ["\u0627", "\u0653"]),  # Arabic: alef with madda
    ],
)
def test_words_are_spelled_in_the_form_of_the_labels(
    word: str, labels: list[str], spelled: list[str]
) -> None:
    assert letter_spellings(word, ids_by_form(labels))[0] == tuple(map(labels.index, spelled))


def test_marks_are_spelled_in_each_of_their_orders() -> None:
    """People type shadda before fatha, NFC has it behind: a model was trained on the one or the other."""
    beh, shadda, fatha = "\u0628", "\u0651", "\u064e"
    forms = forms_of(beh + shadda + fatha, {beh, shadda, fatha})
    assert forms == [beh + fatha + shadda, beh + shadda + fatha]


@pytest.mark.parametrize("word", ["\ufb01n", "\uff21", "x\u00b2", "\u212b\u00aa"])
def test_compatible_characters_stay_others(word: str) -> None:
    """A ligature, a wide letter, a power: letters of their own, which NFKC would change."""
    plain = unicodedata.normalize("NFKC", word)
    assert letter_spellings(word, ids_by_form([*dict.fromkeys(plain)])) == []


@pytest.mark.parametrize("form", [CAFE, CAFE_APART])
def test_lexicons_hotwords_and_n_grams_of_any_form(form: str, tmp_path: Path) -> None:
    log_probs = said(LABELS, list("cafe"), ("e", "\u00e9"))
    assert CtcDecoder(LABELS).decode(log_probs)[0][0].text == "cafe"
    words = [(form, [2, 3, 4, 6]), ("cafe", [2, 3, 4, 5])]
    for hotwords in ([form], {form: 3.0}):
        for lexicon in (None, words, Lexicon(words, len(LABELS), separator=1)):
            best = CtcDecoder(LABELS, hotwords=hotwords, lexicon=lexicon).decode(log_probs)[0][0]
            assert best.text == CAFE
            assert best.lm_score > 1.0
    scores = set()
    for n_grams in (CAFE, CAFE_APART):
        path = tmp_path / "words.arpa"
        path.write_text(ARPA.format(n_grams), encoding="utf-8")
        for lexicon in (None, words):
            best = CtcDecoder(LABELS, lm=path, lexicon=lexicon).decode(log_probs)[0][0]
            assert best.text == CAFE
            scores.add(round(best.lm_score, 4))
        (tmp_path / "words.txt").write_text(f"{form} {' '.join(form)}\ncafe c a f e\n", encoding="utf-8")
        best = CtcDecoder(LABELS, lm=path, lexicon=tmp_path / "words.txt").decode(log_probs)[0][0]
        scores.add(round(best.lm_score, 4))
    assert len(scores) == 1


def test_labels_that_are_marks_are_spelled_and_written_as_they_are() -> None:
    labels = ["-", "|", "c", "a", "f", "e", "\u0301"]
    log_probs = said(labels, [*"cafe", "\u0301"], ("\u0301", "-"))
    for hotword in (CAFE, CAFE_APART):
        best = CtcDecoder(labels, hotwords=[hotword]).decode(log_probs)[0][0]
        assert best.text == CAFE_APART
        assert best.lm_score > 1.0
    assert CtcDecoder(labels, lexicon=[(CAFE_APART, [2, 3, 4, 5, 6])]).decode(log_probs)[0][0].text == CAFE


def test_word_pieces_in_two_code_points() -> None:
    pieces = ["-", "\u2581ca", "fe\u0301", "\u2581", "f", "e"]
    best = CtcDecoder(pieces, hotwords=[CAFE]).decode(said(pieces, ["\u2581ca", "fe\u0301"]))[0][0]
    assert best.lm_score > 1.0


@pytest.mark.parametrize("form", [CAFE, CAFE_APART])
def test_models_are_asked_for_the_form_that_they_hold(form: str, tmp_path: Path) -> None:
    path = tmp_path / "words.arpa"
    path.write_text(ARPA.format(form), encoding="utf-8")
    model = NgramModel.load(path)
    for word in (CAFE, CAFE_APART):
        assert word in model
        score = float(model.score(model.start(1), np.array(model.ids([word])))[0][0])
        assert score == pytest.approx(-0.1 * 2.302585, abs=1e-5)
    assert "caf\u00e8" not in model


@pytest.mark.parametrize("kind", ["probing", "trie"])
def test_binaries_of_text_in_two_code_points(kind: str) -> None:
    """The model is asked for its own form, also half composed ones."""
    if kind == "probing":
        pytest.importorskip(
            "sottovoce_kernels.kenlm", reason="the native kernels are not installed, or too old"
        )
    model = load_ngram(BINARIES / f"apart-{kind}.bin")
    assert model is not None
    reference = NgramModel.load(BINARIES / "apart.arpa")
    for words in (["the", CAFE], ["the", CAFE_APART], ["\u1eadm"], ["a\u0323\u0302m"], ["caf\u00e8"]):
        scores = []
        for each in (model, reference):
            states, total = each.start(1), 0.0
            for token in each.ids(words):
                gained, states = each.score(states, np.array([token]))
                total += float(gained[0])
            scores.append(total)
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)
        assert (scores[0] > -3 * 2.3) == (words != ["caf\u00e8"])
    log_probs = said(LABELS, list("cafe"), ("e", "\u00e9"))
    best = CtcDecoder(LABELS, lm=BINARIES / f"apart-{kind}.bin").decode(log_probs)[0][0]
    assert best.text == CAFE


def test_symbols_of_an_offset_are_no_letters(tmp_path: Path) -> None:
    """A symbol that the n-gram lacks is unknown, not the character that is equivalent to it."""
    path = tmp_path / "labels.arpa"
    words = "-1\t\u0300\n-0.5\t\u0341\n-3\t<unk>\n-1\t</s>\n"
    path.write_text("\\data\\\nngram 1=4\n\n\\1-grams:\n" + words + "\n\\end\\\n", encoding="utf-8")
    labels = ["-", "a", "b"]
    fusion = CtcFusionOptions(token_offset=0x33F, lm_weight=0.1)  # U+0340, equivalent to U+0300, and U+0341
    decoder = CtcDecoder(labels, lm=path, fusion=fusion)
    for label, log10 in (("a", -3.0), ("b", -0.5)):
        best = decoder.decode(said(labels, [label]))[0][0]
        assert best.text == label
        assert best.lm_score == pytest.approx((log10 - 1) * 0.2302585, abs=1e-4)


def test_words_of_a_list_that_cannot_be_spelled_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "words.txt"
    path.write_text("cafe\n2nd\nface\n" + "".join(f"x{i}\n" for i in range(9)), encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert [word for word, _ in read_lexicon(path, LABELS)] == ["cafe", "face"]
    (record,) = caplog.records
    assert "10 words left out" in record.getMessage()
    assert "'2nd' (line 2, no label '2'), 'x0' (line 4, no label 'x')" in record.getMessage()
    assert "x8" not in record.getMessage()
    caplog.clear()
    path.write_text("cafe c a f e\nface\nfez f e z\n", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert read_lexicon(path, LABELS) == [("cafe", (2, 3, 4, 5))]
    assert "'face' (line 2, no spelling), 'fez' (line 3, no label 'z')" in caplog.text


def test_whispers_hotwords_prompts_and_grammars_are_in_the_form_that_it_writes() -> None:
    tokenizer = Tokenizer.for_model(51865, language="fr")
    tokens = np.array(tokenizer.encode(" " + CAFE))
    scores = []
    for hotword in (CAFE, CAFE_APART):
        fusion = text_fusion(tokenizer, hotwords=[hotword])
        states, total = fusion.start(1), 0.0
        for token in tokens:
            gained, states = fusion.score(states, token[None])
            total += float(gained[0])
        scores.append(total)
    assert scores[0] == scores[1] > 0.0
    given = [DecodingOptions(prompt=form, hotwords=form) for form in (CAFE, CAFE_APART)]
    assert context_tokens(given[0], tokenizer, 448) == context_tokens(given[1], tokenizer, 448)
    assert Grammar(f'root ::= "{CAFE_APART}"').text == Grammar(f'root ::= "{CAFE}"').text


def test_scores_and_glossaries_do_not_tell_forms_apart() -> None:
    assert count_errors(ScoredUtterance(CAFE, CAFE_APART, "fr"), "none").word.n_errors == 0
    assert Glossary(((CAFE_APART, "bar"),)).of(f"un {CAFE.upper()}") == [(CAFE_APART, "bar")]
