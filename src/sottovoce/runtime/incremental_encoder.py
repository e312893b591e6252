"""Encoded windows, and incremental encoding: new frames are computed against cached keys and values.

Incremental encoding is an approximation, as Whisper's encoder is not causal. A cache is valid while the
window begins at the same sample.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from sottovoce.audio.mel import MELS_PER_FRAME, normalize
from sottovoce.errors import OptionError
from sottovoce.models.backend import EncoderOutput, IncrementalWindow
from sottovoce.models.dims import EncoderMode, ModelDims, Padding, frames_of
from sottovoce.types import Features, Floats

Own = TypeVar("Own")


class RuntimeArray(Protocol):
    """An array of a runtime, with the indexing that NumPy and PyTorch share."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, index: Any, /) -> Any: ...


Array = TypeVar("Array", bound=RuntimeArray)
Pair = TypeVar("Pair", bound=tuple[Any, Any])


@dataclass(slots=True, eq=False)
class EncodedWindows(EncoderOutput, Generic[Array, Pair]):
    """Encoder states of a batch of windows, in arrays of a runtime.

    states: (B, n_frames, d). cross_kv: cross-attention keys and values (B, ...) per decoder layer; None:
    computed when needed. log_weights: (B, n_frames) float32, added to the attention logits of frames that
    represent several; or None.
    """

    states: Array
    n_content_frames: tuple[int, ...]
    cross_kv: Sequence[Pair] | None = field(default=None, repr=False)
    log_weights: Array | None = field(default=None, repr=False)

    @staticmethod
    @abstractmethod
    def pair(keys: Any, values: Any) -> Pair: ...

    @staticmethod
    @abstractmethod
    def concatenated(arrays: Sequence[Any], axis: int = 0) -> Any: ...

    @abstractmethod
    def filled(self, shape: tuple[int, ...], value: float) -> Array:
        """Return an array like the states, of one value."""

    @property
    def n_frames(self) -> int:
        return int(self.states.shape[1])

    def rows(self: Encoded, windows: Sequence[int]) -> Encoded:
        if [*windows] == [*range(self.batch_size)]:
            return self
        first, n = windows[0], len(windows)
        is_run = [*windows] == [*range(first, first + n)]
        some = slice(first, first + n) if is_run else [*windows]
        return replace(
            self,
            states=self.states[some],
            n_content_frames=tuple(self.n_content_frames[window] for window in windows),
            cross_kv=self.cross_kv and [self.pair(*(each[some] for each in pair)) for pair in self.cross_kv],
            log_weights=None if self.log_weights is None else self.log_weights[some],
        )

    def _lengthened(self: Encoded, n_frames: int) -> Encoded:
        """Append frames that no token attends to."""
        batch, before, width = self.states.shape
        missing = n_frames - before
        if not missing:
            return self
        weights = self.filled((batch, before), 0.0) if self.log_weights is None else self.log_weights
        return replace(
            self,
            states=self.concatenated([self.states, self.filled((batch, missing, width), 0.0)], axis=1),
            cross_kv=None,
            log_weights=self.concatenated([weights, self.filled((batch, missing), -np.inf)], axis=1),
        )

    def joined(self: Encoded, others: Sequence[EncoderOutput]) -> Encoded:
        if not others:
            return self
        checked = [self, *map(self.checked, others)]
        longest = max(output.n_frames for output in checked)
        outputs = [output._lengthened(longest) for output in checked]
        computed = [output.cross_kv for output in outputs if output.cross_kv is not None]
        cross_kv = weights = None
        if len(computed) == len(outputs):
            layers = (zip(*layer, strict=True) for layer in zip(*computed, strict=True))
            cross_kv = [self.pair(*map(self.concatenated, layer)) for layer in layers]
        if any(output.log_weights is not None for output in outputs):
            given = [(output.log_weights, (output.batch_size, longest)) for output in outputs]
            weights = self.concatenated([self.filled(n, 0.0) if part is None else part for part, n in given])
        return replace(
            self,
            states=self.concatenated([output.states for output in outputs]),
            n_content_frames=tuple(n for output in outputs for n in output.n_content_frames),
            cross_kv=cross_kv,
            log_weights=weights,
        )

    def with_content(self: Encoded, n_content_frames: tuple[int, ...]) -> Encoded:
        return replace(self, n_content_frames=n_content_frames)

    def limited(self: Encoded, start: int, end: int) -> Encoded:
        (n_content,) = self.n_content_frames
        weights = self.filled((1, self.n_frames), 0.0) if self.log_weights is None else self.log_weights
        parts = [self.filled((1, start), -np.inf), weights[:, start:end]]
        parts += [self.filled((1, n_content - end), -np.inf), weights[:, n_content:]]
        return replace(self, log_weights=self.concatenated(parts, axis=1))

    @classmethod
    def checked(cls: type[Encoded], encoded: EncoderOutput) -> Encoded:
        """Return windows of this runtime.

        Raises:
            OptionError: windows of another one.
        """
        if not isinstance(encoded, cls):
            raise OptionError(f"rows: expected {cls.__name__}, of this runtime, got {type(encoded).__name__}")
        return encoded


