"""pyctcdecode's interface: its unpruned texts and scores, its folders, and transformers' processor."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.ctc.compat import BeamSearchDecoderCTC, build_ctcdecoder
from sottovoce.ctc.emissions import log_softmax
from sottovoce.errors import InputError, LanguageModelError
from sottovoce.lm.base import Floats
from tests.conftest import Reference
from tests.ctc.enumeration import emissions

_UNIGRAMS = "-2 <unk> 0", "-99 <s> -0.3", "-1.1 </s> 0", "-0.6 ab -0.2", "-0.9 ba -0.4", "-1.3 b -0.1"
_BIGRAMS = "-0.2 <s>_ab", "-0.5 ab_ba", "-0.7 ba_</s>", "-1.7 b_ab"
_PARTS = ("\\data\\", "ngram 1=6", "ngram 2=4", "", "\\1-grams:", *_UNIGRAMS, "", "\\2-grams:", *_BIGRAMS, "")
ARPA = "\n".join((*(part.replace("m ", "m_").replace(" ", "\t") for part in _PARTS), "\\end\\", ""))
ARPA = ARPA.replace("_", " ")
LETTERS, PIECES = [" ", "a", "b"], ["▁a", "b", "▁b", "a"]
UNPRUNED = {"beam_width": 2000, "beam_prune_logp": -1e9, "token_min_logp": -30.0}
Settings = dict[str, Any]


@pytest.fixture
def arpa(tmp_path: Path) -> str:
    path = tmp_path / "words.arpa"
    path.write_text(ARPA, encoding="utf-8")
    return str(path)


def between(first: int, last: int, n_labels: int, seed: int) -> Floats:
    """Emissions (6, V) that begin and end with a letter: pyctcdecode charges an unknown word for a last
    space, and takes a first piece without "▁" for a word's beginning.
    """
    log_probs = emissions(6, n_labels, seed)
    for frame, label in ((0, first), (-1, last)):
        log_probs[frame] = -60.0
        log_probs[frame, label] = 0.0
    return log_softmax(log_probs)


def theirs(labels: list[str], given: Settings, log_probs: Floats, asked: Settings) -> list[list[object]]:
    """Text, words and scores of pyctcdecode's best, by `reference`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pyctcdecode = pytest.importorskip("pyctcdecode", reason="pyctcdecode is not installed")
        decoder = pyctcdecode.build_ctcdecoder(labels, **given)
    beams = decoder.decode_beams(log_probs, **UNPRUNED, **asked)
    return [[text, [word for word, _ in words], *scores] for text, _, words, *scores in beams[:12]]


@pytest.mark.reference
@pytest.mark.parametrize(
    ("labels", "first", "last"), [(LETTERS, "a", "b"), (PIECES, "▁a", "b")], ids=["letters", "pieces"]
)
@pytest.mark.parametrize(
    ("given", "search"),
    [
        ({}, {}),
        ({}, {"hotwords": ["ab ba", "b"], "hotword_weight": 2.0}),
        ({"alpha": 0.7, "beta": 0.9, "unk_score_offset": -3.0}, {}),
        ({"alpha": 0.7, "beta": 0.2, "lm_score_boundary": False}, {"hotwords": ["bb"]}),
        ({"unigrams": ["ab", "b", "absent"]}, {}),
    ],
    ids=["labels", "hotwords", "lm", "parts", "unigrams"],
)
def test_texts_and_scores_of_pyctcdecode(
    labels: list[str],
    first: str,
    last: str,
    given: Settings,
    search: Settings,
    arpa: str,
    reference: Reference,
) -> None:
    log_probs = between(labels.index(first), labels.index(last), len(labels) + 1, seed=4)
    given = {"kenlm_model_path": arpa, **given} if given else given
    ours = build_ctcdecoder(labels, **given).decode_beams(log_probs, **UNPRUNED, **search)
    expected = reference(lambda: theirs(labels, given, log_probs, search))
    for (text, _, words, logit_score, score), (their_text, their_words, *scores) in zip(
        ours, expected, strict=False
    ):
        assert (text, [word for word, _ in words]) == (their_text, their_words)
        assert (logit_score, score) == pytest.approx(tuple(scores), abs=2e-4)


