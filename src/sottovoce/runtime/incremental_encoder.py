"""Incremental encoding: new frames are computed against cached keys and values of older ones.

This is an approximation, as Whisper's encoder is not causal. A cache is valid while the window begins at the
same sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.audio.mel import normalize
from sottovoce.errors import OptionError
from sottovoce.models.backend import EncoderState, IncrementalResult, IncrementalWindow, ModelDims
from sottovoce.models.dims import EncoderMode, Padding, frames_of
from sottovoce.models.layers import KeysValues
from sottovoce.models.whisper import AudioEncoder, Whisper
from sottovoce.types import EncoderOutput, Features

Own = TypeVar("Own")


class FrameCache(Protocol):
    """Cached encoder frames of a runtime; immutable."""

    @property
    def n_frames(self) -> int: ...

    def part(self: Own, start: int, end: int, /) -> Own: ...


Frames = TypeVar("Frames", bound=FrameCache)


@dataclass(frozen=True, slots=True, eq=False)
class EncoderUpdate(Generic[Frames]):
    """The part of one window to compute: encoder frames [start, end), and single frames of padding.

    mel: (n_mels, n) normalised, of the whole window. ends: the window ends at `end`. places: positions of the
    single frames. before: cache of frames [0, start), or None. after: cached frames that follow the computed
    ones in the order of keys, or None. log_weights: (n_attended,) float32 on the host, added to the attention
    logits, or None.
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
        return self.end - self.start + len(self.places)

    @property
    def n_attended(self) -> int:
        return self.n_frames + sum(cache.n_frames for cache in (self.before, self.after) if cache is not None)


MELS_PER_FRAME = 2


@dataclass(frozen=True, slots=True, eq=False)
class EncoderKvCache:
    """Encoder frames of one window; immutable.

    keys_values: of the encoder's layers, (n_layers, 2, H, n, d_head). states: (1, n, d), the encoder's
    output. cross: of the decoder's layers, as keys_values.
    """

    keys_values: Tensor
    states: Tensor
    cross: Tensor

    @property
    def n_frames(self) -> int:
        return int(self.states.shape[1])

    def part(self, start: int, end: int) -> EncoderKvCache:
        own = self.keys_values, self.cross
        keys_values, cross = (one[:, :, :, start:end] for one in own)
        return EncoderKvCache(keys_values, self.states[:, start:end], cross)

    @property
    def cross_layers(self) -> list[KeysValues]:
        return [(keys[None], values[None]) for keys, values in self.cross]


WindowUpdate: TypeAlias = EncoderUpdate[EncoderKvCache]


@torch.no_grad()
def encode_incremental(model: Whisper, updates: Sequence[WindowUpdate]) -> list[EncoderKvCache]:
    """Compute updates of several windows in one padded and masked batch; return their new caches.

    Results do not depend on the batch, except for rounding.
    """
    x = _embedded(model.encoder, updates)
    held = _held(model.encoder, updates, x)
    rows, own, places = _places(updates, x.device)

    def extended(layer: int, new: KeysValues) -> KeysValues:
        for memory, one in zip(held[layer], new, strict=True):
            if len(updates) == 1:
                memory[:, :, _n_before(updates[0]) :][:, :, : one.shape[2]] = one
            else:
                memory.transpose(1, 2)[rows, places] = one.transpose(1, 2)[rows, own]
        return held[layer, 0], held[layer, 1]

    states = model.encoder.run_layers(x, extended, _mask(updates, x))
    pairs = [one for pair in model.decoder.cross_keys_values(states) for one in pair]
    if pairs:
        cross = torch.stack(pairs).view(-1, 2, *pairs[0].shape)
    else:  # a runtime with a decoder of its own
        cross = states.new_zeros(0, 2, len(updates), 1, states.shape[1], 1)
    return [
        EncoderKvCache(
            held[:, :, row, :, : update.n_attended].clone(),
            _among_cached(update, states[row : row + 1], lambda cache: cache.states, dim=1),
            _among_cached(update, cross[:, :, row], lambda cache: cache.cross, dim=3),
        )
        for row, update in enumerate(updates)
    ]