Encoded = TypeVar("Encoded", bound=EncodedWindows[Any, Any])


class FrameCache(Protocol):
    """Cached encoder frames of a runtime; immutable."""

    @property
    def n_frames(self) -> int: ...

    def part(self: Own, start: int, end: int, /) -> Own: ...


Frames = TypeVar("Frames", bound=FrameCache)


@dataclass(frozen=True, slots=True, eq=False)
class EncoderUpdate(Generic[Frames]):
    """The part of one window to compute: encoder frames [start, end), and single frames of padding.

    log_mel: (n_mels, n), of the whole window. maximum: by which it is normalised; None: it is. ends: the
    window ends at `end`. places: of the single frames. before: frames [0, start). after: frames behind the
    computed ones in the order of keys. log_weights: (n_attended,) float32, added to the attention logits, or
    None.
    """

    log_mel: Floats
    start: int
    end: int
    ends: bool
    maximum: float | None = None
    places: tuple[int, ...] = ()
    before: Frames | None = None
    after: Frames | None = None
    log_weights: Floats | None = None

    def mel(self, first: int = 0, last: int | None = None) -> Floats:
        """Return normalised frames of log-mel [first, last)."""
        log_mel = self.log_mel[:, first:last]
        return log_mel if self.maximum is None else normalize(log_mel, self.maximum)

    @property
    def n_frames(self) -> int:
        return self.end - self.start + len(self.places)

    @property
    def n_attended(self) -> int:
        return self.n_frames + sum(cache.n_frames for cache in (self.before, self.after) if cache is not None)


@dataclass(frozen=True, slots=True)
class EncoderCacheInfo:
    """Content of a window's cache: n_content frames of audio, and padding computed in `mode` after
    `padded_at` frames. level: the loudest log-mel value at the last full computation.
    """

    n_content: int
    padding: Padding
    padded_at: int
    mode: EncoderMode
    level: float


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """An update computes audio from frame `start` on with the padding right behind it, and all padding if
    `pads`. cache: afterwards. maximum: of the window's log-mel.
    """

    start: int
    pads: bool
    cache: EncoderCacheInfo
    maximum: float

    @property
    def end(self) -> int:
        """End of the run of computed frames; single frames of padding may follow."""
        padding = self.cache.padding
        return self.cache.n_content + (padding.n_near if self.pads else padding.n_with_audio)

    @property
    def n_computed(self) -> int:
        return self.end - self.start + (len(self.cache.padding.places) if self.pads else 0)


@dataclass(frozen=True, slots=True, eq=False)
class CachedWindow(Generic[Frames]):
    """`EncoderState` of a runtime: a window's frames, padding included."""

    cache: EncoderCacheInfo
    frames: Frames

    @property
    def n_content_frames(self) -> int:
        return self.cache.n_content

    def kept_padding(self, padding: Padding) -> Frames | None:
        """Return the frames of this padding, without those that are computed with the audio."""
        first = self.frames.n_frames - (padding.n_frames - padding.n_with_audio)
        return self.frames.part(first, self.frames.n_frames) if first < self.frames.n_frames else None


Window = TypeVar("Window")


def state_of(window: IncrementalWindow, kind: type[Window]) -> Window | None:
    """Return the state of a window.

    Raises:
        OptionError: a state of another backend.
    """
    state = window.state
    if state is not None and not isinstance(state, kind):
        raise OptionError(f"encode_incremental: a state of {type(state).__name__} given, expected its own")
    return state


