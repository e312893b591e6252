"""Incremental encoding on PyTorch: update plans to tensors, tensors to encoder output and cache."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sottovoce.backends.base import IncrementalResult, IncrementalWindow
from sottovoce.backends.encoder_updates import CachedWindow, UpdatePlan, group_by_kind, plan_update, update_of
from sottovoce.errors import OptionError
from sottovoce.models.incremental_encoder import EncoderKvCache, WindowUpdate, encode_incremental
from sottovoce.models.whisper import Whisper
from sottovoce.types import EncoderOutput


class TorchEncoderState(CachedWindow[EncoderKvCache]):
    """`EncoderState` of PyTorch."""

    __slots__ = ()


def encode_windows(model: Whisper, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
    """Encode windows, those whose plans are of one kind as a batch; see `Backend.encode_incremental`.

    Raises: OptionError for a state of another backend.
    """
    n_full, device = model.dims.n_audio_ctx, model.encoder.positional_embedding.device
    states = [_state_of(window) for window in windows]
    plans = [
        plan_update(window, None if state is None else state.cache, n_full)
        for window, state in zip(windows, states, strict=True)
    ]
    results: dict[int, IncrementalResult] = {}
    for places in group_by_kind(plans):
        updates = [update_of(windows[at], states[at], plans[at], device) for at in places]
        frames = encode_incremental(model, updates)
        for at, update, computed in zip(places, updates, frames, strict=True):
            results[at] = _result(plans[at], update, computed)
    return [results[at] for at in range(len(windows))]


def _state_of(window: IncrementalWindow) -> TorchEncoderState | None:
    state = window.state
    if state is not None and not isinstance(state, TorchEncoderState):
        raise OptionError(f"encode_incremental: a state of {type(state).__name__} given, expected its own")
    return state


def _result(plan: UpdatePlan, update: WindowUpdate, frames: EncoderKvCache) -> IncrementalResult:
    weights: Tensor | None = None if update.log_weights is None else update.log_weights[None]
    encoded = EncoderOutput(frames.states, (plan.cache.n_content,), list(frames.cross), weights)
    return IncrementalResult(encoded, TorchEncoderState(plan.cache, frames), plan.n_computed)
