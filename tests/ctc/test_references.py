"""The search beside flashlight-text and pyctcdecode, on settings that mean the same in both."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.emissions import log_softmax
from tests.conftest import Reference
from tests.ctc.enumeration import emissions

pytestmark = pytest.mark.reference
LABELS = ["-", "a", "b", "c", "d", "|"]
WORDS = {word: " ".join(word) + " |" for word in ("ab", "a", "bad", "cab", "cd", "d", "dd", "abba")}


def flashlight_best(log_probs: np.ndarray, beam_size: int) -> list[Any]:
    """Text and score of flashlight's lexicon decoder with sums over paths and a word score of 0.3."""
    decoder = pytest.importorskip("flashlight.lib.text.decoder", reason="flashlight-text is not installed")
    from flashlight.lib.text.dictionary import Dictionary

    words = Dictionary()
    for word in WORDS:
        words.add_entry(word)
    trie = decoder.Trie(len(LABELS), LABELS.index("|"))
    for word, spelling in WORDS.items():
        trie.insert([LABELS.index(label) for label in spelling.split()], words.get_index(word), 0.0)
    options = decoder.LexiconDecoderOptions(
        beam_size=beam_size,
        beam_size_token=len(LABELS),
        beam_threshold=1e4,
        lm_weight=0.0,
        word_score=0.3,
        unk_score=float("-inf"),
        sil_score=0.0,
        log_add=True,
        criterion_type=decoder.CriterionType.CTC,
    )
    searcher = decoder.LexiconDecoder(options, trie, decoder.ZeroLM(), LABELS.index("|"), 0, -1, [], False)
    best = searcher.decode(log_probs.ctypes.data, *log_probs.shape)[0]
    return [" ".join(words.get_entry(index) for index in best.words if index >= 0), best.score]


def spoken(seed: int) -> np.ndarray:
    """Uncertain emissions (T, 6) of three words with clear separators."""
    chooser = random.Random(seed)
    noise = emissions(40, len(LABELS), seed)
    frames = []
    for word in chooser.choices(list(WORDS), k=3):
        for letter in word:
            row = np.zeros(len(LABELS), np.float32)
            row[LABELS.index(letter)] = 1.0
            row[LABELS.index("|")] = -30.0
            blank = np.array([2.0, 0, 0, 0, 0, -30])
            frames += [row + noise[len(frames)], blank + noise[len(frames) + 1]]
        frames.append(np.array([0.0, 0, 0, 0, 0, 40]))
    return log_softmax(np.stack(frames).astype(np.float32))


@pytest.mark.parametrize("seed", range(3))
def test_lexicon_decoding_equals_flashlight(seed: int, reference: Reference) -> None:
    """Words end with their separator: without one, flashlight cannot repeat a word's last label."""
    log_probs = spoken(seed)
    spellings = [
        (word, [LABELS.index(label) for label in spelling.split()]) for word, spelling in WORDS.items()
    ]
    fusion = CtcFusionOptions(word_score=0.3)
    decoder = CtcDecoder(LABELS, lexicon=spellings, beam_size=400, fusion=fusion)
    ours = decoder.decode(log_probs)[0][0]
    text, score = reference(lambda: flashlight_best(log_probs, 1000))
    assert ours.text == text
    assert ours.score == pytest.approx(score, abs=1e-3)


def pyctcdecode_text(labels: list[str], arpa: Path, log_probs: np.ndarray, **options: float) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pyctcdecode = pytest.importorskip("pyctcdecode", reason="pyctcdecode is not installed")
        pytest.importorskip("kenlm", reason="KenLM's package is not installed")
        decoder = pyctcdecode.build_ctcdecoder(labels, str(arpa), **options)
        text: str = decoder.decode(log_probs, beam_width=50)
    return text


@pytest.mark.shared
def test_texts_of_pyctcdecode(shared_dir: Path, reference: Reference) -> None:
    """alpha, beta and unk_score_offset are the weight, the word score and the unknown score here."""
    import json

    folder = shared_dir / "ctc"
    log_probs = np.array(json.loads((folder / "pyctcdecode-libri_logits.json").read_text()), np.float32)
    labels = [" ", *(chr(ord("a") + i) for i in range(26)), "'", ""]
    arpa = folder / "kenlm-test.arpa"
    fusion = CtcFusionOptions(lm_weight=0.1, word_score=0.5, unknown_score=-1.0)
    ours = CtcDecoder(labels, blank=28, lm=arpa, beam_size=50, fusion=fusion).decode(log_probs)[0][0].text
    options = {"alpha": 0.1, "beta": 0.5, "unk_score_offset": -1.0}
    assert ours == reference(lambda: pyctcdecode_text(labels, arpa, log_probs, **options))
