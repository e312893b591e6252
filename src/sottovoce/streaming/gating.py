"""Which frames a language's decoder may listen to: the language timeline as a mask on the attention.

Not known here: models, words, and how the timeline comes about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sottovoce.language.smoothing import SmoothingOptions, smoothed
from sottovoce.language.timeline import TimelineFrame
from sottovoce.streaming.window import Window, quietest_border
from sottovoce.types import FRAMES_PER_SECOND

LEAST_SHARE = 1e-3
Shares = npt.NDArray[np.float64]
"""(n_frames, L): how much of each frame of a window is each language's."""


@dataclass(frozen=True, slots=True)
class Gate:
    """How the timeline masks a row. A frame's owner is never held back, so no softmax is empty.

    strength: factor on the log of a frame's share over the largest share there; inf: all or nothing.
    most: the largest penalty (a logit); what is hidden this much is as good as gone.
    margin_s: a row may listen so far beyond its own stretches.
    """

    strength: float
    most: float
    margin_s: float

    def bias(self, shares: Shares, language: int) -> npt.NDArray[np.float64]:
        """Penalties (n_frames,) at most 0 for the attention of a language's row."""
        ratio = self._ratio(shares, language)
        if np.isinf(self.strength):
            return np.where(ratio >= 1.0, 0.0, -self.most)
        bias: npt.NDArray[np.float64] = np.maximum(self.strength * np.log(ratio), -self.most)
        return bias

    def open_to(self, shares: Shares, language: int) -> npt.NDArray[np.bool_]:
        """Frames (n_frames,) that a language owns, or that lie within the margin of its own."""
        owned: npt.NDArray[np.bool_] = self._ratio(shares, language) >= 1.0
        return owned

    def _ratio(self, shares: Shares, language: int) -> npt.NDArray[np.float64]:
        """Share over the largest share, at the best frame within the margin."""
        ratio: npt.NDArray[np.float64] = ownership(shares)[:, language]
        reach = round(self.margin_s * FRAMES_PER_SECOND)
        if reach and len(ratio):
            padded = np.pad(ratio, reach, mode="edge")
            ratio = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).max(axis=1)
        return ratio


def ownership(shares: Shares) -> Shares:
    """Each share over the largest share of its frame: 1 for the owner. Source of the floor: LEAST_SHARE."""
    floored = np.maximum(shares, LEAST_SHARE)
    owned: Shares = floored / floored.max(axis=1, keepdims=True)
    return owned


def owners(shares: Shares) -> npt.NDArray[np.bool_]:
    """Which languages own each frame: (n_frames, L)."""
    owning: npt.NDArray[np.bool_] = ownership(shares) >= 1.0
    return owning


def snapped(shares: Shares, loudness: npt.NDArray[np.float64], reach: int) -> Shares:
    """Shares whose owners change where it is quietest, at most `reach` frames from where they did.

    The probe finds a border to some tenths of a second, and words end where it is quiet more often than
    not. loudness: (n_frames,), see `quietest_border`. Borders keep their order.
    """
    owner = shares.argmax(axis=1)
    borders = (np.flatnonzero(owner[1:] != owner[:-1]) + 1).tolist()
    moved, first = shares.copy(), 1
    for border, after in pairwise([*borders, len(shares)]):
        best = quietest_border(loudness[:after], border, reach, least=first)
        moved[best:border] = shares[border]
        moved[border:best] = shares[border - 1]
        first = best + 1
    return moved


def settled(shares: Shares, window: Window, words: Sequence[tuple[int, float, float]]) -> Shares:
    """Shares in which the audio of committed words (language, start, end in seconds) is their language's.

    All audio up to the end of the last word is settled: a word's attention is shorter than the word, so the
    pause between two is shared by halves, and what lies before the first is its language's.
    """
    fixed = shares.copy()
    first = 0
    for i, (language, _, end_s) in enumerate(words):
        until_s = (end_s + max(end_s, words[i + 1][1])) / 2 if i + 1 < len(words) else end_s
        last = max(first, window.frame(until_s))
        fixed[first:last] = 0.0
        fixed[first:last, language] = 1.0
        first = last
    return fixed


def shares_over(
    frames: Sequence[TimelineFrame],
    window: Window,
    belief: Sequence[float],
    smoothing: SmoothingOptions | None = None,
) -> Shares:
    """The timeline at every frame of a window: (n_frames, L), between stretches by straight lines.

    belief: (L,), what is believed where no stretch of the window was heard. smoothing: of the stretches,
    looking both ways; None: as they were heard.
    """
    heard = [frame for frame in frames if frame.end_s > window.start_s]
    n_languages = len(belief)
    if not heard:
        return np.tile(np.asarray(belief, dtype=np.float64), (window.n_frames, 1))
    centres = np.array([frame.centre_s for frame in heard])
    table = np.stack([frame.heard for frame in heard])
    if smoothing is not None:
        table = smoothed(table, smoothing)
    at = window.start_s + (np.arange(window.n_frames) + 0.5) / FRAMES_PER_SECOND
    return np.stack([np.interp(at, centres, table[:, i]) for i in range(n_languages)], axis=1)
