"""Incremental encoding on PyTorch: update plans to tensors, tensors to encoder output and cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.audio.mel import normalize
from sottovoce.backends.base import IncrementalResult, IncrementalWindow
from sottovoce.backends.encoder_updates import EncoderCacheInfo, UpdatePlan, group_by_kind, plan_update
from sottovoce.errors import OptionError
from sottovoce.models.incremental_encoder import EncoderKvCache, EncoderUpdate, encode_incremental
from sottovoce.models.whisper import Whisper
from sottovoce.types import EncoderOutput


@dataclass(frozen=True, slots=True, eq=False)
class TorchEncoderState:
    """`EncoderState` of PyTorch: a window's frames in every layer, padding included, and what they are."""

    cache: EncoderCacheInfo
    frames: EncoderKvCache

    @property
    def n_content_frames(self) -> int:
        return self.cache.n_content

    @property
    def padding(self) -> EncoderKvCache | None:
        """The cached frames behind the audio; None without any."""
        n_content = self.cache.n_content
        return self.frames.part(n_content, self.frames.n_frames) if self.cache.padding.n_frames else None


def encode_windows(model: Whisper, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
    """Encode windows, those whose plans are of one kind as a batch; see `Backend.encode_incremental`.

    Raises: OptionError for a state of another backend.
    """
    n_full = model.dims.n_audio_ctx
    states = [_state_of(window) for window in windows]
    plans = [
        plan_update(window, None if state is None else state.cache, n_full)
        for window, state in zip(windows, states, strict=True)
    ]
    results: dict[int, IncrementalResult] = {}
    for places in group_by_kind(plans):
        updates = [_encoder_update(model, windows[at], states[at], plans[at]) for at in places]
        frames = encode_incremental(model, updates)
        for at, update, computed in zip(places, updates, frames, strict=True):
            results[at] = _result(plans[at], update, computed)
    return [results[at] for at in range(len(windows))]


def _state_of(window: IncrementalWindow) -> TorchEncoderState | None:
    state = window.state
    if state is not None and not isinstance(state, TorchEncoderState):
        raise OptionError(f"encode_incremental: a state of {type(state).__name__} given, expected its own")
    return state


def _encoder_update(
    model: Whisper, window: IncrementalWindow, state: TorchEncoderState | None, plan: UpdatePlan
) -> EncoderUpdate:
    """Make the tensors of a planned update."""
    padding = plan.cache.padding
    weights = padding.log_weights(plan.cache.n_content)
    device = model.encoder.positional_embedding.device
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


def _result(plan: UpdatePlan, update: EncoderUpdate, frames: EncoderKvCache) -> IncrementalResult:
    weights: Tensor | None = None if update.log_weights is None else update.log_weights[None]
    encoded = EncoderOutput(frames.states, (plan.cache.n_content,), list(frames.cross), weights)
    return IncrementalResult(encoded, TorchEncoderState(plan.cache, frames), plan.n_computed)