def test_one_utterance_is_decoded_as_in_a_batch_and_a_copy_as_the_original(arpa: str, tmp_path: Path) -> None:
    decoder = build_ctcdecoder(LETTERS, arpa, alpha=0.4)
    rows = [emissions(n, 4, seed=n) for n in (5, 9, 3)]
    search: Settings = {"hotwords": ["ba"], "hotword_weight": 1.0}
    single = [decoder.decode_beams(row, **search) for row in rows]
    texts = [decoder.decode(row, **search) for row in rows]
    assert decoder.decode_batch(None, rows, **search) == texts == [beams[0][0] for beams in single]
    folder = tmp_path / "saved"
    folder.mkdir()
    decoder.save_to_dir(folder)
    loaded = BeamSearchDecoderCTC.load_from_dir(folder)
    copies = copy.deepcopy(decoder), pickle.loads(pickle.dumps(decoder)), loaded
    for each in (decoder, *copies):
        batch = each.decode_beams_batch(None, rows, **search)
        for beams, alone in zip(batch, single, strict=True):
            assert [beam[:2] for beam in beams] == [(text, words) for text, _, words, *_ in alone]
            assert [beam[-1] for beam in beams] == pytest.approx([beam[-1] for beam in alone], abs=1e-5)


def test_a_state_continues_the_text_before(arpa: str) -> None:
    """The score of "ab ba" in two parts is that of the whole, if neither part is a sentence."""
    decoder = build_ctcdecoder(LETTERS, arpa, beta=0.0, lm_score_boundary=False)

    def certain(text: str) -> Floats:
        return np.log([[0.999 if label == letter else 1e-4 for label in (*LETTERS, "")] for letter in text])

    whole, first = decoder.decode_beams(certain("ab ba"))[0], decoder.decode_beams(certain("ab "))[0]
    last = decoder.decode_beams(certain("ba"), lm_start_state=first[1])[0]
    alone = decoder.decode_beams(certain("ba"))[0]
    parts = [beam[4] - beam[3] for beam in (whole, first, last, alone)]
    assert parts[0] == pytest.approx(parts[1] + parts[2], abs=1e-5)
    assert parts[3] < parts[2] - 0.4  # "ba" is likelier after "ab"


def test_wrong_input_is_one_line(arpa: str, tmp_path: Path) -> None:
    decoder = build_ctcdecoder(LETTERS, arpa)
    for wrong in (np.zeros((3, 5)), np.zeros((1, 3, 4))):
        with pytest.raises(ValueError, match=r"expected \(T, 4\), got an array of shape"):
            decoder.decode(wrong)
    with pytest.raises(InputError, match="NaN"):
        decoder.decode(np.full((3, 4), np.nan))
    with pytest.raises(LanguageModelError, match="hotwords: expected text that the labels can spell"):
        decoder.decode(np.zeros((3, 4)), hotwords=["xyz"])
    with pytest.raises(InputError, match=r"alphabet\.json"):
        BeamSearchDecoderCTC.load_from_dir(tmp_path)


@pytest.mark.long
def test_processor_of_transformers(arpa: str, tmp_path: Path) -> None:
    """It checks the class of the decoder and the alphabet; both programs read what it saves."""
    pyctcdecode = pytest.importorskip("pyctcdecode", reason="pyctcdecode is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    labels = ["<pad>", "<s>", "</s>", "<unk>", "|", "a", "b"]
    (tmp_path / "vocab.json").write_text(json.dumps({label: i for i, label in enumerate(labels)}))
    parts = (
        transformers.Wav2Vec2FeatureExtractor(),
        transformers.Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json")),
    )
    logits = np.full((2, 8, 7), -100.0, np.float32)
    for row, said in enumerate(("ab|ba", "b|-b-ab")):
        for t, letter in enumerate(said):
            logits[row, t] = -3.0
            logits[row, t, labels.index("<pad>" if letter == "-" else letter)] = 3.0
    outputs = []
    for module in (pyctcdecode.build_ctcdecoder, build_ctcdecoder):
        processor = transformers.Wav2Vec2ProcessorWithLM(*parts, module(labels, arpa))
        item = processor.decode(logits[0, :5], output_word_offsets=True, hotwords=["ab"], hotword_weight=2.0)
        many = processor.batch_decode(logits, alpha=0.3, num_processes=1)
        outputs.append((item.text, item.word_offsets, many.text, (item.lm_score, *many.lm_score)))
    assert outputs[0][:3] == outputs[1][:3]
    assert outputs[0][3] == pytest.approx(outputs[1][3], abs=1e-3)
    processor.save_pretrained(tmp_path / "saved")
    loaded = transformers.Wav2Vec2ProcessorWithLM.from_pretrained(tmp_path / "saved")
    ours = BeamSearchDecoderCTC.load_from_dir(tmp_path / "saved")
    assert loaded.decode(logits[0, :5]).text == ours.decode(logits[0, :5]) == "ab ba"