def _update(
    window: IncrementalWindow, state: CachedWindow[Frames] | None, plan: UpdatePlan
) -> EncoderUpdate[Frames]:
    padding = plan.cache.padding
    weights = padding.log_weights(plan.cache.n_content)
    return EncoderUpdate(
        log_mel=window.log_mel,
        start=plan.start,
        end=plan.end,
        ends=not padding.places and (plan.pads or not padding.n_frames),
        maximum=plan.maximum,
        places=padding.places if plan.pads else (),
        before=state.frames.part(0, plan.start) if state is not None and plan.start else None,
        after=None if state is None or plan.pads else state.kept_padding(padding),
        log_weights=None if weights is None else np.array(weights, np.float32),
    )


def plan_updates(
    windows: Sequence[IncrementalWindow],
    kind: type[CachedWindow[Frames]],
    *,
    dims: ModelDims,
    name: str,
) -> list[tuple[UpdatePlan, EncoderUpdate[Frames]]]:
    """Check the windows, and plan their updates; kind: the runtime's states; name: of the backend.

    Raises:
        OptionError: as `Backend.encode_incremental`.
    """
    check_windows(windows, dims, name)
    planned = []
    for window in windows:
        state = state_of(window, kind)
        plan = plan_update(window, None if state is None else state.cache, dims.n_audio_ctx)
        planned.append((plan, _update(window, state, plan)))
    return planned


def content_frames(features: Features, dims: ModelDims, name: str) -> tuple[int, ...]:
    """Check whole windows; return the number of encoder frames of audio in each.

    Raises:
        OptionError: as `Backend.encode`.
    """
    n_mels, n_frames = features.mel.shape[1:]
    longest = MELS_PER_FRAME * dims.n_audio_ctx
    if n_mels != dims.n_mels:
        raise OptionError(f"encode: {n_mels} mel bands given, {name} expects {dims.n_mels}")
    if n_frames % MELS_PER_FRAME or not MELS_PER_FRAME <= n_frames <= longest:
        raise OptionError(f"encode: {n_frames} frames given, expected an even number from 2 to {longest}")
    most = n_frames // MELS_PER_FRAME
    return tuple(min(-(-n // MELS_PER_FRAME), most) for n in features.n_content_frames)


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
    """Plan an update; cache: after the last one, or None; n_full: frames of the full window."""
    n_content = window.log_mel.shape[1] // MELS_PER_FRAME
    maximum = float(window.log_mel.max())
    kept = None if cache is None else _kept_padding(window.mode, cache, n_content, n_full)
    start = (
        0 if cache is None else _first_new_frame(window.mode, cache, n_content, maximum, pads=kept is None)
    )
    if cache is not None and kept is not None and start:
        return UpdatePlan(start, False, replace(cache, n_content=n_content, padding=kept), maximum)
    padding = window.mode.padding(n_content, n_full)
    level = cache.level if cache is not None and start else maximum
    return UpdatePlan(
        start, True, EncoderCacheInfo(n_content, padding, n_content, window.mode, level), maximum
    )


def _first_new_frame(
    mode: EncoderMode, cache: EncoderCacheInfo, n_content: int, level: float, *, pads: bool
) -> int:
    """Return the first frame to compute; 0 by the mode, or because the level has drifted."""
    moved = abs(level - cache.level) > mode.level_drift
    if mode.recompute_s is None or moved:
        return 0
    newest_s = mode.recompute_s if pads or mode.between_s is None else mode.between_s
    # The last cached frame has seen the padding through the convolutions.
    return max(0, min(cache.n_content - 1, n_content - frames_of(newest_s)))


def _kept_padding(mode: EncoderMode, cache: EncoderCacheInfo, n_content: int, n_full: int) -> Padding | None:
    """Return the padding that an update keeps, or None where it computes padding again.

    Single frames that the audio has reached are left out: they would stand for silence within it.
    """
    n_since, padding = n_content - cache.padded_at, cache.padding
    is_fresh = mode.whole() == cache.mode.whole() and 0 <= n_since < max(1, frames_of(mode.refresh_s))
    if not is_fresh or n_content + padding.n_frames > n_full:
        return None
    n_passed = bisect_left(padding.places, n_content + padding.n_near)
    if n_passed and n_passed == len(padding.places):
        return None
    return Padding(padding.n_near, padding.places[n_passed:], padding.counts[n_passed:])
