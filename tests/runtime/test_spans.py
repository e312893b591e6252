"""Steps within spans of frames, in every number format."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sottovoce.models.backend import EncoderOutput
from sottovoce.models.checkpoint.base import BFLOAT16, Checkpoint, floats, with_dtype
from sottovoce.models.dims import Span
from sottovoce.runtime.torch import TorchBackend
from sottovoce.runtime.torch_encoder import TorchEncoderOutput
from sottovoce.types import Features, Floats, Ints
from tests.models.tiny import backend as tiny_backend
from tests.models.tiny import checkpoint, dims
from tests.runtime.reading import read, start, step

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
