"""CTC heads in files: the same after a round trip, and given to the encoder they were trained on alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.base import Checkpoint, Convolution, CtcWeights
from sottovoce.models.checkpoint.openai import save_openai
from sottovoce.models.ctc_head import (
    ASSETS,
    BUNDLED,
    CtcFile,
    ctc_head_of,
    fingerprint,
    path_beside,
    read_ctc_file,
    save_ctc_file,
)
from sottovoce.models.load import load_checkpoint
from tests.models import tiny

LABELS = ("<blank>", " ", "a", "ß")


def head(d: int = 32) -> CtcWeights:
    layers = (
        Convolution(torch.randn(8, d, 1), torch.randn(8)),
        Convolution(torch.randn(6, 8, 5), torch.randn(6)),
    )
    return CtcWeights(torch.randn(4, 6), torch.randn(4), LABELS, 0, layers)


def tensors_of(weights: CtcWeights) -> list[torch.Tensor]:
    layers = [tensor for layer in weights.convolutions for tensor in (layer.weight, layer.bias)]
    return [weights.weight, weights.bias, *layers]


def same(one: CtcWeights | None, other: CtcWeights) -> bool:
    assert one is not None
    pairs = zip(tensors_of(one), tensors_of(other), strict=True)
    return (one.labels, one.blank) == (other.labels, other.blank) and all(
        torch.equal(a.half(), b.half()) for a, b in pairs
    )


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Checkpoint, Path]:
    """A checkpoint without a head, and the file it is in."""
    checkpoint = tiny.checkpoint(tiny.dims(n_vocab=51865, n_text_layer=1))
    save_openai(checkpoint, tmp_path / "own.pt", torch.float32)
    return checkpoint, tmp_path / "own.pt"


def test_a_round_trip_keeps_everything_in_half_precision(tmp_path: Path) -> None:
    written = CtcFile(head(), "0123456789abcdef")
    save_ctc_file(written, tmp_path / "x.ctc.safetensors")
    found = read_ctc_file(tmp_path / "x.ctc.safetensors", tiny.dims())
    assert found.encoder == written.encoder
    assert same(found.head, written.head)


def test_a_fingerprint_bears_half_precision_and_tells_encoders_apart() -> None:
    tensors = dict(tiny.checkpoint().tensors)
    halves = {name: tensor.half() for name, tensor in tensors.items()}
    assert fingerprint(halves) == fingerprint(tensors)
    assert fingerprint(tiny.checkpoint(seed=1).tensors) != fingerprint(tensors)
    decoder = {name: tensor + 1 if name.startswith("decoder") else tensor for name, tensor in tensors.items()}
    assert fingerprint(decoder) == fingerprint(tensors)


def test_a_head_beside_the_weights_is_found(saved: tuple[Checkpoint, Path]) -> None:
    checkpoint, path = saved
    assert load_checkpoint(path).ctc_head is None
    own = head()
    save_ctc_file(CtcFile(own, fingerprint(checkpoint.tensors)), path_beside(path))
    assert same(load_checkpoint(path).ctc_head, own)


def test_a_head_of_another_encoder_is_refused(saved: tuple[Checkpoint, Path]) -> None:
    _, path = saved
    save_ctc_file(CtcFile(head(), fingerprint(tiny.checkpoint(seed=1).tensors)), path_beside(path))
    with pytest.raises(CheckpointError, match="of the encoder"):
        load_checkpoint(path)


def test_damaged_files_are_named(saved: tuple[Checkpoint, Path]) -> None:
    checkpoint, path = saved
    path_beside(path).write_bytes(b"no head")
    with pytest.raises(CheckpointError, match=r"own\.ctc\.safetensors: expected a CTC head"):
        load_checkpoint(path)
    save_ctc_file(CtcFile(head(d=31), fingerprint(checkpoint.tensors)), path_beside(path))
    with pytest.raises(CheckpointError, match="CTC convolution"):
        load_checkpoint(path)


def test_a_head_that_came_with_the_weights_wins() -> None:
    own = head()
    checkpoint = dataclasses.replace(tiny.checkpoint(), ctc_head=own)
    assert ctc_head_of(checkpoint, Path("nowhere.pt")) is own


def test_the_packages_heads_are_small_spell_as_nano_and_are_for_their_encoder_alone() -> None:
    nano = load_checkpoint("nano").ctc_head
    assert nano is not None
    for (n_layers, n_state, n_vocab), name in BUNDLED.items():
        assert (ASSETS / name).stat().st_size <= 2_000_000
        dims = tiny.dims(n_audio_layer=n_layers, n_audio_state=n_state, n_text_state=n_state, n_vocab=n_vocab)
        found = read_ctc_file(ASSETS / name, dims)
        assert found.head.labels == nano.labels
        vectors = {key: torch.zeros(n_state) for key in ("encoder.conv1.bias", "encoder.ln_post.bias")}
        other = Checkpoint("other", dims, {**vectors, "encoder.ln_post.weight": torch.ones(n_state)})
        assert ctc_head_of(other, Path("nowhere.pt")) is None
