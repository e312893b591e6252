"""Dimensions, alignment heads and encoder modes of a model, as plain numbers.

An encoder mode says how a window of growing audio is padded, and which frames an update recomputes. Whisper
was trained on 30 s windows that end in silence, and its encoder attends to a few anchor frames of it; sparse
padding must keep these. The published modes and anchors were chosen on development clips
(docs/research/live-encoder.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

from sottovoce.errors import OptionError
from sottovoce.types import FRAMES_PER_SECOND

AlignmentHeads: TypeAlias = tuple[tuple[int, int], ...]
"""(decoder layer, head) pairs."""
Span: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ModelDims:
    """Whisper's dimensions, by the names of OpenAI's checkpoints."""

    n_mels: int
    n_audio_ctx: int
    n_audio_state: int
    n_audio_head: int
    n_audio_layer: int
    n_vocab: int
    n_text_ctx: int
    n_text_state: int
    n_text_head: int
    n_text_layer: int

    @property
    def is_multilingual(self) -> bool:
        return self.n_vocab >= 51865

    @property
    def size(self) -> tuple[int, int, int]:
        """Encoder layers, width, and size of the vocabulary."""
        return self.n_audio_layer, self.n_audio_state, self.n_vocab

    @property
    def n_languages(self) -> int:
        """99, or 100 with the vocabulary of large-v3; 0 for English-only models."""
        return self.n_vocab - 51766 if self.is_multilingual else 0


def upper_half_heads(dims: ModelDims) -> AlignmentHeads:
    layers = range(dims.n_text_layer // 2, dims.n_text_layer)
    return tuple((layer, head) for layer in layers for head in range(dims.n_text_head))


FULL_WINDOW_S = 30.0
NEAR_FRAMES = 10
"""Frames of padding after the audio that are always computed."""
BESIDE_ANCHOR = 2
"""Frames this close to an anchor attract attention too, so none represents a block of padding."""


@dataclass(frozen=True, slots=True)
class Padding:
    """The computed frames of padding.

    n_near: frames right after the audio. places: ascending window positions of single later frames. counts:
    frames of padding that each of these represents.
    """

    n_near: int
    places: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    @property
    def n_frames(self) -> int:
        return self.n_near + len(self.places)

    @property
    def n_with_audio(self) -> int:
        """Frames that are computed with the audio before them: those in front of single ones."""
        return self.n_near if self.places else 0

    def log_weights(self, n_before: int) -> list[float] | None:
        """Return the bias on attention logits of n_before audio frames and this padding, or None."""
        if not self.places:
            return None
        return [0.0] * (n_before + self.n_near) + [math.log(count) for count in self.counts]


@dataclass(frozen=True, slots=True)
class EncoderMode:
    """How a window of growing audio is encoded; stored with each checkpoint.

    tail_s: seconds of padding; None: up to the full window. stride: after `NEAR_FRAMES`, one frame in
    `stride` is computed, with its weight in attention. anchors: ascending positions that are always computed.
    bucket_s: audio is padded to a multiple of this; 0: not. recompute_s: newest audio that an update
    recomputes; None: everything. refresh_s: growth of the audio after which padding is recomputed. between_s:
    newest audio that the updates until then recompute; None: recompute_s. level_drift: change of the loudest
    value (log10) above which everything is recomputed.

    Raises: OptionError: a number is out of range.
    """

    tail_s: float | None = None
    stride: int = 1
    anchors: tuple[int, ...] = ()
    bucket_s: float = 0.0
    recompute_s: float | None = None
    refresh_s: float = 2.0
    between_s: float | None = None
    level_drift: float = 0.5

    def __post_init__(self) -> None:
        _check_range("tail_s", self.tail_s, 0.0)
        _check_range("bucket_s", self.bucket_s, 0.0)
        _check_range("recompute_s", self.recompute_s, 1.0 / FRAMES_PER_SECOND)
        _check_range("refresh_s", self.refresh_s, 0.0)
        _check_range("between_s", self.between_s, 1.0 / FRAMES_PER_SECOND)
        if self.stride < 1:
            raise OptionError(f"stride: expected at least 1 frame, got {self.stride}")
        if list(self.anchors) != sorted(set(self.anchors)) or any(place < 0 for place in self.anchors):
            raise OptionError(f"anchors: expected places that rise from 0 or later, got {self.anchors}")
        if not self.level_drift >= 0.0:
            raise OptionError(f"level_drift: expected 0 or more, got {self.level_drift}")

    @property
    def has_sparse_padding(self) -> bool:
        """Whether only some frames of a full window's padding are computed."""
        return self.stride > 1 and self.tail_s is None

    @lru_cache(maxsize=64)  # noqa: B019 - a value, not a resource
    def whole(self, most_stride: int | None = None) -> EncoderMode:
        """Return the mode with the same padding, or a denser one, that recomputes everything."""
        stride = self.stride if most_stride is None else min(self.stride, most_stride)
        return EncoderMode(self.tail_s, stride, self.anchors, self.bucket_s)

    def padding(self, n_content: int, n_full: int) -> Padding:
        """Lay out the padding after n_content encoder frames. n_full: of the full window."""
        end = self._end(n_content, n_full)
        if self.stride == 1:
            return Padding(end - n_content)
        near = min(end, n_content + NEAR_FRAMES)
        counts = _sparse_frames(near, end, self.stride, self.anchors)
        places = tuple(sorted(counts))
        return Padding(near - n_content, places, tuple(counts[place] for place in places))

    def _end(self, n_content: int, n_full: int) -> int:
        if self.tail_s is None:
            return n_full
        bucket = max(1, frames_of(self.bucket_s))
        return min(n_full, -(-n_content // bucket) * bucket + frames_of(self.tail_s))


@lru_cache(maxsize=256)
def _sparse_frames(start: int, end: int, stride: int, anchors: tuple[int, ...]) -> Mapping[int, int]:
    here = {place for place in anchors if start <= place < end}
    near = {place + step for place in here for step in range(-BESIDE_ANCHOR, BESIDE_ANCHOR + 1)}
    others = [place for place in range(start, end) if place not in here]
    counts = dict.fromkeys(here, 1)
    for first in range(0, len(others), stride):
        cell = others[first : first + stride]
        free = [place for place in cell if place not in near] or cell
        counts[free[len(free) // 2]] = len(cell)
    return MappingProxyType(counts)


def frames_of(seconds: float) -> int:
    return round(seconds * FRAMES_PER_SECOND)


def _check_range(name: str, value: float | None, least: float) -> None:
    if value is not None and not least <= value <= FULL_WINDOW_S:
        raise OptionError(f"{name}: expected {least:g} to {FULL_WINDOW_S:g} seconds, got {value}")


EXACT = EncoderMode()
"""The full window, as in Whisper's training."""

# fmt: off
BASE_ANCHORS = (
    110, 174, 175, 231, 232, 247, 248, 256, 297, 305, 311, 312, 313, 319, 320, 361, 362, 363, 378,
    384, 457, 458, 530, 531, 538, 539, 579, 580, 588, 594, 595, 683, 733, 734, 798, 1024, 1025,
    1032, 1033, 1243, 1250, 1371, 1372, 1380, 1445, 1446, 1452, 1453, 1477, 1493, 1494,
)
# fmt: on
"""Padding of `base` that attracts attention in at least a fifth of development clips."""

DENSE = EncoderMode(tail_s=5.0, recompute_s=3.5, refresh_s=0.0)
"""5 s of dense padding, valid for every Whisper."""
BASE = EncoderMode(stride=30, anchors=BASE_ANCHORS, recompute_s=3.5, refresh_s=0.5, between_s=1.0)
"""More accurate than 5 s of dense padding; a stride of 60 or a recompute_s of 2 fails on some clips."""

PUBLISHED_MODES = MappingProxyType({(6, 512, 51865): BASE})
"""By `ModelDims.size`."""


def default_encoder_mode(dims: ModelDims) -> EncoderMode:
    """Return the published mode for these dimensions, or `DENSE`."""
    return PUBLISHED_MODES.get(dims.size, DENSE)


def aligned(n: int) -> int:
    """Round up to a multiple of 16, at which rows of masks begin, as fused kernels require."""
    return -(-n // 16) * 16
