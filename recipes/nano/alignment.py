"""Forced alignment of CTC emissions: the most likely path through a known text.

Used to show the decoder's heads where each token is spoken, and to measure them. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def align(log_probs: Floats, labels: Sequence[int], blank: int = 0) -> Floats:
    """Mean frame of each label on the best path: (len(labels),) float32, never decreasing.

    log_probs: (n_frames, V). Labels that cannot be reached (fewer frames than labels and repeats need)
    share the last frame. Source: Graves et al. 2006, section 4, with max for sum.
    """
    extended = np.full(2 * len(labels) + 1, blank)
    extended[1::2] = labels
    skips = np.zeros(len(extended), dtype=bool)
    skips[3::2] = extended[3::2] != extended[1:-2:2]
    states = _best_states(log_probs[:, extended], skips)
    frames = np.full(len(labels), len(log_probs) - 1, dtype=np.float32)
    for label in range(len(labels)):
        on = np.nonzero(states == 2 * label + 1)[0]
        if len(on):
            frames[label] = on.mean()
    return np.maximum.accumulate(frames)


def _best_states(scores: Floats, skips: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The best path (n_frames,) through scores (n_frames, n_states): stay, move on, or skip a blank."""
    n_frames, n_states = scores.shape
    moves = np.zeros((n_frames, n_states), dtype=np.int64)
    best = np.full(n_states, -np.inf)
    best[:2] = scores[0, :2]
    for frame in range(1, n_frames):
        previous = np.concatenate(([-np.inf, -np.inf], best))
        options = np.stack((best, previous[1:-1], np.where(skips, previous[:-2], -np.inf)))
        moves[frame] = options.argmax(axis=0)
        best = options.max(axis=0) + scores[frame]
    state = n_states - 1
    if n_states > 1 and best[-2] > best[-1]:
        state -= 1
    path = np.empty(n_frames, dtype=np.int64)
    for frame in range(n_frames - 1, -1, -1):
        path[frame] = state
        state -= moves[frame, state]
    return path
