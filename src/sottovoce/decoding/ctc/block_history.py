"""Histories of beams over a block of frames, without copying what precedes it.

A beam points to its history at the beginning of the block and stores the few symbols since; histories are
joined once, at the end of the block. The search looks up symbols at any position, since a pruned prefix can
be found again: back-pointers by frame would have to be walked for that, these are followed in one step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sottovoce.decoding.ctc.state import NOTHING, PrefixState

BLOCK_FRAMES = 16


class BlockHistory:
    """The histories of a state's beams over at most n_frames further frames.

    The memory is one tensor: B * K histories of L positions from before the block; then for every beam its
    symbols since (n_frames + 2, the first never read, the last never written); then room to read any
    position. Pointers are (B * K,).
    """

    def __init__(self, state: PrefixState, n_frames: int) -> None:
        n_batch, n_beams, n_places = state.symbols.shape
        beams = torch.arange(n_batch * n_beams, device=state.length.device)
        n_recent, n_before = n_frames + 2, len(beams) * n_places
        since = state.symbols.new_full((len(beams) * n_recent + n_places,), NOTHING)
        self._shape = state.symbols.shape
        self._memory = torch.cat((state.symbols.flatten(), since))
        self._recent = self._memory[n_before:-n_places].view(-1, n_recent)
        self._first = beams[::n_beams, None]  # of every utterance
        self._own = beams * n_recent + n_before  # where the recent symbols of a beam lie
        self._root = beams * n_places  # where the history lies that it continues
        self._held = state.length.flatten()  # symbols of that history

    def advance(self, source: Tensor, length: Tensor, last: Tensor) -> None:
        """Let new beams continue those of source (B, K) with symbols last (B, K) at positions length (B,
        K).
        """
        rows = (source + self._first).flatten()
        self._root, self._held = self._root.index_select(0, rows), self._held.index_select(0, rows)
        recent = self._recent.index_select(0, rows)
        place = length.flatten() - self._held
        self._recent.copy_(recent.scatter_(1, place[:, None], last.view(-1, 1)))

    def symbols_at(self, places: Tensor) -> Tensor:
        """Look up the symbols (B, K, P) of every beam at positions (B, P).

        `NOTHING` at the position after a beam's last; beyond it any value.
        """
        n_batch, n_beams, _ = self._shape
        held, root, own = (
            each.view(n_batch, n_beams, 1) for each in (self._held, self._root, self._own - self._held)
        )
        wanted = places[:, None, :]
        address = torch.where(wanted <= held, root, own).add_(wanted)
        return self._memory.index_select(0, address.flatten()).view(address.shape)

    def histories(self) -> Tensor:
        """Join the histories: all symbols (B, K, L) of every beam."""
        n_rows, n_places = len(self._root), self._shape[2]
        before = self._memory[: n_rows * n_places].view(n_rows, n_places)
        whole = before.index_select(0, self._root // n_places)
        since = self._recent[:, 1:-1]
        places = torch.arange(1, since.shape[1] + 1, device=since.device) + self._held[:, None]
        # CommittedHistory the end of a history there is nothing to write.
        return whole.scatter_(1, places.clamp_(max=n_places - 1), since).view(self._shape)
