"""Fine-tuning at toy scale: a tiny random Whisper learns a few clips by heart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from recipes.nano.clips import read_manifest
from recipes.nano.finetune import TuneOptions, fine_tune, fine_tune_file
from sottovoce.errors import ManifestError, OptionError
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.openai import read_openai
from sottovoce.models.dims import ModelDims
from sottovoce.models.whisper import Whisper, sinusoids

DIMS = ModelDims(
    n_mels=80,
    n_audio_ctx=1500,
    n_audio_state=32,
    n_audio_head=2,
    n_audio_layer=1,
    n_vocab=51865,
    n_text_ctx=64,
    n_text_state=32,
    n_text_head=2,
    n_text_layer=2,
)


@pytest.fixture
def checkpoint() -> Checkpoint:
    torch.manual_seed(0)
    model = Whisper(DIMS)
    torch.nn.init.normal_(model.decoder.positional_embedding, std=0.02)
    model.encoder.positional_embedding.copy_(sinusoids(DIMS.n_audio_ctx, DIMS.n_audio_state))
    tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return Checkpoint(name="tiny-random", dims=DIMS, tensors=tensors)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    rows = []
    for index, text in enumerate(("low tone", "high tone")):
        time = np.arange(8000) / 16_000
        tone = (0.3 * np.sin(2 * np.pi * (200 + 1500 * index) * time) * 32767).astype(np.int16)
        wavfile.write(tmp_path / f"{index}.wav", 16_000, tone)
        rows.append({"file": f"{index}.wav", "language": "en", "text": text})
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


OPTIONS = TuneOptions(steps=12, batch_size=2, learning_rate=3e-3, warm_up_steps=1)


def test_full_tuning_lowers_the_loss_and_leaves_a_checkpoint(
    checkpoint: Checkpoint, manifest: Path, tmp_path: Path
) -> None:
    target = tmp_path / "tuned.pt"
    losses = fine_tune_file(checkpoint, manifest, target, OPTIONS)
    assert losses[-1] < 0.8 * losses[0]
    tuned = read_openai(target)
    assert set(tuned.tensors) == set(checkpoint.tensors)
    name = "decoder.blocks.0.mlp.0.weight"
    assert not torch.equal(tuned.tensors[name].float(), checkpoint.tensors[name].half().float())


def test_lora_changes_only_what_it_adapts(checkpoint: Checkpoint, manifest: Path) -> None:
    pytest.importorskip("peft", reason="LoRA needs the extra 'lora'")
    options = TuneOptions(steps=12, batch_size=2, learning_rate=3e-2, lora_rank=4, warm_up_steps=1)
    tuned, losses = fine_tune(checkpoint, read_manifest(manifest), options)
    assert losses[-1] < losses[0]
    changed = {
        name for name, tensor in tuned.tensors.items() if not torch.equal(tensor, checkpoint.tensors[name])
    }
    assert changed
    assert all(name.split(".")[-2] in ("query", "value") for name in changed)
    assert set(tuned.tensors) == set(checkpoint.tensors)


def test_a_clip_without_text_is_refused(checkpoint: Checkpoint, manifest: Path) -> None:
    row = json.loads(manifest.read_text().splitlines()[0])
    del row["text"]
    manifest.write_text(json.dumps(row) + "\n")
    with pytest.raises(ManifestError, match="no text"):
        fine_tune(checkpoint, read_manifest(manifest), OPTIONS)


def test_options_refuse_what_cannot_be() -> None:
    with pytest.raises(OptionError, match="LoRA rank -1"):
        TuneOptions(lora_rank=-1)
