"""Histories by pointers: what a frame writes does not grow with what was said before it."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sottovoce.decoding.ctc.prefix_search import BLOCK_FRAMES, BlockHistory, PrefixSearch
from sottovoce.decoding.ctc.state import NOTHING, PrefixState, first_state

META = torch.device("meta")
N_BATCH, N_BEAMS, N_FRAMES = 4, 16, 2 * BLOCK_FRAMES


class Written(TorchDispatchMode):
    """Counts the bytes of what operations make or write, views aside."""

    n_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        returned = func._schema.returns
        is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in returned)
        parts = [] if is_view else [part for part in tree_leaves(made) if isinstance(part, torch.Tensor)]
        self.n_bytes += sum(part.numel() * part.element_size() for part in parts)
        return made


def n_written(n_places: int) -> int:
    """Bytes that the search writes in two blocks of frames, with histories of so many places."""
    search = PrefixSearch(32, 0, N_BEAMS)
    state = search.start(N_BATCH, META)
    state.reserve(n_places - 1)
    emissions = torch.empty((N_BATCH, N_FRAMES, 32), device=META)
    lengths = torch.empty(N_BATCH, dtype=torch.int64, device=META)
    with Written() as written:
        search.run(state, emissions, lengths, N_FRAMES)
    return written.n_bytes


def test_long_histories_are_copied_once_a_block() -> None:
    more = n_written(2048) - n_written(1024)
    n_bytes = N_BATCH * N_BEAMS * 1024 * 8  # of that much more history
    per_block = more / (N_FRAMES // BLOCK_FRAMES) / n_bytes
    assert per_block < 5, "a few copies of each history a block, not one or more a frame"


def copied(state: PrefixState, source: torch.Tensor, extends: torch.Tensor, symbols: torch.Tensor) -> None:
    """What the history stands for: histories that are copied at every frame."""
    rows = state.symbols.gather(1, source[:, :, None].expand(state.symbols.shape))
    state.length = state.length.gather(1, source) + extends
    state.last = torch.where(extends, symbols, state.last.gather(1, source))
    state.symbols = rows.scatter(2, state.length[:, :, None], state.last[:, :, None])


@pytest.mark.parametrize("n_frames", [1, 5, BLOCK_FRAMES])
def test_a_block_history_equals_copied_histories(n_frames: int) -> None:
    random = torch.Generator().manual_seed(n_frames)
    n_batch, n_beams = 3, 6
    state = first_state(n_batch, n_beams, 0, torch.zeros((n_batch * n_beams, 0), dtype=torch.int64))
    state.reserve(4 * n_frames + 1)
    for _ in range(4):
        history = BlockHistory(state, n_frames)
        for _ in range(n_frames):
            source = torch.randint(0, n_beams, (n_batch, n_beams), generator=random)
            extends = torch.rand((n_batch, n_beams), generator=random) < 0.7
            symbols = torch.randint(1, 50, (n_batch, n_beams), generator=random)
            copied(state, source, extends, symbols)
            history.advance(source, state.length, state.last)
            said = state.symbols.gather(2, state.length[:, None, :].expand(-1, n_beams, -1))
            reached = state.length[:, None, :] <= state.length[:, :, None] + 1
            assert torch.equal(history.symbols_at(state.length)[reached], said[reached])
        assert torch.equal(history.histories(), state.symbols)
        assert (state.symbols[:, :, -1] == NOTHING).all()
