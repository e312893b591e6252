"""What is particular to PyTorch: number formats, memory, states, and heads by default."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from sottovoce.errors import OptionError
from sottovoce.models.backend import EncoderMode, IncrementalWindow
from sottovoce.models.whisper import stays_float32
from sottovoce.runtime.torch import TorchBackend, TorchState, first_step_by_bias
from sottovoce.types import EncoderOutput, Features
from tests.models import tiny
from tests.runtime.fake import FakeBackend, Script

TOKENS = torch.tensor([[3, 1, 4, 1, 5]])


def logits(backend: TorchBackend) -> Tensor:
    mel = torch.linspace(-1, 1, 80 * 80).sin().reshape(1, 80, 80)
    return backend.step(TOKENS, backend.start(backend.encode(Features(mel, (80,)))), positions=None).logits


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.15), (torch.float16, 0.02)])
def test_half_precision_is_close_to_float32(dtype: torch.dtype, tolerance: float) -> None:
    """Relative to the spread of the logits; 8 and 11 bits of mantissa over five layers."""
    full = logits(tiny.backend())
    backend = tiny.backend(dtype=dtype)
    half = logits(backend)
    assert half.dtype == torch.float32
    assert (half - full).abs().max() < tolerance * full.std()


def test_norms_and_positions_stay_float32_and_all_else_does_not() -> None:
    model = tiny.backend(dtype=torch.bfloat16)._model
    for name, tensor in model.state_dict().items():
        norm_or_position = "ln" in name or "positional" in name
        assert stays_float32(name) is norm_or_position, name
        assert tensor.dtype == (torch.float32 if norm_or_position else torch.bfloat16), name


def test_weights_of_the_right_kind_are_not_copied() -> None:
    checkpoint = tiny.checkpoint()
    backend = tiny.backend(checkpoint)
    for name, tensor in backend._model.state_dict().items():
        assert tensor.data_ptr() == checkpoint.tensors[name].data_ptr(), name


def test_other_number_formats_are_refused() -> None:
    with pytest.raises(OptionError, match=r"torch.float64 given, expected one of torch.float32"):
        tiny.backend(dtype=torch.float64)


def test_without_named_heads_the_upper_half_stands_in() -> None:
    unnamed = dataclasses.replace(tiny.checkpoint(), alignment_heads=None)
    backend = tiny.backend(unnamed)
    assert backend.alignment_heads == tuple((layer, head) for layer in (1, 2) for head in range(4))


def test_a_state_of_another_backend_is_refused() -> None:
    fake = FakeBackend(Script())
    encoded = fake.encode(Features(torch.zeros(1, 80, 20), (20,)))
    with pytest.raises(OptionError, match="FakeState"):
        tiny.backend().step(TOKENS, fake.start(encoded))


@pytest.mark.parametrize("head", [(3, 0), (0, 4), (-1, 0)])
def test_heads_that_are_not_there_are_refused(head: tuple[int, int]) -> None:
    backend = tiny.backend()
    encoded = backend.encode(Features(torch.zeros(1, 80, 20), (20,)))
    with pytest.raises(OptionError, match="3 layers of 4"):
        backend.step(TOKENS, backend.start(encoded), capture=(head,))


def test_keys_and_values_are_never_repeated_and_shrink_with_the_audio() -> None:
    backend = tiny.backend()
    encoded = backend.encode(Features(torch.randn(4, 80, 40), (40,) * 4))
    state = backend.start(encoded, 3)
    backend.step(TOKENS.expand(12, -1), state)

    def kept(state: TorchState) -> tuple[int, bool]:
        keys = state.keys_values[0][0]
        return keys.shape[0], encoded.cross_kv is not None and keys is encoded.cross_kv[0][0]

    assert kept(state) == (4, True)
    state.reorder(torch.arange(9))
    assert kept(state) == (4, True)
    state.reorder(torch.tensor([0, 1, 2, 8]))
    assert kept(state) == (2, False)
    state.reorder(torch.tensor([3, 3]))
    assert kept(state) == (1, False)
    assert encoded.cross_kv[0][0].shape[0] == 4


def test_logits_may_be_written_to() -> None:
    """Filters write -inf in place, outside of any mode of the backend's."""
    backend = tiny.backend()
    encoded = backend.encode(Features(torch.randn(1, 80, 40), (40,)))
    said = backend.step(TOKENS, backend.start(encoded), capture=backend.alignment_heads)
    assert not said.logits.requires_grad
    said.logits[0, 0, :10] = -torch.inf
    said.attention[..., 0] = 0


