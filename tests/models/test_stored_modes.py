"""Encoder modes found by the self-test: stored by the weights themselves, read when they are loaded."""

from __future__ import annotations

import json
import logging
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
from sottovoce.models.dims import BASE, DENSE, EncoderMode
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
