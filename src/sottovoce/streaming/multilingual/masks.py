"""The language timeline over a window: whose frames are whose, and as a mask on cross-attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sottovoce.language.switching import SmoothingOptions, smoothed
from sottovoce.language.timeline import TimelineFrame
from sottovoce.streaming.audio_window import AudioWindow, quietest_border
from sottovoce.types import FRAMES_PER_SECOND

SHARE_FLOOR = 1e-3
"""Least share of a language, in logs and ratios."""
MAX_PENALTY = 15.0
"""Largest penalty of a masked frame (a logit): attention of e^-15 is as good as none."""
Shares = npt.NDArray[np.float64]
"""(n_frames, L): how much of each frame of a window is each language's."""


@dataclass(frozen=True, slots=True)
class LanguageMask:
    """How the timeline masks a decoder row. A frame's owner is never masked, so no softmax is empty.

    strength: factor on the log of a frame's share over the largest share there; inf: all or nothing.
    margin_s: a row may attend this far beyond its language's frames.
    """

    strength: float
    margin_s: float

    def bias(self, shares: Shares, language: int) -> npt.NDArray[np.float64]:
        """Return what is added to the attention of a language's row: (n_frames,), from -MAX_PENALTY to 0."""
        ratio = self._ratio(shares, language)
        if np.isinf(self.strength):
            return np.where(ratio >= 1.0, 0.0, -MAX_PENALTY)
        bias: npt.NDArray[np.float64] = np.maximum(self.strength * np.log(ratio), -MAX_PENALTY)
        return bias

    def open_to(self, shares: Shares, language: int) -> npt.NDArray[np.bool_]:
        """Return the frames (n_frames,) that a language owns, with the margin around them."""
        owned: npt.NDArray[np.bool_] = self._ratio(shares, language) >= 1.0
        return owned

    def _ratio(self, shares: Shares, language: int) -> npt.NDArray[np.float64]:
        """Return share over largest share (n_frames,), the best within the margin."""
        ratio: npt.NDArray[np.float64] = ownership(shares)[:, language]
        reach = round(self.margin_s * FRAMES_PER_SECOND)
        if reach and len(ratio):
            padded = np.pad(ratio, reach, mode="edge")
            ratio = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).max(axis=1)
        return ratio


def ownership(shares: Shares) -> Shares:
    """Return each share over the largest share of its frame (n_frames, L): 1 for the owner."""
    floored = np.maximum(shares, SHARE_FLOOR)
    owned: Shares = floored / floored.max(axis=1, keepdims=True)
    return owned


def owning_languages(shares: Shares) -> npt.NDArray[np.bool_]:
    """Return which languages own each frame: (n_frames, L)."""
    owning: npt.NDArray[np.bool_] = ownership(shares) >= 1.0
    return owning


def snap_borders(shares: Shares, loud: npt.NDArray[np.float64], reach: int) -> Shares:
    """Move borders between owners to where it is quietest, at most `reach` frames away; they keep their
    order.

    The probe finds a border to some tenths of a second, and words end where it is quiet more often than not.
    loud: (n_frames,), see `audio_window.loudness`.
    """
    owner = shares.argmax(axis=1)
    borders = (np.flatnonzero(owner[1:] != owner[:-1]) + 1).tolist()
    moved, first = shares.copy(), 1
    for border, after in pairwise([*borders, len(shares)]):
        best = quietest_border(loud[:after], border, reach, least=first)
        moved[best:border] = shares[border]
        moved[border:best] = shares[border - 1]
        first = best + 1
    return moved


def pin_committed(shares: Shares, window: AudioWindow, words: Sequence[tuple[int, float, float]]) -> Shares:
    """Give the audio up to the end of the last committed word to the languages of the words.

    words: (language, start_s, end_s) each. A word's attention is shorter than the word, so the pause between
    two is shared by halves, and what lies before the first is its language's.
    """
    pinned = shares.copy()
    first = 0
    for i, (language, _, end_s) in enumerate(words):
        until_s = (end_s + max(end_s, words[i + 1][1])) / 2 if i + 1 < len(words) else end_s
        last = max(first, window.frame(until_s))
        pinned[first:last] = 0.0
        pinned[first:last, language] = 1.0
        first = last
    return pinned


def interpolated_shares(
    frames: Sequence[TimelineFrame],
    window: AudioWindow,
    belief: Sequence[float],
    smoothing: SmoothingOptions,
) -> Shares:
    """Return the timeline at every frame of a window, linear between the middles of probed stretches.

    belief: (L,), used if no stretch of the window was probed. smoothing: of the stretches, in both
    directions.
    """
    within = [frame for frame in frames if frame.end_s > window.start_s]
    if not within:
        return np.tile(np.asarray(belief, dtype=np.float64), (window.n_frames, 1))
    centres = np.array([frame.centre_s for frame in within])
    table = smoothed(np.stack([frame.posterior for frame in within]), smoothing)
    at = window.start_s + (np.arange(window.n_frames) + 0.5) / FRAMES_PER_SECOND
    return np.stack([np.interp(at, centres, table[:, i]) for i in range(len(belief))], axis=1)
