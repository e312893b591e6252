"""Compiled: the likeliest path of each hypothesis; the recursion of `align.align`, one at a time."""

from __future__ import annotations

import numpy as np

from sottovoce.decoding.ctc.kernel.slots import NEVER
from sottovoce.jit import compiled
from sottovoce.lm.base import Floats, Ints


@compiled
def align_rows(
    log_probs: Floats, lengths: Ints, tokens: Ints, n_tokens: Ints, rows: Ints, blank: int
) -> tuple[Ints, Ints, Floats, Floats]:
    """First frame, last frame and peak (N, L), and score (N,) of tokens (N, L) in utterances `rows`."""
    first, last = np.zeros_like(tokens), np.zeros_like(tokens)
    peak = np.zeros(tokens.shape, np.float32)
    score = np.empty(len(tokens), np.float32)
    n_states = 2 * tokens.shape[1] + 1
    steps = np.empty((log_probs.shape[1], n_states), np.uint8)
    path = np.empty(n_states, np.float32)
    for i in range(len(tokens)):
        frames = log_probs[rows[i], : lengths[rows[i]]]
        said = tokens[i, : n_tokens[i]]
        _walk(frames, said, blank, path, steps)
        place = 2 * len(said)
        if place and path[place - 1] > path[place]:
            place -= 1
        score[i] = path[place]
        _trace(frames, said, place, steps, first[i], last[i], peak[i])
    return first, last, peak, score


@compiled
def _walk(frames: Floats, said: Ints, blank: int, path: Floats, steps: np.ndarray) -> None:  # type: ignore[type-arg]
    """Scores of the best path to every state after the last frame; how each was reached at each frame."""
    n_states = 2 * len(said) + 1
    path[:n_states] = NEVER
    path[0] = 0.0
    for t in range(len(frames)):
        # No path is further than two states a frame, nor so far back that it cannot reach the end.
        highest = min(n_states - 1, 2 * t + 1)
        for state in range(highest, -1, -1):
            best, step = path[state], 0
            if state > 0 and path[state - 1] > best:
                best, step = path[state - 1], 1
            odd = state & 1
            if odd and state > 1 and said[state >> 1] != said[(state >> 1) - 1] and path[state - 2] > best:
                best, step = path[state - 2], 2
            steps[t, state] = step
            path[state] = best + frames[t, said[state >> 1] if odd else blank]


@compiled
def _trace(
    frames: Floats,
    said: Ints,
    place: int,
    steps: np.ndarray,  # type: ignore[type-arg]
    first: Ints,
    last: Ints,
    peak: Floats,
) -> None:
    """Follow the steps back from a state after the last frame."""
    newest = -1
    for t in range(len(frames) - 1, -1, -1):
        if place & 1:
            token = place >> 1
            now = max(frames[t, said[token]], np.float32(-1e30))
            if token != newest:
                newest, last[token], peak[token] = token, t, now
            first[token] = t
            peak[token] = max(peak[token], now)
        place -= steps[t, place]
