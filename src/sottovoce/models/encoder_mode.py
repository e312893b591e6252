"""How an encoder's window is filled and kept up while its audio grows. Knows no tensor and no network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from sottovoce.errors import OptionError
from sottovoce.types import FRAMES_PER_SECOND

FULL_WINDOW_S = 30.0
"""Seconds of Whisper's window: nothing here may ask for more."""
NEAR_FRAMES = 10
"""Frames of padding right behind the audio that are computed one by one, however thin the rest is."""
BESIDE_ANCHOR = 2
"""Frames this near to an anchor are a little of one too, and stand for no others."""


@dataclass(frozen=True, slots=True)
class Padding:
    """The frames of padding that are computed behind the audio, at their places in the window.

    n_near: frames right behind the audio. places: of single frames further on, ascending. counts: how many
    frames of padding each of these stands for.
    """

    n_near: int
    places: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    @property
    def n_frames(self) -> int:
        """Frames computed."""
        return self.n_near + len(self.places)

    def log_weights(self, n_before: int) -> list[float] | None:
        """What is added to the attention to each frame, behind n_before frames of audio; None: nothing."""
        if not self.places:
            return None
        return [0.0] * (n_before + self.n_near) + [math.log(count) for count in self.counts]


@dataclass(frozen=True, slots=True)
class EncoderMode:
    """How a window of growing audio is encoded; what a checkpoint bears is stored with it.

    tail_s: seconds of padding behind the audio; None: up to the full window.
    stride: of the padding beyond its first `NEAR_FRAMES` one frame of so many is computed and counts as that
        many in every attention; 1: all are computed.
    anchors: places of frames that attention rests on where they are padding, ascending; thin padding has them
        all, each for itself.
    bucket_s: the audio's length is rounded up to a multiple of it, and filled with padding, so that few
        shapes occur. 0 rounds nothing.
    recompute_s: seconds of the newest audio that an update computes anew against what is kept of the older;
        None: an update computes everything.
    refresh_s: seconds by which the audio may grow before the padding behind it is computed anew too.
    level_drift: log10 units by which the loudest value may move from the one that the older frames were
        normalised with, before everything is computed anew.

    Raises: OptionError for numbers out of range.
    """

    tail_s: float | None = None
    stride: int = 1
    anchors: tuple[int, ...] = ()
    bucket_s: float = 0.0
    recompute_s: float | None = None
    refresh_s: float = 2.0
    level_drift: float = 0.5

    def __post_init__(self) -> None:
        _check_range("tail_s", self.tail_s, 0.0)
        _check_range("bucket_s", self.bucket_s, 0.0)
        _check_range("recompute_s", self.recompute_s, 1.0 / FRAMES_PER_SECOND)
        _check_range("refresh_s", self.refresh_s, 0.0)
        if self.stride < 1:
            raise OptionError(f"stride: expected at least 1 frame, got {self.stride}")
        if list(self.anchors) != sorted(set(self.anchors)) or any(place < 0 for place in self.anchors):
            raise OptionError(f"anchors: expected places that rise from 0 or later, got {self.anchors}")
        if not self.level_drift >= 0.0:
            raise OptionError(f"level_drift: expected 0 or more, got {self.level_drift}")

    @property
    def is_thin(self) -> bool:
        """Whether the padding is, up to the full window."""
        return self.stride > 1 and self.tail_s is None

    def whole(self) -> EncoderMode:
        """The same window with everything computed at every update."""
        return EncoderMode(self.tail_s, self.stride, self.anchors, self.bucket_s)

    def padding(self, n_content: int, n_full: int) -> Padding:
        """What is computed behind this many frames of audio; n_full: frames of the full window."""
        end = self._end(n_content, n_full)
        if self.stride == 1:
            return Padding(end - n_content)
        near = min(end, n_content + NEAR_FRAMES)
        counts = _thinned(near, end, self.stride, self.anchors)
        places = tuple(sorted(counts))
        return Padding(near - n_content, places, tuple(counts[place] for place in places))

    def _end(self, n_content: int, n_full: int) -> int:
        """The frame that the window ends before."""
        if self.tail_s is None:
            return n_full
        bucket = max(1, frames_of(self.bucket_s))
        return min(n_full, -(-n_content // bucket) * bucket + frames_of(self.tail_s))


@lru_cache(maxsize=256)
def _thinned(start: int, end: int, stride: int, anchors: tuple[int, ...]) -> Mapping[int, int]:
    """Of the frames [start, end), those that are computed, and how many each stands for."""
    own = {place for place in anchors if start <= place < end}
    beside = {place + step for place in own for step in range(-BESIDE_ANCHOR, BESIDE_ANCHOR + 1)}
    others = [place for place in range(start, end) if place not in own]
    counts = dict.fromkeys(own, 1)
    for first in range(0, len(others), stride):
        cell = others[first : first + stride]
        free = [place for place in cell if place not in beside] or cell
        counts[free[len(free) // 2]] = len(cell)
    return MappingProxyType(counts)


def frames_of(seconds: float) -> int:
    """Encoder frames, rounded."""
    return round(seconds * FRAMES_PER_SECOND)


def _check_range(name: str, value: float | None, least: float) -> None:
    if value is not None and not least <= value <= FULL_WINDOW_S:
        raise OptionError(f"{name}: expected {least:g} to {FULL_WINDOW_S:g} seconds, got {value}")


EXACT = EncoderMode()
"""The full window, as Whisper was trained."""
