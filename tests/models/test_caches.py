"""The cache's masks and positions, the folding of rows, and the first token without a cache, which is the
general step's in every number format.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sottovoce.models.caches import FIRST_CAPACITY, DecoderCache, RowGroups
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.runtime.torch import TorchBackend, first_step_by_bias
from sottovoce.types import EncoderOutput, Features
from tests.models.tiny import CPU, checkpoint, dims
from tests.models.tiny import backend as tiny_backend


def cache(n_rows: int = 3, left_padding: Tensor | None = None) -> DecoderCache:
    small = dims(n_text_layer=2, n_text_state=8, n_text_head=2)
    return DecoderCache(small, n_rows, dtype=torch.float32, device=CPU, left_padding=left_padding)


def read(memory: DecoderCache, n_new: int) -> Tensor:
    new = torch.randn(memory.n_rows, 2, n_new, 4)
    for layer in range(2):
        memory.append(layer, new, -new)
    memory.advance(n_new)
    return new


def test_what_was_appended_comes_back_over_several_doublings() -> None:
    memory = cache()
    parts = [read(memory, n) for n in (1, 5, FIRST_CAPACITY, 1, 3 * FIRST_CAPACITY)]
    last = torch.randn(3, 2, 1, 4)
    keys, values = memory.append(1, last, -last)
    assert torch.equal(keys, torch.cat([*parts, last], dim=2))
    assert torch.equal(values, -keys)


def test_padding_has_no_position_and_is_never_seen() -> None:
    memory = cache(left_padding=torch.tensor([0, 2, 3]))
    assert memory.positions(4).tolist() == [[0, 1, 2, 3], [0, 0, 0, 1], [0, 0, 0, 0]]
    mask = memory.mask(4)
    assert mask[0, 0].tolist() == torch.ones(4, 4).tril().bool().tolist()
    assert mask[1, 0, 2:].tolist() == [[False, False, True, False], [False, False, True, True]]
    assert mask.any(dim=-1).all()
    read(memory, 4)
    assert memory.positions(1).tolist() == [[4], [2], [1]]
    later = memory.mask(1)
    assert later[:, 0, 0].tolist() == [[True] * 5, [False, False, True, True, True], [False] * 3 + [True] * 2]


def test_padding_follows_its_rows() -> None:
    memory = cache(left_padding=torch.tensor([0, 2, 3]))
    read(memory, 4)
    memory.reorder(torch.tensor([2, 1]))
    assert memory.least_padding == 2
    assert memory.positions(1).tolist() == [[1], [2]]


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), min_size=1, max_size=9))
    ),
    st.integers(1, 3),
)
def test_unfold_undoes_fold(rows: tuple[int, list[int]], n_new: int) -> None:
    n_audio, audio = rows
    groups = RowGroups.of(audio, n_audio, CPU)
    x = torch.arange(len(audio) * n_new * 2, dtype=torch.float32).reshape(len(audio), n_new, 2) + 1
    folded = groups.fold(x)
    assert torch.equal(groups.unfold(folded), x)
    for index in range(n_audio):
        mine = x[[row for row, of in enumerate(audio) if of == index]].reshape(-1, 2)
        found = folded[index][folded[index].any(dim=-1)]
        assert torch.equal(found, mine)


@pytest.mark.parametrize(("audio", "moved"), [([0, 0, 1, 1], False), ([0, 1, 0, 1], True), ([0, 0, 1], True)])
def test_only_rows_out_of_order_are_moved(audio: list[int], moved: bool) -> None:
    assert (RowGroups.of(audio, 2, CPU).slots is not None) is moved


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
    return tiny_backend(rounded, dtype=dtype, int8=int8)


def encoded(of: TorchBackend) -> EncoderOutput:
    generator = torch.Generator().manual_seed(1)
    return of.encode(Features(torch.randn(1, 80, 60, generator=generator), (60,)))


def asked(of: TorchBackend, audio: EncoderOutput, spans: list[tuple[int, int]]) -> Tensor:
    return of.first_step(audio, spans, token=5, vocabulary=ROWS)


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


def test_frames_outside_of_a_span_are_not_read() -> None:
    of = backend(torch.float32)
    audio = encoded(of)
    before = asked(of, audio, [(8, 20)])
    for keys, values in of.keys_values(audio):
        keys[:, :, 20:], values[:, :, :8] = torch.nan, torch.nan
    assert torch.equal(asked(of, audio, [(8, 20)]), before)
