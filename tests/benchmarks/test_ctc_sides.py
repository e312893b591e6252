"""The sides of the CTC benchmarks: settings that are to mean the same in two decoders do."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from sottovoce.lm.ngram import NgramModel
from tests.decoding.enumeration import emissions
from tests.decoding.test_ctc_engines import WORDS, random_arpa

LABELS = ["", " ", *"abcde"]


def spoken(seed: int) -> torch.Tensor:
    """Emissions (T, 7) without doubt about where words end, which the two decoders treat differently."""
    noise = emissions(30, len(LABELS), seed)
    for frame in range(len(noise)):
        noise[frame, LABELS.index(" ")] = 40.0 if frame % 6 == 5 else -40.0
    return noise.log_softmax(dim=1)


@pytest.mark.reference
@pytest.mark.parametrize("seed", range(4))
def test_an_ngram_weighs_the_same_in_flashlight_as_in_ours(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("flashlight.lib.text.decoder", reason="flashlight-text is not installed")
    pytest.importorskip("flashlight.lib.text.decoder.kenlm", reason="flashlight-text has no KenLM")
    sides = importlib.import_module("benchmarks.ctc.sides")
    vocabulary = importlib.import_module("benchmarks.ctc.emissions").Vocabulary
    path = tmp_path / "words.arpa"
    path.write_text(random_arpa())
    known = vocabulary(LABELS, {word: [LABELS.index(letter) for letter in word] for word in WORDS})
    task = sides.Task(known, 2000, "cpu", path, NgramModel.from_arpa(path), closed=True)
    text, score = sides.flashlight_lexicon(task, sides.WEIGHT, {})(spoken(seed))
    ours = sides.decoder_of(task, sides.CtcOptions(times=False)).decode(spoken(seed)[None])[0][0]
    assert ours.text == text
    assert ours.score == pytest.approx(score, abs=1e-2)
