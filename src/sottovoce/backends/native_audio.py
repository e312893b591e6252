"""The encoder's half of a backend in the kernels: whole windows, and updates of growing ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sottovoce.backends.base import Capabilities, IncrementalResult, IncrementalWindow
from sottovoce.backends.encoder_updates import (
    CachedWindow,
    UpdatePlan,
    check_features,
    check_windows,
    content_frames,
    plan_update,
    update_of,
)
from sottovoce.backends.native_windows import NativeWindows, WindowFrames
from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.dims import default_encoder_mode, upper_half_heads
from sottovoce.models.incremental_encoder import EncoderUpdate
from sottovoce.types import EncoderOutput, Features


class NativeEncoder:
    """The encoder of a checkpoint in the kernels, and what a backend tells of the checkpoint."""

    def __init__(self, checkpoint: Checkpoint, *, dtype: torch.dtype) -> None:
        """dtype: of the states."""
        self.name, self.dims, self.tail_s = checkpoint.name, checkpoint.dims, checkpoint.tail_s
        self.dtype, self.device = dtype, torch.device("cpu")
        self.runtime = "native, int8 and int16"
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


class NativeEncoderState(CachedWindow[WindowFrames]):
    """`EncoderState` of the kernels."""

    __slots__ = ()


def encode_windows(
    encoder: NativeWindows, windows: Sequence[IncrementalWindow], dtype: torch.dtype
) -> list[IncrementalResult]:
    """Encode windows in one call; see `Backend.encode_incremental`. dtype: of the states.

    Raises: OptionError for a state of another backend.
    """
    states = [_state_of(window) for window in windows]
    plans = [
        plan_update(window, None if state is None else state.cache, encoder.dims.n_audio_ctx)
        for window, state in zip(windows, states, strict=True)
    ]
    cpu = torch.device("cpu")
    updates = [update_of(*each, cpu) for each in zip(windows, states, plans, strict=True)]
    made = zip(plans, updates, encoder.update(updates), strict=True)
    return [_result(plan, update, frames, dtype) for plan, update, frames in made]


def _state_of(window: IncrementalWindow) -> NativeEncoderState | None:
    state = window.state
    if state is not None and not isinstance(state, NativeEncoderState):
        raise OptionError(f"encode_incremental: a state of {type(state).__name__} given, expected its own")
    return state


def _result(
    plan: UpdatePlan, update: EncoderUpdate[WindowFrames], frames: WindowFrames, dtype: torch.dtype
) -> IncrementalResult:
    weights = None if update.log_weights is None else update.log_weights[None]
    encoded = EncoderOutput(frames.states[None].to(dtype), (plan.cache.n_content,), None, weights)
    return IncrementalResult(encoded, NativeEncoderState(plan.cache, frames), plan.n_computed)
