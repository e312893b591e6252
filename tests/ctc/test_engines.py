"""What the search does without kernels, with threads, very many labels, and pieces."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.emissions import log_softmax
from sottovoce.ctc.options import CtcOptions
from sottovoce.ctc.search import PrefixScorer, PrefixSearch
from sottovoce.errors import OptionError
from tests.ctc.enumeration import RandomBigram, emissions
from tests.ctc.lists import differences

LABELS = ["-", *"abcde", "|"]
WORDS = ("ab", "a", "bad", "cab", "dd", "abba", "be", "decade", "ace")


def random_arpa() -> str:
    """A trigram model of random scores, so that no two hypotheses score the same."""
    chooser = random.Random(0)
    known = ["<s>", *WORDS, "see", "bee"]
    pairs = [(a, b) for a in known for b in [*known[1:], "</s>"] if chooser.random() < 0.6]
    triples = [(a, b, c) for a, b in pairs for x, c in pairs if x == b and chooser.random() < 0.3]
    sections = [[(word,) for word in [*known, "<unk>", "</s>"]], pairs, triples]
    lines = ["\\data\\", *(f"ngram {n}={len(rows)}" for n, rows in enumerate(sections, start=1))]
    for n, rows in enumerate(sections, start=1):
        lines += ["", f"\\{n}-grams:"]
        for ngram in rows:
            backoff = f"\t{chooser.uniform(-0.6, 0.2):.4f}" if n < 3 else ""
            lines.append(f"{chooser.uniform(-2.5, -0.2):.4f}\t{' '.join(ngram)}{backoff}")
    return "\n".join([*lines, "", "\\end\\", ""])


@pytest.fixture
def arpa(tmp_path: Path) -> Path:
    path = tmp_path / "words.arpa"
    path.write_text(random_arpa())
    return path


def uncertain(n_frames: int, seed: int) -> np.ndarray:
    """Emissions (T, V) of words and separators, half of the frames blank, with doubt everywhere."""
    chooser = random.Random(seed)
    logits = emissions(n_frames, len(LABELS), seed) * 2
    text = "|".join(chooser.choices(WORDS, k=n_frames))
    for frame in range(n_frames):
        logits[frame, LABELS.index(text[frame // 2]) if frame % 2 else 0] += 4
    return log_softmax(logits)


def rows() -> tuple[np.ndarray, np.ndarray]:
    return np.stack([uncertain(60, seed) for seed in range(6)]), np.array([60, 41, 0, 60, 13, 59])


FUSIONS = {
    "no language model": {},
    "word n-gram": {"lm": True},
    "word n-gram without look-ahead": {"lm": True, "fusion": CtcFusionOptions(look_ahead=False)},
    "hotwords": {"hotwords": {"bad": 3.0, "ab bad": 4.0, "e": -2.0}},
    "word score": {"fusion": CtcFusionOptions(word_score=0.8)},
    "lexicon": {"lexicon": True, "fusion": CtcFusionOptions(word_score=-0.37)},
    "lexicon, n-gram and hotwords": {"lm": True, "lexicon": True, "hotwords": {"cab": 5.0}},
    "lexicon with unknown words": {"lm": True, "lexicon": True, "unknown_words": True},
}


def spellings(*, homophones: bool) -> list[tuple[str, list[int]]]:
    """Words, with two that are spelled as others are where a language model tells them apart: hypotheses of
    equal score come in any order."""
    spelled = [(word, [LABELS.index(letter) for letter in word]) for word in WORDS]
    return [*spelled, ("see", spelled[1][1]), ("bee", spelled[6][1])] if homophones else spelled


@pytest.mark.parametrize(
    ("name", "has_separator"),
    [
        *((name, True) for name in FUSIONS),
        # Without a separator words need a lexicon, and readings of equal score come in any order.
        *((name, False) for name, given in FUSIONS.items() if {"lm", "lexicon"} <= given.keys()),
    ],
)
@pytest.mark.parametrize(
    "options",
    [{}, {"beam_threshold": 6.0}, {"top_tokens": 3, "acoustic_scale": 0.7}],
    ids=lambda options: ", ".join(options) or "plain",
)
def test_narrow_beams_equal_those_of_another_search(
    name: str, options: dict[str, float], has_separator: bool, arpa: Path
) -> None:
    """`beams.json` has the two best of a search in PyTorch's tensors (commit 397346d2)."""
    given, labels = dict(FUSIONS[name]), LABELS if has_separator else [*LABELS[:-1], "f"]
    given["lm"] = arpa if given.get("lm") else None
    given["lexicon"] = (
        spellings(homophones=has_separator and given["lm"] is not None) if given.get("lexicon") else None
    )
    chosen = CtcOptions(**options)  # type: ignore[arg-type]
    decoder = CtcDecoder(labels, 0, beam_size=12, n_best=2, options=chosen, **given)
    every = json.loads(Path(__file__).with_name("beams.json").read_text())
    expected = every[", ".join([name, *options, *([] if has_separator else ["no separator"])])]
    log_probs, lengths = rows()
    for ours, theirs in zip(decoder.decode(log_probs[:5], lengths[:5]), expected, strict=True):
        assert [h.text for h in ours] == [text for text, _ in theirs]
        assert [h.score for h in ours] == pytest.approx([score for _, score in theirs], abs=2e-4)


