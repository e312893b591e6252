"""The cache's masks and positions, and the folding of rows, by what they mean."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sottovoce.models.caches import FIRST_CAPACITY, CacheShape, DecoderCache, RowGroups

CPU = torch.device("cpu")


def cache(n_rows: int = 3, left_padding: Tensor | None = None) -> DecoderCache:
    shape = CacheShape(n_layer=2, n_rows=n_rows, n_head=2, d_head=4)
    return DecoderCache(shape, dtype=torch.float32, device=CPU, left_padding=left_padding)


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


def test_a_fork_of_an_empty_cache_can_be_filled() -> None:
    fork = cache().fork()
    new = read(fork, 2)
    keys, _ = fork.append(0, new, new)
    assert torch.equal(keys[:, :, :2], new)


def test_padding_has_no_position_and_is_never_seen() -> None:
    memory = cache(left_padding=torch.tensor([0, 2, 3]))
    assert memory.positions(4).tolist() == [[0, 1, 2, 3], [0, 0, 0, 1], [0, 0, 0, 0]]
    mask = memory.mask(4)
    assert mask is not None
    assert mask[0, 0].tolist() == torch.ones(4, 4).tril().bool().tolist()
    assert mask[1, 0, 2:].tolist() == [[False, False, True, False], [False, False, True, True]]
    assert mask.any(dim=-1).all()
    read(memory, 4)
    assert memory.positions(1).tolist() == [[4], [2], [1]]
    later = memory.mask(1)
    assert later is not None
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
