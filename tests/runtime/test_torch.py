"""What is particular to PyTorch: number formats, memory, states, spans, and heads by default."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from sottovoce.errors import OptionError
from sottovoce.models.backend import EncoderOutput, IncrementalWindow
from sottovoce.models.checkpoint.base import BFLOAT16, Checkpoint, floats, with_dtype
from sottovoce.models.dims import EncoderMode, Span
from sottovoce.models.whisper import stays_float32
from sottovoce.runtime.torch import TorchBackend
from sottovoce.runtime.torch_encoder import TorchEncoderOutput
from sottovoce.types import Features, Floats, Ints
from tests.models import tiny
from tests.models.tiny import backend as tiny_backend
from tests.models.tiny import checkpoint, dims
from tests.runtime.reading import read, start, step

TOKENS = torch.tensor([[3, 1, 4, 1, 5]])


def logits(backend: TorchBackend) -> Floats:
    mel = torch.linspace(-1, 1, 80 * 80).sin().reshape(1, 80, 80).numpy()
    return read(backend, backend.encode(Features(mel, (80,))), TOKENS).logits


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.15), (torch.float16, 0.02)])
def test_half_precision_is_close_to_float32(dtype: torch.dtype, tolerance: float) -> None:
    """Relative to the spread of the logits; 8 and 11 bits of mantissa over five layers."""
    full = logits(tiny.backend())
    backend = tiny.backend(dtype=dtype)
    half = logits(backend)
    assert half.dtype == np.float32
    assert np.abs(half - full).max() < tolerance * full.std()


def test_norms_and_positions_stay_float32_and_all_else_does_not() -> None:
    model = tiny.backend(dtype=torch.bfloat16).network
    for name, tensor in model.state_dict().items():
        norm_or_position = "ln" in name or "positional" in name
        assert stays_float32(name) is norm_or_position, name
        assert tensor.dtype == (torch.float32 if norm_or_position else torch.bfloat16), name


def test_weights_of_the_right_kind_are_not_copied() -> None:
    checkpoint = tiny.checkpoint()
    backend = tiny.backend(checkpoint)
    for name, tensor in backend.network.state_dict().items():
        assert tensor.data_ptr() == checkpoint.tensors[name].ctypes.data, name


def test_other_number_formats_are_refused() -> None:
    with pytest.raises(OptionError, match=r"torch.float64 given, expected one of torch.float32"):
        tiny.backend(dtype=torch.float64)


def test_without_named_heads_the_upper_half_stands_in() -> None:
    unnamed = dataclasses.replace(tiny.checkpoint(), alignment_heads=None)
    backend = tiny.backend(unnamed)
    assert backend.alignment_heads == tuple((layer, head) for layer in (1, 2) for head in range(4))


def test_logits_may_be_written_to() -> None:
    """Filters write -inf in place, outside of any mode of the backend's."""
    backend = tiny.backend()
    encoded = backend.encode(Features(torch.randn(1, 80, 40).numpy(), (40,)))
    result = read(backend, encoded, TOKENS, capture=backend.alignment_heads)
    result.logits[0, 0, :10] = -np.inf
    result.attention[..., 0] = 0
    assert np.isneginf(result.logits[0, 0, :10]).all()
    assert not result.attention[..., 0].any()


@pytest.mark.cuda
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float16, 0.02)])
def test_cuda_equals_the_cpu(dtype: torch.dtype, tolerance: float) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    full = logits(tiny.backend())
    backend = tiny.backend(dtype=dtype, device="cuda")
    assert np.abs(logits(backend) - full).max() < tolerance * full.std()


