"""The common prefix of all beams of a running utterance, and the frame at which it can be cut off.

Beams only grow at their ends, so their common prefix is final. Its times are final where the likeliest paths
to all states that can still win have met: paths are followed back from the newest frame until all are in one
state. It must be a blank, so that the rest can be aligned by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sottovoce.decoding.ctc.align import best_paths
from sottovoce.decoding.ctc.state import NEVER, PrefixState
from sottovoce.lm.base import Ints

LEAST_SHARED = 8
"""Symbols that all beams must share before they are aligned."""
MARGIN = 40.0
"""Nats by which a state may be behind the best and still win."""


class Cut(NamedTuple):
    """Where paths meet: the number of frames before it, and of tokens in them."""

    n_frames: int
    n_tokens: int


NO_CUT = Cut(0, 0)


def shared_symbols(state: PrefixState, row: int) -> int:
    """Count the symbols that all living beams of an utterance begin with."""
    alive = state.is_alive[row].nonzero()[:, 0]
    if not len(alive):
        return 0
    symbols = state.symbols[row, alive, 1 : int(state.length[row, alive].min()) + 1]
    differs = (symbols != symbols[:1]).any(dim=0).nonzero()
    return int(differs[0, 0]) if len(differs) else symbols.shape[1]


def common_cut(
    log_probs: Tensor,
    tokens: Tensor,
    n_tokens: Tensor,
    *,
    n_shared: int,
    blank: int | Tensor,
    is_late: bool = False,
) -> Cut:
    """Find the latest blank that all paths pass after at most n_shared tokens; `NO_CUT` without one.

    log_probs: (T, V). tokens: (N, L) int64 of all beams, of which n_tokens (N,) count. blank: see
    `align.align`. is_late: only paths that have passed all of their tokens count.
    """
    n_rows, n_frames = len(tokens), len(log_probs)
    rows = torch.zeros(n_rows, dtype=torch.int64, device=tokens.device)
    steps, score = best_paths(log_probs[None], rows + n_frames, tokens, rows=rows, blank=blank)
    states = torch.arange(score.shape[1], device=score.device)
    score = score.masked_fill(states > 2 * n_tokens[:, None], NEVER)
    if is_late:
        score = score.masked_fill(states < 2 * n_tokens[:, None] - 1, NEVER)
    plausible = (score > score.amax(dim=1, keepdim=True) - MARGIN).cpu().numpy()
    row, place = np.nonzero(plausible)
    return _met(steps.cpu().numpy(), row, place, n_shared)


def _met(steps: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], row: Ints, place: Ints, most: int) -> Cut:
    """Follow paths back from their states until they meet in a blank after at most `most` tokens."""
    if not len(place):
        return NO_CUT
    for t in range(len(steps), 0, -1):
        at = int(place[0])
        if at % 2 == 0 and at // 2 <= most and bool((place == at).all()):
            return Cut(t, at // 2)
        place = place - steps[t - 1, row, place]
    return NO_CUT
