"""Which frames an incremental update of the encoder computes: the same rules for every backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import torch

from sottovoce.audio.mel import normalize
from sottovoce.backends.base import IncrementalWindow, ModelDims
from sottovoce.errors import OptionError
from sottovoce.models.dims import EncoderMode, Padding, frames_of
from sottovoce.models.incremental_encoder import EncoderUpdate, FrameCache
from sottovoce.types import Features

MELS_PER_FRAME = 2


@dataclass(frozen=True, slots=True)
class EncoderCacheInfo:
    """The content of a window's cache after its last update, in encoder frames (20 ms).

    n_content: frames of audio. padding: the padding behind them, computed when there were `padded_at` frames
    of audio, in `mode`. level: the loudest log-mel value when everything was last computed.
    """

    n_content: int
    padding: Padding
    padded_at: int
    mode: EncoderMode
    level: float


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """The frames that an update computes: of audio from `start` on, and the padding behind them if `pads`.

    cache: what the cache holds after it.
    """

    start: int
    pads: bool
    cache: EncoderCacheInfo

    @property
    def end(self) -> int:
        """End of the run of computed frames, exclusive; single frames of padding may follow."""
        return self.cache.n_content + (self.cache.padding.n_near if self.pads else 0)

    @property
    def n_computed(self) -> int:
        n_padding = self.cache.padding.n_frames if self.pads else 0
        return self.cache.n_content - self.start + n_padding

    @property
    def kind(self) -> tuple[bool, bool]:
        """Key of updates whose shapes are about the same."""
        return self.start == 0, self.pads


Own = TypeVar("Own")


class PartialFrames(FrameCache, Protocol):
    """A cache of frames of which parts can be taken."""

    def part(self: Own, start: int, end: int, /) -> Own: ...


PartialCache = TypeVar("PartialCache", bound=PartialFrames)


@dataclass(frozen=True, slots=True, eq=False)
class CachedWindow(Generic[PartialCache]):
    """`EncoderState` of a runtime: a window's frames, padding included, and what they are."""

    cache: EncoderCacheInfo
    frames: PartialCache

    @property
    def n_content_frames(self) -> int:
        return self.cache.n_content

    @property
    def padding(self) -> PartialCache | None:
        """The cached frames behind the audio; None without any."""
        n_content = self.cache.n_content
        return self.frames.part(n_content, self.frames.n_frames) if self.cache.padding.n_frames else None


Window = TypeVar("Window")


def state_of(window: IncrementalWindow, kind: type[Window]) -> Window | None:
    """Return a window's state as one of the runtime's own kind.

    Raises: OptionError for a state of another backend.
    """
    state = window.state
    if state is not None and not isinstance(state, kind):
        raise OptionError(f"encode_incremental: a state of {type(state).__name__} given, expected its own")
    return state


def update_of(
    window: IncrementalWindow,
    state: CachedWindow[PartialCache] | None,
    plan: UpdatePlan,
    device: torch.device,
) -> EncoderUpdate[PartialCache]:
    """Make the tensors of a planned update. state: of the window so far, None at its beginning."""
    padding = plan.cache.padding
    weights = padding.log_weights(plan.cache.n_content)
    return EncoderUpdate(
        mel=normalize(window.log_mel),
        start=plan.start,
        end=plan.end,
        ends=not padding.places and (plan.pads or not padding.n_frames),
        places=padding.places if plan.pads else (),
        before=state.frames.part(0, plan.start) if state is not None and plan.start else None,
        after=None if state is None or plan.pads else state.padding,
        log_weights=None if weights is None else torch.tensor(weights, device=device),
    )


def check_features(features: Features, dims: ModelDims, name: str) -> None:
    n_mels, n_frames = features.mel.shape[1:]
    longest = MELS_PER_FRAME * dims.n_audio_ctx
    if n_mels != dims.n_mels:
        raise OptionError(f"encode: {n_mels} mel bands given, {name} expects {dims.n_mels}")
    if n_frames % MELS_PER_FRAME or not MELS_PER_FRAME <= n_frames <= longest:
        raise OptionError(f"encode: {n_frames} frames given, expected an even number from 2 to {longest}")


def content_frames(features: Features) -> tuple[int, ...]:
    """Return the encoder frames of each whole window that hold audio."""
    n_frames = features.mel.shape[2] // MELS_PER_FRAME
    return tuple(min(-(-n // MELS_PER_FRAME), n_frames) for n in features.n_content_frames)


def check_windows(windows: Sequence[IncrementalWindow], dims: ModelDims, name: str) -> None:
    if not windows:
        raise OptionError("encode_incremental: expected at least one window, got none")
    for window in windows:
        n_mels, n_columns = window.log_mel.shape
        if n_mels != dims.n_mels:
            raise OptionError(f"encode_incremental: {n_mels} mel bands given, {name} expects {dims.n_mels}")
        if not MELS_PER_FRAME <= n_columns <= MELS_PER_FRAME * dims.n_audio_ctx:
            raise OptionError(
                f"encode_incremental: {n_columns} log-mel frames given, "
                f"expected {MELS_PER_FRAME} to {MELS_PER_FRAME * dims.n_audio_ctx}"
            )


def plan_update(window: IncrementalWindow, cache: EncoderCacheInfo | None, n_full: int) -> UpdatePlan:
    """Plan an update. cache: after the last update, or None; n_full: frames of the full window."""
    n_content = window.log_mel.shape[1] // MELS_PER_FRAME
    level = float(window.log_mel.max())
    start = 0 if cache is None else _first_new_frame(window.mode, cache, n_content, level)
    if cache is not None and start and _padding_is_fresh(window.mode, cache, n_content):
        return UpdatePlan(start, False, replace(cache, n_content=n_content))
    padding = window.mode.padding(n_content, n_full)
    if cache is not None and start:
        level = cache.level
    return UpdatePlan(start, True, EncoderCacheInfo(n_content, padding, n_content, window.mode, level))


def _first_new_frame(mode: EncoderMode, cache: EncoderCacheInfo, n_content: int, level: float) -> int:
    """First frame to compute anew; 0: everything, as the mode demands or because the level has drifted."""
    moved = abs(level - cache.level) > mode.level_drift
    if mode.recompute_s is None or moved:
        return 0
    # The last cached frame has seen the padding through the convolutions.
    return max(0, min(cache.n_content - 1, n_content - frames_of(mode.recompute_s)))


def _padding_is_fresh(mode: EncoderMode, cache: EncoderCacheInfo, n_content: int) -> bool:
    n_since = n_content - cache.padded_at
    return mode.whole() == cache.mode.whole() and 0 <= n_since < max(1, frames_of(mode.refresh_s))


def group_by_kind(plans: Sequence[UpdatePlan]) -> list[list[int]]:
    by_kind: dict[tuple[bool, bool], list[int]] = {}
    for place, plan in enumerate(plans):
        by_kind.setdefault(plan.kind, []).append(place)
    return list(by_kind.values())