def test_a_frame_that_stands_for_two_counts_twice() -> None:
    """In every layer and for every row, within a span or not."""
    backend = tiny.backend()
    whole = backend.encode(Features(torch.randn(2, 80, 20).numpy(), (20, 20)))
    doubled = TorchEncoderOutput(whole.states[:, [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9]], (10, 10))
    weights = torch.zeros(2, 10)
    weights[:, 4] = math.log(2.0)
    weighted = TorchEncoderOutput(whole.states, (10, 10), log_weights=weights)
    tokens, heads = TOKENS.expand(4, -1), backend.alignment_heads
    for spans in (None, [(2, 9), (0, 10), (3, 5), (2, 9)]):
        same = None if spans is None else [(begin, end + 1) for begin, end in spans]
        ours = step(start(backend, weighted, 2), tokens, spans=spans, capture=heads)
        theirs = step(start(backend, doubled, 2), tokens, spans=same, capture=heads)
        torch.testing.assert_close(ours.logits, theirs.logits, atol=2e-5, rtol=0)
        both = theirs.attention[..., 4] + theirs.attention[..., 5]
        torch.testing.assert_close(ours.attention[..., 4], both, atol=2e-5, rtol=0)


def test_weights_of_frames_follow_their_rows() -> None:
    """Through selected rows and windows that are gone."""
    backend = tiny.backend()
    states = backend.encode(Features(torch.randn(4, 80, 20).numpy(), (20,) * 4)).states
    encoded = TorchEncoderOutput(states, (10,) * 4, log_weights=torch.rand(4, 10))
    rows = start(backend, encoded)
    rows.select([3, 1])
    rows.select([1, 0, 1])
    result = step(rows, TOKENS.expand(3, -1)).logits
    for row, window in enumerate((1, 3, 1)):
        alone = read(backend, encoded.rows([window]), TOKENS).logits
        torch.testing.assert_close(result[row : row + 1], alone, atol=2e-5, rtol=0)


def test_keys_and_values_of_the_audio_are_never_copied() -> None:
    backend = tiny.backend()
    encoded = backend.encode(Features(torch.randn(4, 80, 40).numpy(), (40,) * 4))
    rows = start(backend, encoded, 3)
    step(rows, TOKENS.expand(12, -1))
    rows.select([0, 1, 2, 8])
    assert encoded.cross_kv is not None
    assert all(_recording.keys_values is encoded.cross_kv for _recording in rows._recordings)  # type: ignore[attr-defined]


def test_a_row_that_left_harms_no_later_one() -> None:
    """Masked keys of a buffer that is used again are finite."""
    backend = tiny.backend()
    encoded = backend.encode(Features(torch.randn(1, 80, 20).numpy(), (20,)))
    broken = TorchEncoderOutput(encoded.states * torch.nan, (10,))
    rows = start(backend, encoded)
    rows.admit(broken)
    assert np.isnan(step(rows, TOKENS.expand(2, -1)).logits[1]).all()
    rows.select([0])
    rows.admit(encoded)
    expected = read(backend, encoded, TOKENS[:, :1]).logits[0]
    result = rows.step([[7], TOKENS[0, :1].tolist()], [[], [0]]).logits
    np.testing.assert_allclose(result, expected, atol=2e-5, rtol=0)


def test_what_a_growing_window_gives_the_decoder_is_made_of_its_states() -> None:
    backend = tiny.backend()
    mel = torch.randn(80, 60).numpy()
    mode = EncoderMode(tail_s=0.1, recompute_s=0.1)
    grown = backend.encode_incremental([IncrementalWindow(mel[:, :40], mode)])[0]
    grown = backend.encode_incremental([IncrementalWindow(mel, mode, grown.state)])[0]
    created = read(backend, TorchEncoderOutput(grown.encoded.states, (30,)), TOKENS).logits
    assert grown.encoded.cross_kv is not None
    torch.testing.assert_close(read(backend, grown.encoded, TOKENS).logits, created, atol=2e-5, rtol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.15), (torch.float16, 0.02)])
