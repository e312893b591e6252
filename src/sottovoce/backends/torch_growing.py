"""Growing windows on PyTorch: plans into tensors, tensors into what is read and what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.audio.mel import normalize
from sottovoce.backends.base import GrowingWindow, Grown
from sottovoce.backends.growing import Kept, Plan, groups, plan_update
from sottovoce.errors import OptionError
from sottovoce.models.growing import EncodedFrames, Growth, grow
from sottovoce.models.whisper import Whisper
from sottovoce.types import EncoderOutput


@dataclass(frozen=True, slots=True, eq=False)
class TorchEncoderState:
    """A window's frames in every layer, the padding behind its audio included."""

    kept: Kept
    frames: EncodedFrames

    @property
    def n_content_frames(self) -> int:
        return self.kept.n_content

    @property
    def padding(self) -> EncodedFrames | None:
        """The frames behind the audio."""
        n_content = self.kept.n_content
        return self.frames.part(n_content, self.frames.n_frames) if self.kept.padding.n_frames else None


def grow_windows(model: Whisper, windows: Sequence[GrowingWindow]) -> list[Grown]:
    """Encode windows that have grown, those whose plans are alike together; see `Backend.encode_growing`."""
    n_full = model.dims.n_audio_ctx
    states = [_state_of(window) for window in windows]
    plans = [
        plan_update(window, None if state is None else state.kept, n_full)
        for window, state in zip(windows, states, strict=True)
    ]
    grown: dict[int, Grown] = {}
    for places in groups(plans):
        growths = [_growth(model, windows[at], states[at], plans[at]) for at in places]
        frames = grow(model, growths)
        for at, growth, computed in zip(places, growths, frames, strict=True):
            grown[at] = _grown(plans[at], growth, computed)
    return [grown[at] for at in range(len(windows))]


def _state_of(window: GrowingWindow) -> TorchEncoderState | None:
    state = window.state
    if state is not None and not isinstance(state, TorchEncoderState):
        raise OptionError(
            f"encode_growing: a state of {type(state).__name__} given, expected one from encode_growing()"
        )
    return state


def _growth(model: Whisper, window: GrowingWindow, state: TorchEncoderState | None, plan: Plan) -> Growth:
    """The tensors that a plan asks for."""
    padding = plan.kept.padding
    weights = padding.log_weights(plan.kept.n_content)
    device = model.encoder.positional_embedding.device
    return Growth(
        mel=normalize(window.log_mel),
        start=plan.start,
        end=plan.end,
        ends=not padding.places and (plan.pads or not padding.n_frames),
        places=padding.places if plan.pads else (),
        before=state.frames.part(0, plan.start) if state is not None and plan.start else None,
        after=None if state is None or plan.pads else state.padding,
        log_weights=None if weights is None else torch.tensor(weights, device=device),
    )


def _grown(plan: Plan, growth: Growth, frames: EncodedFrames) -> Grown:
    weights: Tensor | None = None if growth.log_weights is None else growth.log_weights[None]
    encoded = EncoderOutput(frames.states, (plan.kept.n_content,), list(frames.cross), weights)
    return Grown(encoded, TorchEncoderState(plan.kept, frames), plan.n_computed)
