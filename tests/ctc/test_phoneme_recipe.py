"""`recipes/phonemes`: the bigram is a distribution, the words are words, and the picture is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recipes.phonemes import words
from recipes.phonemes.picture import draw
from sottovoce.ctc import CtcDecoder
from sottovoce.ctc.labels import labels_of
from sottovoce.lm.ngram import NgramModel

EXAMPLE = Path(__file__).parents[2] / "examples" / "phonemes"
FILES = {
    "unigrams.txt": ["the\t100", "of\t60", "x\t50", "a\t40", "it's\t9", "n64\t8", "sea\t5"],
    "bigrams.txt": ["<s> the\t30", "<s> a\t10", "of the\t50", "the sea\t5", "the moon\t4", "a of\t60"],
}


def test_a_bigram_of_counts_is_a_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_lines", FILES.__getitem__)
    counts = words.frequent_words(3, also=["sea"])
    assert counts == {"the": 100, "of": 60, "a": 40, "sea": 5}  # "x" is a letter, and no word
    words.write_bigram(counts, tmp_path / "bigram.arpa")
    model = NgramModel.load(tmp_path / "bigram.arpa")
    ids = np.array(model.ids([*counts]))
    states = {"<s>": model.start(1)} | {
        word: model.score(model.start(1), ids[i : i + 1])[1] for i, word in enumerate(counts)
    }
    for state in states.values():
        scores, _ = model.score(state.repeat(len(ids)), ids)
        assert np.exp(scores).sum() + np.exp(model.finish(state)) == pytest.approx(1.0, abs=2e-4)
    score, _ = model.score(states["of"], ids[:1])
    assert float(np.exp(score)[0]) == pytest.approx(0.9 * 50 / 60, abs=1e-3)


def test_phonemes_are_drawn_with_their_words(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    decoder = CtcDecoder(*labels_of(EXAMPLE / "labels.txt"), lexicon=EXAMPLE / "lexicon.txt")
    log_probs = np.load(EXAMPLE / "emissions.npz")["one"].astype(np.float32)
    draw(log_probs, decoder, tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