def _held(encoder: AudioEncoder, updates: Sequence[WindowUpdate], x: Tensor) -> Tensor:
    """Return cached keys and values (n_layers, 2, B, H, n_attended, d_head), and zeros elsewhere."""
    n_head = encoder.layers[0].attn.n_head
    longest = max(update.n_attended for update in updates)
    shape = (len(encoder.layers), 2, len(updates), n_head, longest, x.shape[2] // n_head)
    held = x.new_zeros(shape)
    for row, update in enumerate(updates):
        if update.before is not None:
            held[:, :, row, :, : update.before.n_frames] = update.before.keys_values
        if update.after is not None:
            first = _n_before(update) + update.n_frames
            held[:, :, row, :, first : update.n_attended] = update.after.keys_values
    return held


def _n_before(update: WindowUpdate) -> int:
    return 0 if update.before is None else update.before.n_frames


def _places(updates: Sequence[WindowUpdate], device: torch.device) -> Tensor:
    """Return (3, n) int64: row, place among the computed and among all frames, of each computed frame."""
    found = [
        np.stack((np.full(update.n_frames, row), own, _n_before(update) + own))
        for row, update in enumerate(updates)
        for own in (np.arange(update.n_frames),)
    ]
    return torch.from_numpy(np.concatenate(found, axis=1)).to(device)


def _among_cached(
    update: WindowUpdate, own: Tensor, pick: Callable[[EncoderKvCache], Tensor], *, dim: int
) -> Tensor:
    """Concatenate cached frames before, computed frames and cached frames after, along `dim`.

    own: of the computed frames, padded at its end. pick: returns the matching tensor of a cache.
    """
    before = [] if update.before is None else [pick(update.before)]
    after = [] if update.after is None else [pick(update.after)]
    return torch.cat([*before, own.narrow(dim, 0, update.n_frames), *after], dim=dim)


def _embedded(encoder: AudioEncoder, updates: Sequence[WindowUpdate]) -> Tensor:
    """Return the input of the first layer (B, n, d), padded at the ends."""
    n_frames = max(update.end - update.start for update in updates)
    mel = torch.stack([_mel_around(update, n_frames) for update in updates]).to(encoder.conv1.weight)
    x = F.gelu(encoder.conv1(mel)) * _inside(updates, mel)
    x = F.gelu(encoder.conv2(x)).transpose(1, 2)[:, 1:-1]
    rows = [_placed(encoder, update, x[row]) for row, update in enumerate(updates)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(mel.dtype)


def _placed(encoder: AudioEncoder, update: WindowUpdate, x: Tensor) -> Tensor:
    """Return one row's frames (n, d) with positions, and single frames of padding."""
    table = encoder.positional_embedding
    placed = x[: update.end - update.start] + table[update.start : update.end]
    if not update.places:
        return placed
    places = torch.tensor(update.places, device=table.device)
    return torch.cat([placed, _frame_of_padding(encoder) + table[places]])


def _frame_of_padding(encoder: AudioEncoder) -> Tensor:
    """Return the output (1, d) of the convolutions far from any audio."""
    nothing = encoder.conv1.weight.new_zeros(1, encoder.conv1.in_channels, 5 * MELS_PER_FRAME)
    x = F.gelu(encoder.conv2(F.gelu(encoder.conv1(nothing)))).transpose(1, 2)
    return x[0, 2:3]


def _mel_around(update: WindowUpdate, n_frames: int) -> Tensor:
    """Return log-mel (n_mels, 2 * (n_frames + 2)) of the encoder frames from `start` - 1 on."""
    first = MELS_PER_FRAME * (update.start - 1)
    n_columns = MELS_PER_FRAME * (n_frames + 2)
    last = MELS_PER_FRAME * update.end if update.ends else first + n_columns
    mel = update.mel[:, max(0, first) : min(last, first + n_columns)]
    n_before = max(0, -first)
    return F.pad(mel, (n_before, n_columns - n_before - mel.shape[1]))


def _inside(updates: Sequence[WindowUpdate], mel: Tensor) -> Tensor:
    """Return the mask (B, 1, n_columns) of `_mel_around`: 1 inside the window.

    Outside, the second convolution must see zeros, not the first one's output for zeros.
    """
    columns = torch.arange(mel.shape[2], device=mel.device)
    firsts = [MELS_PER_FRAME * (update.start - 1) for update in updates]
    ends = [
        MELS_PER_FRAME * update.end if update.ends else first + len(columns)
        for update, first in zip(updates, firsts, strict=True)
    ]
    places = torch.tensor(firsts, device=mel.device)[:, None] + columns
    inside = (places >= 0) & (places < torch.tensor(ends, device=mel.device)[:, None])
    return inside[:, None].to(mel.dtype)


def _mask(updates: Sequence[WindowUpdate], x: Tensor) -> Tensor | None:
    """Return the bias (B, 1, 1, max n_attended) of attention logits, or None."""
    plain = all(update.log_weights is None for update in updates)
    if plain and len({update.n_attended for update in updates}) == 1:
        return None
    mask = torch.full((len(updates), max(update.n_attended for update in updates)), -torch.inf)
    for row, update in zip(mask, updates, strict=True):
        row[: update.n_attended] = 0.0 if update.log_weights is None else update.log_weights
    return mask[:, None, None].to(x)


@dataclass(frozen=True, slots=True)
class EncoderCacheInfo:
    """Content of a window's cache, in encoder frames.

    n_content: of audio. padding: computed in `mode`, with `padded_at` frames of audio. level: the loudest
    log-mel value at the last full computation.
    """

    n_content: int
    padding: Padding
    padded_at: int
    mode: EncoderMode
    level: float


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """Frames that an update computes: of audio from `start` on, and padding if `pads`; cache: afterwards."""

    start: int
    pads: bool
    cache: EncoderCacheInfo

    @property
    def end(self) -> int:
        """End of the run of computed frames; single frames of padding may follow."""
        return self.cache.n_content + (self.cache.padding.n_near if self.pads else 0)

    @property
    def n_computed(self) -> int:
        n_padding = self.cache.padding.n_frames if self.pads else 0
        return self.cache.n_content - self.start + n_padding

    @property
    def kind(self) -> tuple[bool, bool]:
        """Key of updates with similar shapes."""
        return self.start == 0, self.pads


@dataclass(frozen=True, slots=True, eq=False)
class CachedWindow(Generic[Frames]):
    """`EncoderState` of a runtime: a window's frames, padding included."""

    cache: EncoderCacheInfo
    frames: Frames

    @property
    def n_content_frames(self) -> int:
        return self.cache.n_content

    @property
    def padding(self) -> Frames | None:
        n_content = self.cache.n_content
        return self.frames.part(n_content, self.frames.n_frames) if self.cache.padding.n_frames else None


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
        mel=normalize(window.log_mel),
        start=plan.start,
        end=plan.end,
        ends=not padding.places and (plan.pads or not padding.n_frames),
        places=padding.places if plan.pads else (),
        before=state.frames.part(0, plan.start) if state is not None and plan.start else None,
        after=None if state is None or plan.pads else state.padding,
        log_weights=None if weights is None else torch.tensor(weights),
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


def result_of(
    plan: UpdatePlan,
    update: EncoderUpdate[Frames],
    state: EncoderState,
    states: Tensor,
    cross_kv: list[KeysValues] | None,
) -> IncrementalResult:
    """Return a window after an update. states: (1, n, d), of its frames."""
    weights = None if update.log_weights is None else update.log_weights[None].to(states.device)
    encoded = EncoderOutput(states, (plan.cache.n_content,), cross_kv, weights)
    return IncrementalResult(encoded, state, plan.n_computed)


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
    level = float(window.log_mel.max())
    start = 0 if cache is None else _first_new_frame(window.mode, cache, n_content, level)
    if cache is not None and start and _padding_is_fresh(window.mode, cache, n_content):
        return UpdatePlan(start, False, replace(cache, n_content=n_content))
    padding = window.mode.padding(n_content, n_full)
    if cache is not None and start:
        level = cache.level
    return UpdatePlan(start, True, EncoderCacheInfo(n_content, padding, n_content, window.mode, level))


def _first_new_frame(mode: EncoderMode, cache: EncoderCacheInfo, n_content: int, level: float) -> int:
    """Return the first frame to compute; 0 by the mode, or because the level has drifted."""
    moved = abs(level - cache.level) > mode.level_drift
    if mode.recompute_s is None or moved:
        return 0
    # The last cached frame has seen the padding through the convolutions.
    return max(0, min(cache.n_content - 1, n_content - frames_of(mode.recompute_s)))


def _padding_is_fresh(mode: EncoderMode, cache: EncoderCacheInfo, n_content: int) -> bool:
    n_since = n_content - cache.padded_at
    return mode.whole() == cache.mode.whole() and 0 <= n_since < max(1, frames_of(mode.refresh_s))
