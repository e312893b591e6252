"""The same random weights in ours and in openai-whisper: the same logits and attention."""

from __future__ import annotations

import dataclasses
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.dims import ModelDims
from sottovoce.models.whisper import as_tensor
from sottovoce.runtime.torch import TorchBackend
from sottovoce.types import Features, Floats
from tests.conftest import Reference, some
from tests.models import tiny
from tests.runtime.reading import read, start, step

pytestmark = pytest.mark.reference

TOLERANCE = 1e-4
SIZES = (
    ModelDims(80, 500, 384, 6, 4, 51865, 448, 384, 6, 4),
    ModelDims(128, 500, 1280, 20, 1, 2000, 448, 1280, 20, 1),  # large-v3, 1 of 32 layers, some tokens
)
LARGE_V3 = ModelDims(128, 1500, 1280, 20, 32, 51866, 448, 1280, 20, 32)
"""1.5 billion weights in float32: 6 GB, held once; minutes on a laptop."""


def twin_of(checkpoint: Checkpoint) -> nn.Module:
    """openai-whisper's model over the very same tensors: nothing is copied."""
    whisper = pytest.importorskip("whisper", reason="openai-whisper is not installed")
    dims = checkpoint.dims
    small = {**dataclasses.asdict(dims), "n_vocab": 1, "n_audio_layer": 0, "n_text_layer": 0}
    model = whisper.model.Whisper(whisper.model.ModelDimensions(**small))
    audio = (dims.n_mels, dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head, dims.n_audio_layer)
    text = (dims.n_vocab, dims.n_text_ctx, dims.n_text_state, dims.n_text_head, dims.n_text_layer)
    with torch.device("meta"):
        model.encoder = whisper.model.AudioEncoder(*audio)
        model.decoder = whisper.model.TextDecoder(*text)
    model.load_state_dict({name: as_tensor(array) for name, array in checkpoint.tensors.items()}, assign=True)
    model.decoder.mask = torch.full((dims.n_text_ctx, dims.n_text_ctx), -torch.inf).triu(1)
    assert isinstance(model, nn.Module)
    return model.eval()


def our_logits(backend: TorchBackend, mel: Tensor, tokens: Tensor) -> Floats:
    encoded = backend.encode(Features(mel.numpy(), (mel.shape[2],) * len(mel)))
    rows = start(backend, encoded)
    prompt = step(rows, tokens[:, :4]).logits
    steps = [step(rows, tokens[:, i : i + 1]).logits for i in range(4, tokens.shape[1])]
    return np.concatenate([prompt, *steps], axis=1)


@pytest.mark.parametrize(
    "dims", [*SIZES, pytest.param(LARGE_V3, marks=pytest.mark.large)], ids=["tiny", "large, 1 layer", "large"]
)
def test_logits_equal_openai_whisper(dims: ModelDims, reference: Reference) -> None:
    weights = tiny.checkpoint(dims)
    mel = torch.randn(1, dims.n_mels, 2 * dims.n_audio_ctx)
    tokens = torch.randint(0, dims.n_vocab, (1, 9 if dims.n_audio_layer < 32 else 6))

    def compute() -> list[float]:
        with torch.no_grad():
            return some(twin_of(weights)(mel, tokens))

    logits = our_logits(tiny.backend(weights), mel, tokens)
    assert logits.std() > 0.1
    assert some(logits) == pytest.approx(reference(compute), abs=TOLERANCE)


def test_captured_attention_equals_openai_whisper(reference: Reference) -> None:
    weights = tiny.checkpoint(tiny.dims(n_text_layer=4, n_text_head=4))
    backend = tiny.backend(weights)
    mel = torch.randn(2, 80, 80)
    tokens = torch.randint(0, 300, (2, 7))
    heads = ((3, 1), (2, 0), (2, 3))
    ours = read(backend, backend.encode(Features(mel.numpy(), (80, 80))), tokens, capture=heads).attention

    def compute() -> list[float]:
        theirs = twin_of(weights)
        kept: dict[int, Tensor] = {}
        for layer in (2, 3):
            module = theirs.get_submodule(f"decoder.blocks.{layer}.cross_attn")
            module.register_forward_hook(
                lambda _, __, output, layer=layer: kept.update({layer: output[1].softmax(dim=-1)})
            )
        with torch.no_grad(), import_module("whisper").model.disable_sdpa():
            theirs(mel, tokens)
        return some(torch.stack([kept[layer][:, head] for layer, head in heads], dim=1))

    assert some(ours) == pytest.approx(reference(compute), abs=1e-5)
