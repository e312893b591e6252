"""What of a running utterance is settled: the symbols that all beams share, and when they were said.

Beams only grow at their ends, so what all of them begin with stays. When it was said is settled where the
likeliest paths to all states that can still win have come together: they are followed back from the newest
frame until they stand at one place. That place must be a blank, so that the rest can be aligned by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sottovoce.decoding.ctc.align import walk
from sottovoce.decoding.ctc.state import NEVER, PrefixState
from sottovoce.lm.base import Ints

LEAST_SHARED = 8
"""Symbols that all beams must share before it is looked when they were said."""
MARGIN = 40.0
"""Nats by which a state may be behind the best and still win."""


class Cut(NamedTuple):
    """Where paths come together: the first frame that is not settled, and how many tokens come before it."""

    n_frames: int
    n_tokens: int


NO_CUT = Cut(0, 0)


def shared_symbols(state: PrefixState, row: int) -> int:
    """How many symbols all living beams of an utterance begin with."""
    alive = state.is_alive[row].nonzero()[:, 0]
    if not len(alive):
        return 0
    said = state.symbols[row, alive, 1 : int(state.length[row, alive].min()) + 1]
    differs = (said != said[:1]).any(dim=0).nonzero()
    return int(differs[0, 0]) if len(differs) else said.shape[1]


def settled(
    log_probs: Tensor, tokens: Tensor, n_tokens: Tensor, *, n_shared: int, blank: int, is_late: bool = False
) -> Cut:
    """The latest blank that all paths pass after at most n_shared tokens.

    log_probs: (T, V). tokens: (N, L) of all beams, of which n_tokens (N,) count. is_late: only paths that
    have said all of their tokens count.
    """
    n_rows, n_frames = len(tokens), len(log_probs)
    rows = torch.zeros(n_rows, dtype=torch.int64, device=tokens.device)
    steps, score = walk(log_probs[None], rows + n_frames, tokens, rows=rows, blank=blank)
    states = torch.arange(score.shape[1], device=score.device)
    score = score.masked_fill(states > 2 * n_tokens[:, None], NEVER)
    if is_late:
        score = score.masked_fill(states < 2 * n_tokens[:, None] - 1, NEVER)
    plausible = (score > score.amax(dim=1, keepdim=True) - MARGIN).cpu().numpy()
    row, place = np.nonzero(plausible)
    return _met(steps.cpu().numpy(), row, place, n_shared)


def _met(steps: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], row: Ints, place: Ints, most: int) -> Cut:
    """Follow paths back from their places until they meet in the blank after at most `most` tokens."""
    if not len(place):
        return NO_CUT
    for t in range(len(steps), 0, -1):
        at = int(place[0])
        if at % 2 == 0 and at // 2 <= most and bool((place == at).all()):
            return Cut(t, at // 2)
        place = place - steps[t - 1, row, place]
    return NO_CUT
