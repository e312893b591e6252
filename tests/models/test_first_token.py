"""The first token without a cache: the general step's answer in every number format, stretch by stretch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sottovoce.backends.base import first_step_by_bias
from sottovoce.backends.torch import TorchBackend
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.types import EncoderOutput, Features
from tests.models.tiny import CPU, checkpoint, dims

WIDE = dims(n_audio_state=64, n_text_state=64, n_text_head=2)
ROWS = torch.tensor([3, 17, 259, 50, 299])
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
    return TorchBackend.from_checkpoint(rounded, device=CPU, dtype=dtype, int8=int8)


def encoded(of: TorchBackend) -> EncoderOutput:
    generator = torch.Generator().manual_seed(1)
    return of.encode(Features(torch.randn(1, 80, 60, generator=generator), (60,)))


def asked(of: TorchBackend, audio: EncoderOutput, spans: list[tuple[int, int]]) -> Tensor:
    return of.first_step(audio, spans, token=5, vocabulary=ROWS)


@pytest.mark.parametrize("spans", SPANS)
def test_float32_says_what_the_general_step_says(spans: list[tuple[int, int]]) -> None:
    of = backend(torch.float32)
    audio = encoded(of)
    general = first_step_by_bias(of, audio, spans, token=5, vocabulary=ROWS)
    torch.testing.assert_close(asked(of, audio, spans), general, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_errs_no_more_than_the_general_step(dtype: torch.dtype) -> None:
    """Root mean squares over all rows of the vocabulary, against float32 over the same keys and values.

    The roundings of one network go one way or the other: a quarter is left to that.
    """
    exact_of, of = backend(torch.float32), backend(dtype)
    audio = encoded(of)
    kept = [(keys.float(), values.float()) for keys, values in of.keys_values(audio)]
    spans, rows = [span for each in SPANS for span in each], torch.arange(300)
    alike = EncoderOutput(audio.states.float(), (30,), kept)
    exact = exact_of.first_step(alike, spans, token=5, vocabulary=rows)
    ours = of.first_step(audio, spans, token=5, vocabulary=rows)
    general = first_step_by_bias(of, audio, spans, token=5, vocabulary=rows)
    assert ours.dtype == torch.float32
    assert (ours - exact).square().mean() ** 0.5 <= 1.25 * (general - exact).square().mean() ** 0.5


def test_int8_tables_say_what_the_general_step_says() -> None:
    """A row more or less changes how int8 tables are multiplied, so that the last bits differ."""
    of = backend(torch.float32, int8=True)
    audio = encoded(of)
    general = first_step_by_bias(of, audio, SPANS[3], token=5, vocabulary=ROWS)
    torch.testing.assert_close(asked(of, audio, SPANS[3]), general, atol=0.02 * float(general.std()), rtol=0)


def test_each_row_is_the_same_alone_and_beside_others() -> None:
    of = backend(torch.float32)
    audio = encoded(of)
    together = asked(of, audio, SPANS[3])
    alone = torch.cat([asked(of, audio, [span]) for span in SPANS[3]])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_frames_outside_of_a_span_are_not_read() -> None:
    of = backend(torch.float32)
    audio = encoded(of)
    before = asked(of, audio, [(8, 20)])
    for keys, values in of.keys_values(audio):
        keys[:, :, 20:], values[:, :, :8] = torch.nan, torch.nan
    assert torch.equal(asked(of, audio, [(8, 20)]), before)
