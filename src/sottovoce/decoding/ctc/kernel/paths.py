"""Compiled: passes over the emissions of an utterance: whether they are log-probabilities, the likeliest
path of given tokens, and the cut of the common prefix.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from sottovoce.decoding.ctc.kernel.beams import NEVER
from sottovoce.jit import compiled
from sottovoce.lm.base import Floats, Ints

_LEAST_SUM, _MOST_SUM = math.exp(-0.5), math.exp(0.5)
_MOST = 1e-2


@compiled
def are_plausible(log_probs: Floats, lengths: Ints) -> bool:
    """Tell whether every frame of log_probs (B, T, V) within lengths (B,) sums to about 1.

    False also for positive values and NaN, and in doubt: `emissions.checked` then checks every value.
    """
    for row in range(len(lengths)):
        for t in range(lengths[row]):
            total = sum_of_exp(log_probs[row, t])
            if not _LEAST_SUM < total < _MOST_SUM:
                return False
    return True


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def sum_of_exp(values: Floats) -> np.float32:
    """Approximate the sum of exp(values), values (V,), as (1 + x / 256) ** 256: a few percent low.

    Huge for a positive value.
    """
    total = np.float32(0.0)
    for i in range(len(values)):
        value = values[i]
        power = np.float32(1.0) + value * np.float32(1 / 256)
        power = np.float32(0.0) if power < np.float32(0.0) else power  # NaN stays
        power *= power
        power *= power
        power *= power
        power *= power
        power *= power
        power *= power
        power *= power
        power *= power
        total += power + (np.float32(100.0) if value > np.float32(_MOST) else np.float32(0.0))
    return total


_BAND = 300.0
"""Nats behind the best at which a state is dropped; where the end is not reached so, none is."""


@compiled
def align_rows(
    log_probs: Floats, lengths: Ints, tokens: Ints, n_tokens: Ints, rows: Ints, blanks: Ints
) -> tuple[Ints, Ints, Floats, Floats]:
    """Align tokens (N, L), n_tokens (N,) of each, to utterances rows (N,) of log_probs (B, T, V).

    blanks: labels (N, L + 1) of the blanks around tokens. Returns first frame, last frame and peak (N, L) of
    every token, and the score (N,) of the path.
    """
    first, last = np.zeros_like(tokens), np.zeros_like(tokens)
    peak = np.zeros(tokens.shape, np.float32)
    score = np.empty(len(tokens), np.float32)
    n_states = 2 * tokens.shape[1] + 1
    steps = np.empty((log_probs.shape[1], n_states), np.uint8)
    path = np.empty(n_states, np.float32)
    for i in range(len(tokens)):
        frames = log_probs[rows[i], : lengths[rows[i]]]
        labels = tokens[i, : n_tokens[i]]
        _best_path(frames, labels, blanks[i], path, steps, _BAND)
        place = 2 * len(labels)
        if path[place] == NEVER and (place == 0 or path[place - 1] == NEVER):
            _best_path(frames, labels, blanks[i], path, steps, np.inf)
        if place and path[place - 1] > path[place]:
            place -= 1
        score[i] = path[place]
        if score[i] > NEVER:  # where no path leads there, no steps were written
            _trace(frames, labels, place, steps, first[i], last[i], peak[i])
    return first, last, peak, score


@compiled
def _best_path(
    frames: Floats,
    labels: Ints,
    blanks: Ints,
    path: Floats,
    steps: np.ndarray,  # type: ignore[type-arg]
    band: float,
) -> None:
    """Find the best path to every state: scores path (S,) after the last frame, and steps (T, S).

    frames: (T, V). labels: (L,). blanks: (L + 1,), their labels. band: states this far (nats) behind the
    best of a frame are dropped.
    """
    n_states, low, high = 2 * len(labels) + 1, 0, 0
    path[:n_states] = NEVER
    path[0] = 0.0
    for t in range(len(frames)):
        high = min(n_states - 1, high + 2)  # no path is further than two states a frame
        top = NEVER
        for state in range(high, low - 1, -1):
            best, step = path[state], 0
            if state > 0 and path[state - 1] > best:
                best, step = path[state - 1], 1
            odd = state & 1
            if (
                odd
                and state > 1
                and labels[state >> 1] != labels[(state >> 1) - 1]
                and path[state - 2] > best
            ):
                best, step = path[state - 2], 2
            steps[t, state] = step
            path[state] = best + frames[t, labels[state >> 1] if odd else blanks[state >> 1]]
            top = max(top, path[state])
        least = top - np.float32(band)
        while low < high and path[low] < least:
            path[low] = NEVER
            low += 1
        while high > low and path[high] < least:
            path[high] = NEVER
            high -= 1


@compiled
def _trace(
    frames: Floats,
    labels: Ints,
    place: int,
    steps: np.ndarray,  # type: ignore[type-arg]
    first: Ints,
    last: Ints,
    peak: Floats,
) -> None:
    newest = -1
    for t in range(len(frames) - 1, -1, -1):
        if place & 1:
            token = place >> 1
            now = max(frames[t, labels[token]], np.float32(-1e30))
            if token != newest:
                newest, last[token], peak[token] = token, t, now
            first[token] = t
            peak[token] = max(peak[token], now)
        place -= steps[t, place]


@compiled
def common_cut_frames(
    frames: Floats, tokens: Ints, n_tokens: Ints, n_shared: int, blanks: Ints, margin: float, is_late: bool
) -> tuple[int, int]:
    """Find the cut of `align.common_cut`: the number of frames and of tokens before it.

    frames: (T, V). tokens: (N, L). n_tokens: (N,). blanks: (N, L + 1). margin: see `align.CUT_MARGIN`.
    """
    n_rows, n_frames, n_states = len(tokens), len(frames), 2 * tokens.shape[1] + 1
    steps = np.empty((n_rows, n_frames, n_states), np.uint8)
    path = np.empty(n_states, np.float32)
    rows, places, n_places = np.empty(n_rows * n_states, np.int64), np.empty(n_rows * n_states, np.int64), 0
    for i in range(n_rows):
        n_reached = 2 * n_tokens[i] + 1
        first = max(2 * n_tokens[i] - 1, 0) if is_late else 0
        _best_path(frames, tokens[i, : n_tokens[i]], blanks[i], path, steps[i], 1.5 * margin)
        if path[first:n_reached].max() == NEVER:
            _best_path(frames, tokens[i, : n_tokens[i]], blanks[i], path, steps[i], np.inf)
        least = path[first:n_reached].max() - np.float32(margin)
        for state in range(first, n_reached):
            if path[state] > least:
                rows[n_places], places[n_places] = i, state
                n_places += 1
    if n_places == 0:
        return 0, 0
    for t in range(n_frames, 0, -1):
        at, is_one = places[0], True
        for p in range(n_places):
            is_one = is_one and places[p] == at
        if is_one and at & 1 == 0 and at >> 1 <= n_shared:
            return t, at >> 1
        for p in range(n_places):
            places[p] -= steps[rows[p], t - 1, places[p]]
    return 0, 0