def test_growing_windows_in_half_precision_are_close_to_float32(dtype: torch.dtype, tolerance: float) -> None:
    mel = torch.randn(80, 60).numpy()
    mode = EncoderMode(stride=3, recompute_s=0.1)

    def said(backend: TorchBackend) -> Floats:
        grown = backend.encode_incremental([IncrementalWindow(mel[:, :40], mode)])[0]
        grown = backend.encode_incremental([IncrementalWindow(mel, mode, grown.state)])[0]
        return read(backend, grown.encoded, TOKENS).logits

    full = said(tiny.backend())
    half = said(tiny.backend(dtype=dtype))
    assert np.abs(half - full).max() < tolerance * full.std()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_windows_in_a_batch_are_those_alone_bit_by_bit(dtype: torch.dtype) -> None:
    """Sessions and uploads that a server encodes together have the texts that they have alone."""
    backend = tiny.backend(tiny.dims(n_audio_state=512, n_text_state=512, n_audio_ctx=400), dtype=dtype)
    mels = torch.randn(4, 80, 600, generator=torch.Generator().manual_seed(0)).numpy()
    whole = backend.encode(Features(mels, (600,) * 4)).states
    alone = [backend.encode(Features(mel[None], (600,))).states for mel in mels]
    assert torch.equal(whole, torch.cat(alone))
    mode = EncoderMode(stride=30, recompute_s=3.5)
    windows = []
    for mel, n_columns in zip(mels, (300, 420, 500, 574), strict=True):
        (grown,) = backend.encode_incremental([IncrementalWindow(mel[:, :n_columns], mode)])
        windows.append(IncrementalWindow(mel[:, : n_columns + 26], mode, grown.state))
    for window, together in zip(windows, backend.encode_incremental(windows), strict=True):
        (grown,) = backend.encode_incremental([window])
        assert torch.equal(together.encoded.states, grown.encoded.states)


WIDE = dims(n_audio_state=64, n_text_state=64, n_text_head=2)
IDS = np.array([3, 17, 259, 50, 299])
SPANS = [
    [(0, 30)],
    [(7, 8), (0, 30)],
    [(3, 9), (20, 30), (0, 30)],
    [(3, 9), (29, 30), (14, 21), (2, 4), (8, 28)],
]


def backend(dtype: torch.dtype, *, int8: bool = False) -> TorchBackend:
    """Weights that lose nothing when they are kept in bfloat16."""
    whole = checkpoint(WIDE)
    tensors = {name: floats(with_dtype(tensor, BFLOAT16)) for name, tensor in whole.tensors.items()}
    rounded = Checkpoint(whole.name, whole.dims, tensors, whole.alignment_heads)
    return tiny_backend(rounded, dtype=dtype, int8=int8)


def encoded(of: TorchBackend) -> EncoderOutput:
    generator = torch.Generator().manual_seed(1)
    return of.encode(Features(torch.randn(1, 80, 60, generator=generator).numpy(), (60,)))


def within(of: TorchBackend, audio: EncoderOutput, spans: list[Span], ids: Ints = IDS) -> Floats:
    return step(start(of, audio, len(spans)), [[5]] * len(spans), vocabulary=ids, spans=spans).logits[:, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_errs_no_more_within_a_span_than_without(dtype: torch.dtype) -> None:
    """Root mean squares over all ids, against float32 over the same keys and values.

    The roundings of one network go one way or the other: a quarter is left to that.
    """
    exact_of, of = backend(torch.float32), backend(dtype)
    audio = encoded(of)
    kept = [(keys.float(), values.float()) for keys, values in of.keys_values(audio)]
    spans, ids = [span for each in SPANS for span in each], np.arange(300)
    same = TorchEncoderOutput(audio.states.float(), (30,), kept)
    exact = within(exact_of, same, spans, ids)
    ours = within(of, audio, spans, ids)
    parts = [TorchEncoderOutput(audio.states[:, first:last], (last - first,)) for first, last in spans]
    general = np.concatenate([read(of, part, [[5]], vocabulary=ids).logits[:, 0] for part in parts])
    assert ours.dtype == np.float32
    assert np.square(ours - exact).mean() ** 0.5 <= 1.25 * np.square(general - exact).mean() ** 0.5


def test_frames_outside_of_a_span_are_not_read() -> None:
    of = backend(torch.float32)
    audio = encoded(of)
    before = within(of, audio, [(8, 20)])
    for keys, values in of.keys_values(audio):
        keys[:, :, 20:], values[:, :, :8] = torch.nan, torch.nan
    assert np.array_equal(within(of, audio, [(8, 20)]), before)
