"""The encoder's half of a backend in the kernels: whole windows, and updates of growing ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sottovoce.audio.mel import normalize
from sottovoce.backends.base import Capabilities, IncrementalResult, IncrementalWindow
from sottovoce.backends.encoder_updates import (
    EncoderCacheInfo,
    UpdatePlan,
    check_features,
    check_windows,
    content_frames,
    plan_update,
)
from sottovoce.backends.native_windows import NativeWindows, WindowFrames, WindowUpdate
from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.dims import upper_half_heads
from sottovoce.models.encoder_mode import default_encoder_mode
from sottovoce.types import EncoderOutput, Features


class NativeEncoder:
    """The encoder of a checkpoint in the kernels, and what a backend tells of the checkpoint."""

    def __init__(self, checkpoint: Checkpoint, *, dtype: torch.dtype) -> None:
        """dtype: of the states."""
        self.name, self.dims, self.tail_s = checkpoint.name, checkpoint.dims, checkpoint.tail_s
        self.dtype, self.device = dtype, torch.device("cpu")
        self.runtime = "native, int8 and bfloat16"
        self.alignment_heads = checkpoint.alignment_heads or upper_half_heads(self.dims)
        self.encoder_mode = checkpoint.encoder_mode or default_encoder_mode(self.dims)
        self.capabilities = Capabilities(attention=True)
        self._windows = NativeWindows(self.dims, checkpoint.tensors)

    def encode(self, features: Features) -> EncoderOutput:
        """Encode log-mel windows (B, n_mels, n_frames); see `Backend.encode`.

        Raises: OptionError for other mel bands, and for a number of frames that is odd or too large.
        """
        check_features(features, self.dims, self.name)
        return EncoderOutput(self._windows(features.mel).to(self.dtype), content_frames(features))

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        """Encode windows incrementally, in one call; see `Backend.encode_incremental`."""
        check_windows(windows, self.dims, self.name)
        return encode_windows(self._windows, windows, self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class NativeEncoderState:
    """`EncoderState` of the kernels: a window's frames, padding included, and what they are."""

    cache: EncoderCacheInfo
    frames: WindowFrames

    @property
    def n_content_frames(self) -> int:
        return self.cache.n_content


def encode_windows(
    encoder: NativeWindows, windows: Sequence[IncrementalWindow], dtype: torch.dtype
) -> list[IncrementalResult]:
    """Encode windows in one call; see `Backend.encode_incremental`. dtype: of the states.

    Raises: OptionError for a state of another backend.
    """
    plans = [_plan(window, encoder.dims.n_audio_ctx) for window in windows]
    updates = [_update(window, plan) for window, plan in zip(windows, plans, strict=True)]
    made = zip(plans, updates, encoder.update(updates), strict=True)
    return [_result(plan, update, frames, dtype) for plan, update, frames in made]


def _state_of(window: IncrementalWindow) -> NativeEncoderState | None:
    state = window.state
    if state is not None and not isinstance(state, NativeEncoderState):
        raise OptionError(f"encode_incremental: a state of {type(state).__name__} given, expected its own")
    return state


def _plan(window: IncrementalWindow, n_full: int) -> UpdatePlan:
    state = _state_of(window)
    return plan_update(window, None if state is None else state.cache, n_full)


def _update(window: IncrementalWindow, plan: UpdatePlan) -> WindowUpdate:
    state, padding = _state_of(window), plan.cache.padding
    weights = padding.log_weights(plan.cache.n_content)
    return WindowUpdate(
        mel=normalize(window.log_mel),
        start=plan.start,
        end=plan.end,
        ends=not padding.places and (plan.pads or not padding.n_frames),
        places=padding.places if plan.pads else (),
        before=state.frames.part(0, plan.start) if state is not None and plan.start else None,
        after=None if state is None or plan.pads else _padding_of(state),
        log_weights=None if weights is None else torch.tensor(weights),
    )


def _padding_of(state: NativeEncoderState) -> WindowFrames | None:
    """Return the cached frames behind the audio; None without any."""
    if not state.cache.padding.n_frames:
        return None
    return state.frames.part(state.cache.n_content, state.frames.n_frames)


def _result(
    plan: UpdatePlan, update: WindowUpdate, frames: WindowFrames, dtype: torch.dtype
) -> IncrementalResult:
    weights = None if update.log_weights is None else update.log_weights[None]
    encoded = EncoderOutput(frames.states[None].to(dtype), (plan.cache.n_content,), None, weights)
    return IncrementalResult(encoded, NativeEncoderState(plan.cache, frames), plan.n_computed)
