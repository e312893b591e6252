"""Fine-tuning at toy scale: a tiny random Whisper learns a few clips by heart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from recipes.nano import finetune
from recipes.nano.clips import read_manifest
from recipes.nano.finetune import TuneOptions, fine_tune, fine_tune_file
from recipes.nano.start import known_text
from sottovoce.errors import ManifestError, OptionError
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.openai import read_openai
from sottovoce.models.dims import ModelDims
from sottovoce.models.nano import ASSET, read_compact
from sottovoce.models.whisper import Whisper, sinusoids
from sottovoce.text.tokenizer import Tokenizer

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
    outcome = fine_tune_file(checkpoint, manifest, target, OPTIONS)
    assert outcome.losses[-1] < 0.8 * outcome.losses[0]
    assert outcome.held_out == ()
    tuned = read_openai(target)
    assert set(tuned.tensors) == set(checkpoint.tensors)
    name = "decoder.blocks.0.mlp.0.weight"
    assert not torch.equal(tuned.tensors[name].float(), checkpoint.tensors[name].half().float())


def test_lora_changes_only_what_it_adapts(checkpoint: Checkpoint, manifest: Path) -> None:
    pytest.importorskip("peft", reason="LoRA needs the extra 'lora'")
    options = TuneOptions(steps=12, batch_size=2, learning_rate=3e-2, lora_rank=4, warm_up_steps=1)
    outcome = fine_tune(checkpoint, read_manifest(manifest), options)
    tuned = outcome.checkpoint
    assert outcome.losses[-1] < outcome.losses[0]
    changed = {
        name for name, tensor in tuned.tensors.items() if not torch.equal(tensor, checkpoint.tensors[name])
    }
    assert changed
    assert all(name.split(".")[-2] in ("query", "value") for name in changed)
    assert set(tuned.tensors) == set(checkpoint.tensors)


def test_clips_held_out_are_measured_and_not_learnt(checkpoint: Checkpoint, manifest: Path) -> None:
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    same, new = ({**rows[0], "split": "dev", "text": text} for text in ("low tone", "qqq zzz xxx"))
    told = []
    for held_out in (same, new):
        manifest.write_text("".join(json.dumps(row) + "\n" for row in [*rows, held_out]))
        told.append(fine_tune(checkpoint, read_manifest(manifest), OPTIONS).held_out)
    (_, known), (_, unknown) = told
    assert known < 0.6 * unknown


def test_ctrl_c_keeps_what_was_learnt(
    checkpoint: Checkpoint, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meant = finetune.text_loss
    n_calls = 0

    def interrupted(model: Whisper, batch: finetune.Pair) -> torch.Tensor:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 4:
            raise KeyboardInterrupt
        return meant(model, batch)

    monkeypatch.setattr(finetune, "text_loss", interrupted)
    outcome = fine_tune_file(checkpoint, manifest, tmp_path / "tuned.pt", OPTIONS)
    assert len(outcome.losses) == 3
    assert set(read_openai(tmp_path / "tuned.pt").tensors) == set(checkpoint.tensors)


def test_windows_are_as_long_as_when_they_are_recognised(checkpoint: Checkpoint, manifest: Path) -> None:
    tokenizer = Tokenizer.for_model(DIMS.n_vocab)
    pairs = finetune.Pairs(read_manifest(manifest), DIMS.n_mels, tokenizer)
    batch = finetune.collated([pairs[0], pairs[1]])
    assert batch.mel.shape == (2, 80, 3000)
    said = [[t for t in row if t >= 0] for row in batch.targets.tolist()]
    assert [tokenizer.decode(row) for row in said] == [" low tone", " high tone"]
    assert all(row[-1] == tokenizer.eot for row in said)
    assert batch.inputs[:, 0].tolist() == [tokenizer.sot] * 2


def test_a_model_of_few_pieces_goes_on_with_them(manifest: Path) -> None:
    """nano knows some words and letters of Whisper's vocabulary; the other rows were never trained."""
    nano = read_compact(ASSET)
    assert nano.trained_tokens is not None
    rows = [{**json.loads(line), "text": "Unspeakable"} for line in manifest.read_text().splitlines()]
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    clips = read_manifest(manifest)
    tokenizer = Tokenizer.for_model(nano.dims.n_vocab)
    targets = finetune.Pairs(clips, 80, tokenizer, known_text(nano)[0])[0].targets.tolist()
    said = [token for token in targets if token >= 0]
    assert set(said) <= set(nano.trained_tokens)
    assert tokenizer.decode(said[:-1]) == " Unspeakable"

    options = TuneOptions(steps=1, batch_size=1, learning_rate=1e-9)
    spelled, whole = (
        fine_tune(model, clips, options).losses[0] for model in (nano, replace(nano, trained_tokens=None))
    )
    assert spelled < 0.7 * whole


def test_a_clip_without_text_is_refused(checkpoint: Checkpoint, manifest: Path) -> None:
    row = json.loads(manifest.read_text().splitlines()[0])
    del row["text"]
    manifest.write_text(json.dumps(row) + "\n")
    with pytest.raises(ManifestError, match="no text"):
        fine_tune(checkpoint, read_manifest(manifest), OPTIONS)


def test_options_refuse_what_cannot_be() -> None:
    with pytest.raises(OptionError, match="LoRA rank -1"):
        TuneOptions(lora_rank=-1)
