"""The CTC head: normalised, on shared encoder states; heads in files, for their encoder."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.base import Array, Checkpoint, Convolution, CtcWeights
from sottovoce.models.checkpoint.torch_file import save_openai
from sottovoce.models.ctc_head import (
    ASSETS,
    BUNDLED,
    CtcFile,
    CtcHead,
    ctc_head_of,
    fingerprint,
    path_beside,
    read_ctc_file,
    save_ctc_file,
)
from sottovoce.models.load import load_checkpoint
from sottovoce.runtime.torch_encoder import TorchEncoderOutput
from sottovoce.types import Features
from tests.models import tiny
from tests.models.test_checkpoints import random_arrays

WEIGHTS = CtcWeights(*random_arrays((5, 32), (5,)), ("-", "a", "b", "c", " "), 0)


def test_emissions_are_log_probabilities_of_a_linear_layer() -> None:
    backend = tiny.backend()
    head = CtcHead(WEIGHTS, backend.encode)
    features = Features(torch.randn(2, 80, 40).numpy(), (40, 25))
    emissions = head.emissions(features)
    assert emissions.log_probs.shape == (2, 20, 5)
    assert emissions.log_probs.dtype == np.float32
    assert emissions.lengths.tolist() == [20, 13]
    np.testing.assert_allclose(np.exp(emissions.log_probs).sum(-1), 1, atol=1e-5)
    scores = backend.encode(features).states_on_host() @ WEIGHTS.weight.T + WEIGHTS.bias
    expected = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    np.testing.assert_allclose(emissions.log_probs, expected, atol=1e-5, rtol=0)
    assert (tuple(head.labels), head.blank) == (WEIGHTS.labels, 0)


def test_states_that_exist_are_not_computed_again() -> None:
    backend = tiny.backend()
    features = Features(torch.randn(1, 80, 40).numpy(), (40,))
    encoded = backend.encode(features)
    head = CtcHead(WEIGHTS, backend.encode)
    assert np.array_equal(head.emissions_of(encoded).log_probs, head.emissions(features).log_probs)


def convolutional(d: int = 32) -> CtcWeights:
    """A head with two convolutions."""
    layers = (Convolution(*random_arrays((8, d, 1), (8,))), Convolution(*random_arrays((6, 8, 5), (6,))))
    return CtcWeights(*random_arrays((4, 6), (4,)), ("<blank>", " ", "a", "ß"), 0, layers)


def test_convolutions_hear_a_few_frames_to_both_sides_and_no_others() -> None:
    head = CtcHead(convolutional(), tiny.backend().encode)
    states = torch.randn(1, 20, 32)
    before = head.emissions_of(TorchEncoderOutput(states, (20,))).log_probs
    states[0, 10] += 1.0
    after = head.emissions_of(TorchEncoderOutput(states, (20,))).log_probs
    changed = np.abs(after - before)[0].max(axis=1) > 1e-6
    assert np.flatnonzero(changed).tolist() == [8, 9, 10, 11, 12]


def test_padding_behind_the_audio_changes_nothing_of_it() -> None:
    head = CtcHead(convolutional(), tiny.backend().encode)
    states = torch.randn(2, 20, 32)
    alone = head.emissions_of(TorchEncoderOutput(states[:1, :12], (12,))).log_probs
    padded = head.emissions_of(TorchEncoderOutput(states, (12, 20))).log_probs
    np.testing.assert_allclose(padded[:1, :12], alone, atol=1e-5, rtol=0)
    whole = head.emissions_of(TorchEncoderOutput(states[1:], (20,))).log_probs
    np.testing.assert_allclose(padded[1:], whole, atol=1e-5, rtol=0)


def tensors_of(weights: CtcWeights) -> list[Array]:
    layers = [tensor for layer in weights.convolutions for tensor in (layer.weight, layer.bias)]
    return [weights.weight, weights.bias, *layers]


def same(head: CtcWeights | None, expected: CtcWeights) -> bool:
    pairs = zip(tensors_of(head), tensors_of(expected), strict=True)
    return (head.labels, head.blank) == (expected.labels, expected.blank) and all(
        np.array_equal(a.astype(np.float16), b.astype(np.float16)) for a, b in pairs
    )


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Checkpoint, Path]:
    """A checkpoint without a head, and the file it is in."""
    checkpoint = tiny.checkpoint(tiny.dims(n_vocab=51865, n_text_layer=1))
    save_openai(checkpoint, tmp_path / "own.pt", "float32")
    return checkpoint, tmp_path / "own.pt"


def test_a_round_trip_keeps_everything_in_half_precision(tmp_path: Path) -> None:
    written = CtcFile(convolutional(), "0123456789abcdef")
    save_ctc_file(written, tmp_path / "x.ctc.safetensors")
    reread = read_ctc_file(tmp_path / "x.ctc.safetensors", tiny.dims())
    assert reread.encoder == written.encoder
    assert same(reread.head, written.head)


def test_a_fingerprint_bears_half_precision_and_tells_encoders_apart() -> None:
    tensors = dict(tiny.checkpoint().tensors)
    halves = {name: array.astype(np.float16) for name, array in tensors.items()}
    assert fingerprint(halves) == fingerprint(tensors)
    assert fingerprint(tiny.checkpoint(seed=1).tensors) != fingerprint(tensors)
    decoder = {name: tensor + 1 if name.startswith("decoder") else tensor for name, tensor in tensors.items()}
    assert fingerprint(decoder) == fingerprint(tensors)


def test_a_head_beside_the_weights_is_found(saved: tuple[Checkpoint, Path]) -> None:
    checkpoint, path = saved
    assert load_checkpoint(path).ctc_head is None
    head = convolutional()
    save_ctc_file(CtcFile(head, fingerprint(checkpoint.tensors)), path_beside(path))
    assert same(load_checkpoint(path).ctc_head, head)


def test_a_head_of_another_encoder_is_refused(saved: tuple[Checkpoint, Path]) -> None:
    _, path = saved
    save_ctc_file(CtcFile(convolutional(), fingerprint(tiny.checkpoint(seed=1).tensors)), path_beside(path))
    with pytest.raises(CheckpointError, match="of the encoder"):
        load_checkpoint(path)


def test_damaged_files_are_named(saved: tuple[Checkpoint, Path]) -> None:
    checkpoint, path = saved
    path_beside(path).write_bytes(b"no head")
    with pytest.raises(CheckpointError, match=r"own\.ctc\.safetensors: expected a CTC head"):
        load_checkpoint(path)
    save_ctc_file(CtcFile(convolutional(d=31), fingerprint(checkpoint.tensors)), path_beside(path))
    with pytest.raises(CheckpointError, match="CTC convolution"):
        load_checkpoint(path)


def test_a_head_that_came_with_the_weights_wins() -> None:
    head = convolutional()
    checkpoint = dataclasses.replace(tiny.checkpoint(), ctc_head=head)
    assert ctc_head_of(checkpoint, Path("nowhere.pt")) is head


def test_the_packages_heads_are_small_spell_as_nano_and_are_for_their_encoder_alone() -> None:
    nano = load_checkpoint("nano").ctc_head
    for (n_layers, n_state, n_vocab), name in BUNDLED.items():
        assert (ASSETS / name).stat().st_size <= 2_000_000
        dims = tiny.dims(n_audio_layer=n_layers, n_audio_state=n_state, n_text_state=n_state, n_vocab=n_vocab)
        bundled = read_ctc_file(ASSETS / name, dims)
        assert bundled.head.labels == nano.labels
        vectors = {
            key: np.zeros(n_state, np.float32) for key in ("encoder.conv1.bias", "encoder.ln_post.bias")
        }
        other = Checkpoint("other", dims, {**vectors, "encoder.ln_post.weight": np.ones(n_state, np.float32)})
        assert ctc_head_of(other, Path("nowhere.pt")) is None