@pytest.mark.parametrize("n_threads", [1, 4])
def test_threads_share_the_batch(n_threads: int, arpa: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_probs, lengths = rows()
    decoder = CtcDecoder(LABELS, 0, lm=arpa, n_best=4)
    monkeypatch.setattr("sottovoce.ctc.emissions._LEAST_FRAMES", 0)
    monkeypatch.setattr("sottovoce.ctc.emissions.n_threads", lambda: n_threads)
    result = decoder.decode(log_probs, lengths)
    alone = [decoder.decode(row[:n])[0] for row, n in zip(log_probs, lengths, strict=True)]
    assert differences(result, alone) == []


def test_without_the_kernels_there_is_no_search(arpa: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_probs, _ = rows()
    expected = CtcDecoder(LABELS, 0).greedy(log_probs)
    monkeypatch.setitem(sys.modules, "sottovoce_kernels", None)
    decoder = CtcDecoder(LABELS, 0)
    assert decoder.greedy(log_probs) == expected
    with pytest.raises(OptionError, match=r"needs the native kernels: .* not installed \(pip install"):
        decoder.decode(log_probs)
    with pytest.raises(OptionError, match="needs the native kernels"):
        CtcDecoder(LABELS, 0, lm=arpa)


def test_of_very_many_labels_the_likeliest_are_looked_at() -> None:
    def n_tokens(n_labels: int, **given: int) -> int:
        scorer = PrefixScorer(n_labels, [(RandomBigram(n_labels, 1).automaton(), 0.5)])
        return int(PrefixSearch(n_labels, 0, 100, scorer=scorer, **given)._settings.n_tokens)  # type: ignore[arg-type]

    assert n_tokens(1500) == 128
    assert n_tokens(1500, top_tokens=1499) == 1499
    assert n_tokens(1024) == 1023


def test_the_lone_mark_of_a_words_beginning_is_a_piece_like_others() -> None:
    """SentencePiece vocabularies hold it beside "▁the"; nothing has to be said between words there."""
    names = ["-", "▁", "▁ab", "▁c", "a", "b"]
    log_probs = np.full((8, 6), -9.0, np.float32)
    for frame, label in enumerate((2, 0, 3, 0, 1, 4, 0, 5)):
        log_probs[frame, label] = 0.0
    lexicon = [("ab", [2]), ("c", [3]), ("ab", [1, 4, 5])]
    for chosen in (None, lexicon):
        decoder = CtcDecoder(names, 0, lexicon=chosen)  # type: ignore[arg-type]
        best = decoder.decode(log_softmax(log_probs))[0][0]
        assert best.text == "ab c ab"
        assert [word.word for word in best.words] == ["ab", "c", "ab"]
