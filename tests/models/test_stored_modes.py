"""Encoder modes: how they fill a window, and where they are stored and read."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sottovoce.api import Model, load_model
from sottovoce.models.backend import IncrementalResult, IncrementalWindow
from sottovoce.models.checkpoint.compact import read_compact
from sottovoce.models.checkpoint.huggingface import save_huggingface
from sottovoce.models.checkpoint.torch_file import save_openai
from sottovoce.models.dims import BASE, DENSE, EXACT, NEAR_FRAMES, EncoderMode, Padding, default_encoder_mode
from sottovoce.models.load import load_checkpoint, store_mode, stored_mode, weights_key
from sottovoce.options.transcribe import TranscribeOptions
from tests.models import tiny

FOUND = EncoderMode(stride=30, anchors=(470, 1475), recompute_s=3.5, refresh_s=0.0)
ENGLISH = tiny.dims(n_vocab=51864, n_audio_ctx=1500, n_text_ctx=448, n_audio_layer=1, n_text_layer=1)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOTTOVOCE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "own.pt"
    save_openai(tiny.checkpoint(replace(ENGLISH, n_text_layer=2)), file, "float32")
    return file


def test_a_stored_mode_is_that_of_the_weights_wherever_they_lie(weights: Path, tmp_path: Path) -> None:
    key = load_checkpoint(weights).mode_key
    assert key is not None
    store_mode(key, EncoderMode(tail_s=8.0))
    store_mode(key, FOUND)
    assert load_model(weights, device="cpu").backend.encoder_mode == FOUND
    save_huggingface(load_checkpoint(weights), tmp_path / "copy", "float32")
    assert load_checkpoint(tmp_path / "copy").encoder_mode == FOUND
    changed = load_checkpoint(weights)
    tensors = {name: tensor.copy() for name, tensor in changed.tensors.items()}
    tensors["decoder.blocks.1.attn.query.weight"][0, 0] += 1.0
    assert weights_key(replace(changed, tensors=tensors)) != key


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"version": 1}',
        b'{"version": 1, "mode": 3}',
        b'{"version": 1, "mode": {"stride": "30"}}',
        b'{"version": 1, "mode": {"anchors": [5, 3]}}',
        b'{"version": 0, "mode": {"anchors": []}}',
    ],
)
def test_a_damaged_or_older_entry_is_ignored(entry: bytes, weights: Path) -> None:
    key = load_checkpoint(weights).mode_key
    assert key is not None
    assert stored_mode(key) is None
    file = store_mode(key, FOUND)
    assert json.loads(file.read_text())["version"] == 1
    file.write_bytes(entry)
    assert stored_mode(key) is None
    assert load_model(weights, device="cpu").backend.encoder_mode is DENSE


def test_published_modes_and_those_in_the_file_need_no_entry(tmp_path: Path) -> None:
    nano = load_checkpoint("nano")
    assert (nano.mode_key, nano.encoder_mode) == (None, read_compact().encoder_mode)
    like_base = tiny.dims(n_audio_layer=6, n_audio_state=512, n_text_state=512, n_vocab=51865, n_text_layer=1)
    save_openai(tiny.checkpoint(like_base), tmp_path / "base.pt", "float16")
    model = load_model(tmp_path / "base.pt", device="cpu")
    assert (model.mode_key, model.backend.encoder_mode) == (None, BASE)


@pytest.mark.long
def test_the_encoder_is_tested_once_at_the_first_use(caplog: pytest.LogCaptureFixture) -> None:
    """In ten encodings at most; the mode is kept, and told in one line."""
    caplog.set_level(logging.WARNING, "sottovoce.api")
    unknown = replace(read_compact(), encoder_mode=None, mode_key="1" * 32)
    backend, n_encoded = tiny.backend(unknown), 0
    encode_incremental = backend.encode_incremental

    def counting(windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        nonlocal n_encoded
        n_encoded += len(windows)
        return encode_incremental(windows)

    backend.encode_incremental = counting  # type: ignore[method-assign]
    model = Model(unknown, backend)
    model.transcribe(np.zeros(16000, np.float32), options=TranscribeOptions(read_again=False))
    assert n_encoded == 0, "these windows are full, whatever the mode"
    model.transcribe(np.zeros(16000, np.float32))
    assert 4 <= n_encoded <= 10
    assert stored_mode("1" * 32) == backend.encoder_mode
    n_encoded = 0
    model.transcribe(np.zeros(16000, np.float32))
    model.session("en", vad=False)
    assert n_encoded == 0
    (line,) = caplog.messages
    assert "tested its encoder, once" in line


N_FULL = 1500
ANCHORS = (3, 297, 312, 313, 1493, 1499)
THIN = EncoderMode(stride=30, anchors=ANCHORS)


@pytest.mark.parametrize(
    ("mode", "n_content", "n_padding"),
    [
        (EXACT, 1, 1499),
        (EXACT, 1500, 0),
        (EncoderMode(tail_s=5.0), 100, 250),
        (EncoderMode(tail_s=5.0), 1400, 100),
        (EncoderMode(tail_s=0.0), 77, 0),
        (EncoderMode(tail_s=5.0, bucket_s=1.0), 101, 49 + 250),
        (EncoderMode(tail_s=0.0, bucket_s=0.5), 100, 0),
    ],
)
def test_dense_padding_fills_the_window(mode: EncoderMode, n_content: int, n_padding: int) -> None:
    assert mode.padding(n_content, N_FULL) == Padding(n_padding)
    assert mode.padding(n_content, N_FULL).log_weights(n_content) is None


@pytest.mark.parametrize("n_content", [1, 100, 297, 1480, 1489, 1495, 1500])
@pytest.mark.parametrize(
    "mode", [THIN, EncoderMode(stride=7), EncoderMode(tail_s=3.0, stride=30, anchors=ANCHORS)]
)
def test_thin_padding_stands_for_all_of_it(mode: EncoderMode, n_content: int) -> None:
    padding = mode.padding(n_content, N_FULL)
    dense = EncoderMode(tail_s=mode.tail_s).padding(n_content, N_FULL)
    first = n_content + padding.n_near
    assert padding.n_near == min(NEAR_FRAMES, dense.n_near)
    assert padding.n_near + sum(padding.counts) == dense.n_near
    assert list(padding.places) == sorted(set(padding.places))
    assert all(first <= place < n_content + dense.n_near for place in padding.places)
    weights = padding.log_weights(n_content)
    if weights is not None:
        assert len(weights) == n_content + padding.n_frames
        assert sum(map(math.exp, weights)) == pytest.approx(n_content + dense.n_near)


def test_anchors_are_computed_and_stand_for_themselves() -> None:
    padding = THIN.padding(290, N_FULL)
    counted = dict(zip(padding.places, padding.counts, strict=True))
    assert {place: counted[place] for place in (312, 313, 1493, 1499)} == {312: 1, 313: 1, 1493: 1, 1499: 1}
    assert not counted.keys() & {310, 311, 314, 315, 1492, 1494}
    assert max(counted.values()) == 30


def test_a_model_bears_what_was_measured_of_it() -> None:
    """Anchors belong to one size; what nothing is known of gets dense padding, and nano none."""
    base = tiny.dims(n_audio_layer=6, n_audio_state=512, n_vocab=51865, n_audio_ctx=N_FULL)
    assert default_encoder_mode(base) is BASE
    assert BASE.anchors[-1] < N_FULL
    random = tiny.backend()
    assert (random.encoder_mode, random.tail_s) == (DENSE, 5.0)
    assert DENSE.tail_s == 5.0
    nano = tiny.backend(read_compact())
    assert nano.encoder_mode.padding(50, N_FULL).n_frames == 0
    assert nano.encoder_mode.tail_s == nano.tail_s == 0.0
