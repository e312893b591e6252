"""Rules that are changed one at a time: what a row of the table stands for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("jiwer")
pytest.importorskip("whisper_normalizer")

from benchmarks.live.frontier import FRONTIERS
from benchmarks.live.policy import Rule, end_of_text_waits, with_pauses
from benchmarks.live.runs import Item, Setting
from sottovoce.streaming.attention_tracker import AttentionTracker
from sottovoce.streaming.vocabulary import LiveVocabulary
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE

TOKENIZER = Tokenizer.for_model(51865, language="en")


def test_the_end_of_text_waits_within_the_block_alone() -> None:
    def first() -> float:
        vocabulary = LiveVocabulary.of(TOKENIZER, TOKENIZER.n_vocab, torch.device("cpu"))
        logits = torch.zeros(1, TOKENIZER.n_vocab)
        logits[0, TOKENIZER.eot] = 9.0
        place = int((vocabulary.ids == TOKENIZER.eot).nonzero()[0, 0])
        return float(vocabulary.log_probs(logits, first=[0])[0, place].exp())

    before = first()
    with end_of_text_waits():
        assert first() == pytest.approx(0.0, abs=1e-6)
    assert first() == before > 0.1


def test_clips_of_a_set_and_language_are_parted_by_a_pause() -> None:
    second = np.zeros(SAMPLE_RATE, np.float32)
    items = [Item(name, second, ("en",), name, "one") for name in "abc"]
    items += [Item("d", second, ("de",), "d", "one"), Item("e", Path("e"), ("en",), "e", "other")]
    (joined,) = with_pauses(items, 3, 4.0)
    assert joined.text == "a b c"
    assert len(joined.samples()) == 3 * 5 * SAMPLE_RATE


def tracker(last: float) -> AttentionTracker:
    """Two heads over forty frames: all tokens attend to frames 4 to 9, a sink, the last to 20 to 25 too."""
    rows = torch.full((2, 3, 40), 0.001)
    rows[:, :, 4:10] = 0.1
    rows[:, 2, 20:26] = last
    found = AttentionTracker()
    found.admit(40, rows)
    return found


def test_the_attention_is_read_another_way_within_the_block_alone() -> None:
    heard = {}
    for name, other in FRONTIERS.items():
        with other():
            heard[name] = tracker(0.06).frontier().item()
    assert 20 <= tracker(0.06).frontier().item() < 26
    assert 4 <= heard["attention without z-score"] < 10
    assert 20 <= heard["no median filter"] < 26
    assert 20 <= heard["attention to padding waits"] < 26


def test_what_attends_to_padding_is_at_the_end_of_the_audio() -> None:
    found = AttentionTracker()
    found.admit(40, tracker(0.06)._last[0] / 10)
    with FRONTIERS["attention to padding waits"]():
        assert found.frontier().item() == 39
    assert found.frontier().item() < 39


def test_a_rule_changes_nothing_else() -> None:
    setting = Setting(stream={"chunk_s": 0.3}, label="now")
    changed = Rule("", {"max_context_tokens": 0}, {"vad": False}, end_of_text_waits).of(setting)
    assert changed.stream == {"chunk_s": 0.3, "max_context_tokens": 0}
    assert changed.session == {"vad": False}
    assert changed.label != setting.label
    assert Rule("").of(setting) == setting
