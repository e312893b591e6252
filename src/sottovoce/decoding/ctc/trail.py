"""What beams said during a block of frames, without copying what they said before it.

A beam points to where its history lay when the block began, and keeps the few symbols since; histories are
put together once, when it ends. The search asks what a beam said at any place, as a prefix that was pruned
can be found again: pointers from frame to frame would have to be walked for that, these are followed in one
step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sottovoce.decoding.ctc.state import NOTHING, PrefixState

BLOCK_FRAMES = 16


class Trail:
    """The histories of a state's beams over at most n_frames further frames.

    Its memory (B, M) holds K histories of L places as they were; behind them, for every beam, its symbols
    since, whose first place is never read and whose last is never written (n_frames + 2 in all); and room to
    ask for any place.
    """

    def __init__(self, state: PrefixState, n_frames: int) -> None:
        n_batch, n_beams, n_places = state.symbols.shape
        device = state.length.device
        beams = torch.arange(n_beams, device=device)
        n_recent = n_frames + 2
        recent = state.symbols.new_full((n_batch, n_beams * n_recent + n_places), NOTHING)
        self._before = state.symbols
        self._memory = torch.cat((state.symbols.reshape(n_batch, -1), recent), dim=1)
        self._recent = self._memory[:, n_beams * n_places : -n_places].view(n_batch, n_beams, n_recent)
        self._own = beams * n_recent + n_beams * n_places  # where the recent symbols of a beam lie
        self._root = beams.expand(n_batch, -1)  # whose history it continues
        self._held = state.length  # symbols of that history

    def follow(self, source: Tensor, length: Tensor, last: Tensor) -> None:
        """Beams continue those of source (B, K), and end in the symbols last, at places length."""
        self._root, self._held = self._root.gather(1, source), self._held.gather(1, source)
        kept = self._recent.gather(1, source[:, :, None].expand(self._recent.shape))
        self._recent.copy_(kept.scatter_(2, (length - self._held)[:, :, None], last[:, :, None]))

    def said(self, places: Tensor) -> Tensor:
        """What every beam said at places (B, P): (B, K, P); `NOTHING` at the one after its last.

        Further on there may be anything.
        """
        held, wanted = self._held[:, :, None], places[:, None, :]
        before = (self._root * self._before.shape[2])[:, :, None]
        since = (self._own - self._held)[:, :, None]
        address = torch.where(wanted <= held, before, since).add_(wanted)
        return self._memory.gather(1, address.flatten(1)).view(address.shape)

    def histories(self) -> Tensor:
        """All symbols (B, K, L) of every beam."""
        n_batch, n_beams, n_places = self._before.shape
        first = torch.arange(0, n_batch * n_beams, n_beams, device=self._root.device)[:, None]
        whole = self._before.reshape(-1, n_places).index_select(0, (self._root + first).flatten())
        since = self._recent[:, :, 1:-1]
        places = torch.arange(1, since.shape[2] + 1, device=since.device) + self._held[:, :, None]
        # Past the end of a history there is nothing to write.
        places.clamp_(max=n_places - 1)
        return whole.view(n_batch, n_beams, n_places).scatter_(2, places, since)
