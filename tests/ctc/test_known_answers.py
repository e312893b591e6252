"""Real emissions with known answers, from the data folder beside the checkout."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.emissions import log_softmax
from sottovoce.ctc.options import CtcOptions

pytestmark = pytest.mark.shared
LIBRI_TEXT = (
    "i have a good deal of will you remember and what i have set my mind upon "
    "no doubt i shall some day achieve"
)
LINE_LABELS = " !\"#&'()*+,-./0123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def folder(shared_dir: Path) -> Path:
    return shared_dir / "ctc"


def libri_labels() -> list[str]:
    return [" ", *(chr(ord("a") + i) for i in range(26)), "'", ""]


def table(path: Path) -> np.ndarray:
    """Logits (T, V) of a CSV with ; and an empty last column."""
    with path.open() as file:
        rows = [[float(cell) for cell in row if cell] for row in csv.reader(file, delimiter=";")]
    return np.array(rows, np.float32)


def handwriting_labels(folder: Path) -> list[str]:
    return [*(folder / "ctcwordbeamsearch-bentham-chars.txt").read_text(encoding="utf-8").strip("\n"), ""]


def test_libri_speech(folder: Path) -> None:
    log_probs = np.array(json.loads((folder / "pyctcdecode-libri_logits.json").read_text()), np.float32)
    decoder = CtcDecoder(libri_labels(), blank=28)
    assert decoder.greedy(log_probs)[0].text == LIBRI_TEXT
    best = decoder.decode(log_probs)[0][0]
    assert best.text == LIBRI_TEXT
    assert [word.word for word in best.words] == LIBRI_TEXT.split()
    assert all(a.end <= b.start for a, b in zip(best.words, best.words[1:], strict=False))


def bunny_emissions() -> np.ndarray:
    """The emissions of pyctcdecode's own tests: 0.49 of "bugs" and 0.51 of "bunny", a space, "bunny"."""
    labels = " bgnsuy-"
    frames = [{"b": 1.0}, {"u": 1.0}, {"g": 0.49, "n": 0.51}, {"s": 0.49, "-": 0.51}]
    frames += [{"-": 0.49, "n": 0.51}, {"-": 0.49, "y": 0.51}, {" ": 1.0}]
    frames += [{label: 1.0} for label in "bun-ny"]
    probabilities = np.full((len(frames), len(labels)), 1e-15)
    for t, frame in enumerate(frames):
        for label, value in frame.items():
            probabilities[t, labels.index(label)] = value
    return np.log(probabilities)


def test_bugs_bunny(folder: Path) -> None:
    log_probs, labels = bunny_emissions(), [" ", "b", "g", "n", "s", "u", "y", ""]
    assert CtcDecoder(labels, blank=-1).decode(log_probs)[0][0].text == "bunny bunny"
    with_lm = CtcDecoder(labels, blank=-1, lm=folder / "pyctcdecode-bugs_bunny.arpa")
    assert with_lm.decode(log_probs)[0][0].text == "bugs bunny"
    assert [w.word for w in with_lm.decode(log_probs)[0][0].words] == ["bugs", "bunny"]
    hot = CtcDecoder(labels, blank=-1, hotwords=["bugs"])
    assert hot.decode(log_probs)[0][0].text == "bugs bunny"
    hotter = CtcDecoder(labels, blank=-1, lm=folder / "pyctcdecode-bugs_bunny.arpa", hotwords={"bunny": 20.0})
    assert hotter.decode(log_probs)[0][0].text == "bunny bunny"


def test_handwritten_line(folder: Path) -> None:
    log_probs = log_softmax(table(folder / "ctcdecoder-line-rnnOutput.csv"))
    decoder = CtcDecoder([*LINE_LABELS, ""], blank=79, beam_size=25)
    assert decoder.greedy(log_probs)[0].text == "the fak friend of the fomly hae tC"
    truth = [LINE_LABELS.index(letter) for letter in "the fake friend of the family, like the"]
    loss = torch.nn.functional.ctc_loss(
        torch.from_numpy(log_probs[:, None]),
        torch.tensor([truth]),
        [100],
        [len(truth)],
        blank=79,
        reduction="sum",
    )
    assert float(loss) == pytest.approx(28.0907217749, abs=1e-4)
    best = decoder.decode(log_probs)[0][0]
    n_tokens = len(best.tokens)
    spelled = torch.nn.functional.ctc_loss(
        torch.from_numpy(log_probs[:, None]),
        torch.tensor([best.tokens]),
        [100],
        [n_tokens],
        blank=79,
        reduction="sum",
    )
    # The beam's score is that of all paths that it kept.
    assert best.score <= -float(spelled) + 1e-3
    assert best.text == "the fak friend of the fomcly hae tC"


def corpus_lexicon(folder: Path, labels: list[str]) -> list[tuple[str, list[int]]]:
    """Words of the corpus in letters that may stand in words, as the corpus' own settings have it."""
    letters = set(
        (folder / "ctcwordbeamsearch-bentham-wordChars.txt").read_text(encoding="utf-8").strip("\n")
    )
    text = (folder / "ctcwordbeamsearch-bentham-corpus.txt").read_text(encoding="utf-8")
    spaced = "".join(c if c in letters else " " for c in text)
    return [(word, [labels.index(c) for c in word]) for word in dict.fromkeys(spaced.split())]


def test_handwriting_with_the_corpus_as_lexicon(folder: Path) -> None:
    """Punctuation joins words or stands alone, so that every word of the corpus may carry it."""
    labels = handwriting_labels(folder)
    words = corpus_lexicon(folder, labels)
    marked = [(word + mark, [*spelling, labels.index(mark)]) for word, spelling in words for mark in ",."]
    decoder = CtcDecoder(labels, blank=93, lexicon=[*words, *marked], beam_size=30)
    log_probs = log_softmax(table(folder / "ctcwordbeamsearch-bentham-mat_2.csv"))
    best = decoder.decode(log_probs)[0][0]
    assert best.text == "submitt both mental and corporeal, is far beyond any idea"
    short = log_softmax(table(folder / "ctcwordbeamsearch-bentham-mat_0.csv"))
    truth = (folder / "ctcwordbeamsearch-bentham-gt_0.txt").read_text(encoding="utf-8").strip()
    assert decoder.decode(short)[0][0].text == truth


def test_word_model_without_a_lexicon_spells_its_own_vocabulary(folder: Path) -> None:
    log_probs = np.array(json.loads((folder / "pyctcdecode-libri_logits.json").read_text()), np.float32)
    decoder = CtcDecoder(
        libri_labels(),
        blank=28,
        lm=folder / "flashlight-lm.arpa",
        fusion=CtcFusionOptions(lm_weight=0.3, word_score=0.5),
        options=CtcOptions(top_tokens=8),
    )
    assert decoder.decode(log_probs)[0][0].text == LIBRI_TEXT