def test_bias_belongs_to_its_row_and_hides_frames() -> None:
    """As the first step of an accelerator needs it."""
    backend = tiny.backend()
    encoded = backend.encode(Features(torch.randn(2, 80, 60), (60, 60)))
    bias = torch.zeros(4, encoded.n_frames)
    bias[1, 5:] = -torch.inf
    bias[2, :20] = -3.0
    tokens = TOKENS.expand(4, -1)
    together = backend.step(tokens, backend.start(encoded, 2), positions=None, bias=bias).logits
    for row in range(4):
        single = backend.start(encoded.row(row // 2))
        alone = backend.step(TOKENS, single, positions=None, bias=bias[row : row + 1]).logits
        torch.testing.assert_close(together[row : row + 1], alone, atol=2e-5, rtol=2e-5)
    short = backend.start(EncoderOutput(encoded.states[:1, :5], (5,)))
    cut = backend.step(TOKENS, short, positions=None).logits
    torch.testing.assert_close(together[1:2], cut, atol=2e-5, rtol=2e-5)


@pytest.mark.cuda
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float16, 0.02)])
def test_cuda_equals_the_cpu(dtype: torch.dtype, tolerance: float) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    full = logits(tiny.backend())
    backend = tiny.backend(dtype=dtype, device=torch.device("cuda"))
    assert (logits(backend).cpu() - full).abs().max() < tolerance * full.std()


def test_a_frame_that_stands_for_two_counts_twice() -> None:
    """In every layer and for every row, whatever bias is given besides."""
    backend = tiny.backend()
    whole = backend.encode(Features(torch.randn(2, 80, 20), (20, 20)))
    doubled = EncoderOutput(whole.states[:, [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9]], (10, 10))
    weights = torch.zeros(2, 10)
    weights[:, 4] = math.log(2.0)
    weighted = EncoderOutput(whole.states, (10, 10), log_weights=weights)
    bias = torch.randn(4, 10)
    tokens = TOKENS.expand(4, -1)
    for given in (None, bias):
        alike = given if given is None else given[:, [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9]]
        ours = backend.step(tokens, backend.start(weighted, 2), bias=given, capture=backend.alignment_heads)
        theirs = backend.step(tokens, backend.start(doubled, 2), bias=alike, capture=backend.alignment_heads)
        torch.testing.assert_close(ours.logits, theirs.logits, atol=2e-5, rtol=0)
        both = theirs.attention[..., 4] + theirs.attention[..., 5]
        torch.testing.assert_close(ours.attention[..., 4], both, atol=2e-5, rtol=0)


def test_weights_of_frames_follow_their_rows() -> None:
    """Through reordered rows and audios that are gone."""
    backend = tiny.backend()
    states = backend.encode(Features(torch.randn(4, 80, 20), (20,) * 4)).states
    encoded = EncoderOutput(states, (10,) * 4, log_weights=torch.rand(4, 10))
    state = backend.start(encoded)
    state.reorder(torch.tensor([3, 1]))
    state.reorder(torch.tensor([1, 0, 1]))
    said = backend.step(TOKENS.expand(3, -1), state).logits
    for row, audio in enumerate((1, 3, 1)):
        alone = backend.step(TOKENS, backend.start(encoded.row(audio))).logits
        torch.testing.assert_close(said[row : row + 1], alone, atol=2e-5, rtol=0)


def test_a_first_step_that_hears_padding_weighs_its_frames() -> None:
    backend = tiny.backend()
    states = backend.encode(Features(torch.randn(1, 80, 20), (20,))).states
    weights = torch.tensor([[0.0] * 6 + [1.0] * 4])
    encoded = EncoderOutput(states, (6,), log_weights=weights)
    rows = torch.arange(20)
    for span in ((2, 6), (2, 9)):
        ours = backend.first_step(encoded, [span], token=3, vocabulary=rows)
        theirs = first_step_by_bias(backend, encoded, [span], token=3, vocabulary=rows)
        torch.testing.assert_close(ours.log_softmax(1), theirs.log_softmax(1), atol=1e-4, rtol=0)


def test_what_a_growing_window_gives_the_decoder_is_made_of_its_states() -> None:
    backend = tiny.backend()
    mel = torch.randn(80, 60)
    mode = EncoderMode(tail_s=0.1, recompute_s=0.1)
    grown = backend.encode_incremental([IncrementalWindow(mel[:, :40], mode)])[0]
    grown = backend.encode_incremental([IncrementalWindow(mel, mode, grown.state)])[0]
    made = backend.step(TOKENS, backend.start(EncoderOutput(grown.encoded.states, (30,)))).logits
    assert grown.encoded.cross_kv is not None
    torch.testing.assert_close(
        backend.step(TOKENS, backend.start(grown.encoded)).logits, made, atol=2e-5, rtol=0
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.15), (torch.float16, 0.02)])
def test_growing_windows_in_half_precision_are_close_to_float32(dtype: torch.dtype, tolerance: float) -> None:
    mel = torch.randn(80, 60)
    mode = EncoderMode(stride=3, recompute_s=0.1)

    def said(backend: TorchBackend) -> Tensor:
        grown = backend.encode_incremental([IncrementalWindow(mel[:, :40], mode)])[0]
        grown = backend.encode_incremental([IncrementalWindow(mel, mode, grown.state)])[0]
        return backend.step(TOKENS, backend.start(grown.encoded), positions=None).logits

    full = said(tiny.backend())
    half = said(tiny.backend(dtype=dtype))
    assert (half - full).abs().max() < tolerance * full.std()
