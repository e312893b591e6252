"""What is computed of a window of growing audio, whatever runtime computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import Tensor


class FrameCache(Protocol):
    """What a runtime keeps of encoder frames; immutable, so that sessions may share it."""

    @property
    def n_frames(self) -> int:
        """Number of frames."""
        ...


Frames = TypeVar("Frames", bound=FrameCache)


@dataclass(frozen=True, slots=True, eq=False)
class EncoderUpdate(Generic[Frames]):
    """What is computed of one window: encoder frames [start, end), and single frames of padding beyond.

    mel: (n_mels, n) normalised, of the whole window; 0.0 is assumed beyond it. ends: the window, and so the
        convolutions, end at `end`. places: positions of the single frames; padding surrounds each.
    before: cache of frames [0, start), or None. after: cached frames that follow the computed ones in the
        order of keys, whatever their positions, or None. log_weights: (n_attended,) float32, added to the
        attention logits of each frame; None adds nothing.
    """

    mel: Tensor
    start: int
    end: int
    ends: bool
    places: tuple[int, ...] = ()
    before: Frames | None = None
    after: Frames | None = None
    log_weights: Tensor | None = None

    @property
    def n_frames(self) -> int:
        """Number of frames computed."""
        return self.end - self.start + len(self.places)

    @property
    def n_attended(self) -> int:
        """Number of frames attended to: computed and cached."""
        return self.n_frames + sum(cache.n_frames for cache in (self.before, self.after) if cache is not None)
