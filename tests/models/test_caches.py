"""The buffers of rows, and steps within spans of frames in every number format."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sottovoce.models import caches
from sottovoce.models.backend import Span
from sottovoce.models.caches import FIRST_CAPACITY, RowBuffers
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.runtime.torch import TorchBackend
from sottovoce.types import EncoderOutput, Features
from tests.models.tiny import CPU, checkpoint, dims
from tests.models.tiny import backend as tiny_backend
from tests.runtime.reading import read, start, step


def buffers() -> RowBuffers:
    return RowBuffers(dims(n_text_layer=2, n_text_state=8, n_text_head=2), torch.float32, CPU)


@given(st.lists(st.lists(st.integers(0, 4), max_size=5), max_size=6), st.data())
def test_rows_keep_their_own_positions(steps: list[list[int]], data: st.DataObject) -> None:
    """Through any order of rows that join, branch, move, leave and grow."""
    of_rows: list[list[float]] = []
    memory, counter = buffers(), itertools.count(1)
    for n_new in steps:
        memory.add(None)
        of_rows.append([])
        n_new = (n_new * len(of_rows) or [1] * len(of_rows))[: len(of_rows)]
        longest = max(len(row) + n for row, n in zip(of_rows, n_new, strict=True))
        memory.make_room(longest * FIRST_CAPACITY)
        for place, (row, n) in enumerate(zip(of_rows, n_new, strict=True)):
            new = [float(next(counter)) for _ in range(n)]
            for layer in memory.layers:
                layer[:, place, :, len(row) : len(row) + n] = torch.tensor(new)[:, None]
            row += new
            memory.lengths[place] = len(row)
        chosen = data.draw(st.lists(st.integers(0, len(of_rows) - 1), min_size=1, max_size=7))
        memory.select(chosen)
        of_rows = [list(of_rows[row]) for row in chosen]
    for place, row in enumerate(of_rows):
        for first in memory.first(place, 100):
            assert first[0, 0, :, 0].tolist() == first[1, 1, :, 3].tolist() == row


WIDE = dims(n_audio_state=64, n_text_state=64, n_text_head=2)
IDS = torch.tensor([3, 17, 259, 50, 299])
SPANS = [
    [(0, 30)],
    [(7, 8), (0, 30)],
    [(3, 9), (20, 30), (0, 30)],
    [(3, 9), (29, 30), (14, 21), (2, 4), (8, 28)],
]


def backend(dtype: torch.dtype, *, int8: bool = False) -> TorchBackend:
    """Weights that lose nothing when they are kept in bfloat16."""
    whole = checkpoint(WIDE)
    tensors = {name: tensor.bfloat16().float() for name, tensor in whole.tensors.items()}
    rounded = Checkpoint(whole.name, whole.dims, tensors, whole.alignment_heads)
    return tiny_backend(rounded, dtype=dtype, int8=int8)


def encoded(of: TorchBackend) -> EncoderOutput:
    generator = torch.Generator().manual_seed(1)
    return of.encode(Features(torch.randn(1, 80, 60, generator=generator), (60,)))


def within(of: TorchBackend, audio: EncoderOutput, spans: list[Span], ids: Tensor = IDS) -> Tensor:
    return step(start(of, audio, len(spans)), [[5]] * len(spans), vocabulary=ids, spans=spans).logits[:, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_errs_no_more_within_a_span_than_without(dtype: torch.dtype) -> None:
    """Root mean squares over all ids, against float32 over the same keys and values.

    The roundings of one network go one way or the other: a quarter is left to that.
    """
    exact_of, of = backend(torch.float32), backend(dtype)
    audio = encoded(of)
    kept = [(keys.float(), values.float()) for keys, values in of.keys_values(audio)]
    spans, ids = [span for each in SPANS for span in each], torch.arange(300)
    same = EncoderOutput(audio.states.float(), (30,), kept)
    exact = within(exact_of, same, spans, ids)
    ours = within(of, audio, spans, ids)
    parts = [EncoderOutput(audio.states[:, first:last], (last - first,)) for first, last in spans]
    general = torch.cat([read(of, part, [[5]], vocabulary=ids).logits[:, 0] for part in parts])
    assert ours.dtype == torch.float32
    assert (ours - exact).square().mean() ** 0.5 <= 1.25 * (general - exact).square().mean() ** 0.5


def test_frames_outside_of_a_span_are_not_read() -> None:
    of = backend(torch.float32)
    audio = encoded(of)
    before = within(of, audio, [(8, 20)])
    for keys, values in of.keys_values(audio):
        keys[:, :, 20:], values[:, :, :8] = torch.nan, torch.nan
    assert torch.equal(within(of, audio, [(8, 20)]), before)


def test_masked_spans_equal_sliced_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an accelerator."""
    of = backend(torch.float32)
    audio = replace(encoded(of), log_weights=torch.rand(1, 30))
    sliced = [within(of, audio, spans) for spans in SPANS]
    monkeypatch.setattr(caches, "slices_spans", lambda _: False)
    for spans, expected in zip(SPANS, sliced, strict=True):
        torch.testing.assert_close(within(of, audio, spans), expected, atol=2e-5, rtol=0)
