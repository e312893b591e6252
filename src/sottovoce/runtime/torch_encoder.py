"""Functions recorded as CUDA graphs, and Whisper's encoder on whole and growing windows, in batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.audio.mel import MELS_PER_FRAME
from sottovoce.models.dims import aligned
from sottovoce.models.whisper import AudioEncoder, KeysValues, Whisper, attention_plans
from sottovoce.runtime.incremental_encoder import EncodedWindows, EncoderUpdate
from sottovoce.types import FRAMES_PER_SECOND, Floats

Outputs: TypeAlias = tuple[Tensor, ...]
Record = Callable[[Callable[[], Outputs]], Callable[[], Outputs]]
"""Records a function over static tensors; the result computes it again, into the same outputs."""


class CudaGraphs:
    """Records functions as CUDA graphs that share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._first: torch.cuda.CUDAGraph | None = None
        """Owns the pool."""

    def __call__(self, function: Callable[[], Outputs]) -> Callable[[], Outputs]:
        with torch.cuda.device(self._device), attention_plans(self._device, True):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            current = torch.cuda.current_stream()
            stream.wait_stream(current)
            graph = torch.cuda.CUDAGraph()
            pool = None if self._first is None else self._first.pool()
            with torch.cuda.stream(stream):
                function()  # libraries allocate at their first use, which cannot be recorded
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    outputs = function()
                finally:
                    graph.capture_end()
            current.wait_stream(stream)
            self._first = self._first or graph

        def replay() -> Outputs:
            graph.replay()
            return outputs

        return replay


def eagerly(function: Callable[[], Outputs]) -> Callable[[], Outputs]:
    return function


def recorder_of(device: torch.device) -> Record:
    return CudaGraphs(device) if device.type == "cuda" else eagerly


class TorchEncoderOutput(EncodedWindows[Tensor, KeysValues]):
    """Encoder states of a batch of windows on PyTorch; cross_kv: pairs of (B, n_head, n_frames, d_head)."""

    __slots__ = ()

    @staticmethod
    def pair(keys: Tensor, values: Tensor) -> KeysValues:
        return keys, values

    @staticmethod
    def concatenated(arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
        return torch.cat([*arrays], axis)

    def filled(self, shape: tuple[int, ...], value: float) -> Tensor:
        dtype = self.states.dtype if len(shape) == self.states.dim() else torch.float32
        return self.states.new_full(shape, value, dtype=dtype)

    def states_on_host(self) -> Floats:
        states: Floats = self.states.detach().float().cpu().numpy()
        return states


@dataclass(frozen=True, slots=True, eq=False)
class EncoderKvCache:
    """Encoder frames of one window; immutable.

    keys_values: of the encoder's layers, (n_layers, 2, H, n, d_head). states: (1, n, d). cross: of the
    decoder's layers, as keys_values.
    """

    keys_values: Tensor
    states: Tensor
    cross: Tensor

    @property
    def n_frames(self) -> int:
        return int(self.states.shape[1])

    def part(self, start: int, end: int) -> EncoderKvCache:
        caches = self.keys_values, self.cross
        keys_values, cross = (cache[:, :, :, start:end] for cache in caches)
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
    alone = len(updates) == 1
    n_attended = max(update.n_attended for update in updates) + (not alone)
    weight = model.encoder.conv2.weight
    held = weight.new_zeros(_sizes(model, len(updates), 0, n_attended)[0])
    _fill(held, updates)
    mel, numbers, mask = _inputs(updates, max(update.n_frames for update in updates), n_attended)
    n_run = max(update.end - update.start for update in updates)
    states, cross = _compute(
        model,
        mel[:, :, : MELS_PER_FRAME * (n_run + 2)].to(weight),
        numbers.to(weight.device),
        None if alone and updates[0].log_weights is None else mask.to(weight),
        held,
        has_places=any(update.places for update in updates),
        n_before=_n_before(updates[0]) if alone else None,
    )
    return _caches(updates, states, cross, held)


def _sizes(model: Whisper, n_windows: int, n_frames: int, n_attended: int) -> tuple[tuple[int, ...], ...]:
    dims = model.dims
    head, cross = dims.n_audio_state // dims.n_audio_head, dims.n_text_state // dims.n_text_head
    return (
        (dims.n_audio_layer, 2, n_windows, dims.n_audio_head, n_attended, head),
        (n_windows, n_frames, dims.n_audio_state),
        (dims.n_text_layer, 2, n_windows, dims.n_text_head, n_frames, cross),
    )


def _fill(held: Tensor, updates: Sequence[WindowUpdate]) -> None:
    into, given = [], []
    for row, update in enumerate(updates):
        first = _n_before(update) + update.n_frames
        for cache, places in (
            (update.before, slice(0, _n_before(update))),
            (update.after, slice(first, update.n_attended)),
        ):
            if cache is not None:
                into.append(held[:, :, row, :, places])
                given.append(cache.keys_values)
    if into:
        torch._foreach_copy_(into, given)


def _n_before(update: WindowUpdate) -> int:
    return 0 if update.before is None else update.before.n_frames


def _inputs(updates: Sequence[WindowUpdate], n_frames: int, n_attended: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the input of `_compute` for so many frames, on the host.

    Frames that are not there are written to the last of those attended to, which must be free.
    """
    numbers = np.zeros((len(updates), 3 + 2 * n_frames), np.int64)
    numbers[:, 3 + n_frames :] = n_attended - 1
    mask = np.full((len(updates), 1, 1, n_attended), -np.inf, np.float32)
    for row, bias, update in zip(numbers, mask, updates, strict=True):
        first, n_run = MELS_PER_FRAME * (update.start - 1), update.end - update.start
        end = MELS_PER_FRAME * update.end if update.ends else first + MELS_PER_FRAME * (n_frames + 2)
        row[:3] = first, end, n_run
        row[3 : 3 + update.n_frames] = *range(update.start, update.end), *update.places
        row[3 + n_frames :][: update.n_frames] = _n_before(update) + np.arange(update.n_frames)
        bias[..., : update.n_attended] = 0.0 if update.log_weights is None else update.log_weights
    mel = np.stack([_mel_around(update, n_frames) for update in updates])
    return torch.from_numpy(mel), torch.from_numpy(numbers), torch.from_numpy(mask)


def _compute(
    model: Whisper,
    mel: Tensor,
    numbers: Tensor,
    mask: Tensor | None,
    held: Tensor | None,
    *,
    has_places: bool = True,
    n_before: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute frames of windows; return their states (B, n, d) and the cross-attention keys and values
    (n_layers, 2, B, H, n, d_head).

    mel: (B, n_mels, 2 * (n_run + 2)), around the frames that follow one another. numbers: (B, 3 + 2 * n)
    int64: the first column of mel and the end of the window, the number of frames that follow one another
    (others are single ones of padding), positions in the window, and places among the frames attended to.
    mask: (B, 1, 1, n_attended), added to the attention logits, or None. held: (n_layers, 2, B, H, n_attended,
    d_head), written; None: the computed frames attend to one another. n_before: where one window's frames
    are written, if all are there.
    """
    encoder, n = model.encoder, (numbers.shape[1] - 3) // 2
    first, end, n_run = (column[:, None] for column in numbers[:, :3].unbind(1))
    positions, places = numbers[:, 3 : 3 + n], numbers[:, 3 + n :]
    columns = first + torch.arange(mel.shape[2], device=mel.device)
    # Outside the window, the second convolution must see zeros, not the first one's output for zeros.
    inside = ((columns >= 0) & (columns < end))[:, None].to(mel.dtype)
    x = F.gelu(encoder.conv1(mel)) * inside
    x = F.gelu(encoder.conv2(x)).transpose(1, 2)[:, 1:-1]
    x = F.pad(x, (0, 0, 0, n - x.shape[1]))
    if has_places:
        is_single = torch.arange(n, device=mel.device) >= n_run
        x = torch.where(is_single[:, :, None], _frame_of_padding(encoder), x)
    x = (x + encoder.positional_embedding[positions]).to(mel.dtype)
    rows = torch.arange(len(mel), device=mel.device)[:, None]

    def extended(layer: int, new: KeysValues) -> KeysValues:
        if held is None:
            return new
        for memory, computed in zip(held[layer], new, strict=True):
            if n_before is not None:
                memory[:, :, n_before : n_before + n] = computed
            else:
                memory.transpose(1, 2)[rows, places] = computed.transpose(1, 2)
        return held[layer, 0], held[layer, 1]

    states = encoder.run_layers(x, extended, mask)
    pairs = [tensor for pair in model.decoder.cross_keys_values(states) for tensor in pair]
    if pairs:
        return states, torch.stack(pairs).view(-1, 2, *pairs[0].shape)
    return states, states.new_zeros(0, 2, len(mel), 1, n, 1)  # a runtime with a decoder of its own


def _caches(
    updates: Sequence[WindowUpdate], states: Tensor, cross: Tensor, held: Tensor
) -> list[EncoderKvCache]:
    caches, into, given = [], [], []
    for row, update in enumerate(updates):
        n, first = update.n_attended, _n_before(update)
        sizes = (*held.shape[:2], held.shape[3], n, held.shape[5])
        cache = EncoderKvCache(
            held.new_empty(sizes),
            states.new_empty(1, n, states.shape[2]),
            cross.new_empty(*cross.shape[:2], cross.shape[3], n, cross.shape[5]),
        )
        caches.append(cache)
        into.append(cache.keys_values)
        given.append(held[:, :, row, :, :n])
        computed = first, first + update.n_frames, states[row : row + 1], cross[:, :, row]
        parts = [computed]
        if update.before is not None:
            parts.append((0, first, update.before.states, update.before.cross))
        if update.after is not None:
            parts.append((computed[1], n, update.after.states, update.after.cross))
        for begin, end, of_states, of_cross in parts:
            into += [cache.states[:, begin:end], cache.cross[:, :, :, begin:end]]
            given += [of_states[:, : end - begin], of_cross[:, :, :, : end - begin]]
    torch._foreach_copy_(into, given)
    return caches


def _frame_of_padding(encoder: AudioEncoder) -> Tensor:
    nothing = encoder.conv1.weight.new_zeros(1, encoder.conv1.in_channels, 5 * MELS_PER_FRAME)
    x = F.gelu(encoder.conv2(F.gelu(encoder.conv1(nothing)))).transpose(1, 2)
    return x[0, 2:3]


def _mel_around(update: WindowUpdate, n_frames: int) -> Floats:
    first = MELS_PER_FRAME * (update.start - 1)
    n_columns = MELS_PER_FRAME * (n_frames + 2)
    last = MELS_PER_FRAME * update.end if update.ends else first + n_columns
    mel = update.mel(max(0, first), min(last, first + n_columns))
    n_before = max(0, -first)
    return np.pad(mel, ((0, 0), (n_before, n_columns - n_before - mel.shape[1])))


ENCODER_SECONDS = (5, 10, 15, 20, 30)
"""Lengths for which windows are recorded; they are padded to the next one."""
ENCODER_WINDOWS = (16, 8, 4, 2, 1)
"""Windows of a recorded call; others are divided into these."""


ALIGNMENT = 256
"""Bytes; tensors in the memory begin at multiples."""


class Encoder:
    """Encodes windows at once, or those that have grown.

    Each is computed by itself: in a batch its states would be rounded in another way, and texts would depend
    on who else speaks.
    """

    def __init__(self, model: Whisper) -> None:
        self._model = model

    @torch.no_grad()
    def encode(self, mel: Floats) -> tuple[Tensor, list[KeysValues] | None]:
        """Encode whole windows (B, n_mels, 2 * n): the states (B, n, d), and the cross-attention keys and
        values, if they were computed too.
        """
        return torch.cat([self._states(window[None]) for window in mel]), None

    def encode_incremental(self, updates: Sequence[WindowUpdate]) -> list[EncoderKvCache]:
        return [encode_incremental(self._model, [update])[0] for update in updates]

    def _states(self, mel: Floats) -> Tensor:
        weight, is_full = self._model.encoder.conv1.weight, mel.shape[2] == 2 * self._model.dims.n_audio_ctx
        with attention_plans(weight.device, is_full):
            states: Tensor = self._model.encoder(torch.from_numpy(mel).to(weight))
        return states


class StaticEncoder(Encoder):
    """Encodes windows in recorded functions of few shapes, which share the memory of their results.

    record: records a function over static tensors. n_bytes: of that memory; what does not fit is not
    recorded.
    """

    def __init__(self, model: Whisper, record: Record, n_bytes: int) -> None:
        super().__init__(model)
        self._record = record
        with torch.inference_mode(False):
            self._memory = model.encoder.conv1.weight.new_zeros(n_bytes, dtype=torch.uint8)
        self._recorded: dict[tuple[int, int, int | None], _RecordedEncoder] = {}

    @torch.no_grad()
    def encode_incremental(self, updates: Sequence[WindowUpdate]) -> list[EncoderKvCache]:
        by_size: dict[tuple[int, int], list[WindowUpdate]] = {}
        for update in updates:
            sizes = self._frames(update.n_frames), aligned(1 + self._frames(update.n_attended))
            by_size.setdefault(sizes, []).append(update)
        by_update: dict[int, EncoderKvCache] = {}
        for (n_frames, n_attended), some in by_size.items():
            for together, recorded in self._divided(some, n_frames, n_attended):
                if recorded is None or recorded.held is None:
                    caches = encode_incremental(self._model, together)
                else:
                    caches = _caches(together, *recorded.run(together), recorded.held)
                by_update |= zip(map(id, together), caches, strict=True)
        return [by_update[id(update)] for update in updates]

    @torch.no_grad()
    def encode(self, mel: Floats) -> tuple[Tensor, list[KeysValues] | None]:
        n = mel.shape[2] // MELS_PER_FRAME
        updates: list[WindowUpdate] = [EncoderUpdate(window, 0, n, True) for window in mel]
        states: list[Tensor] = []
        cross: list[Tensor] = []
        for together, recorded in self._divided(updates, self._frames(n), None):
            if recorded is None:
                return self._states(mel), None
            results = recorded.run(together)
            states.append(results[0][:, :n].clone())
            cross.append(results[1][..., :n, :].clone())
        return torch.cat(states), [(keys, values) for keys, values in torch.cat(cross, dim=2)]

    def _frames(self, n_frames: int) -> int:
        sizes = (FRAMES_PER_SECOND * seconds for seconds in ENCODER_SECONDS)
        return min(next(size for size in sizes if size >= n_frames), self._model.dims.n_audio_ctx)

    def _divided(
        self, updates: Sequence[WindowUpdate], n_frames: int, n_attended: int | None
    ) -> Iterator[tuple[Sequence[WindowUpdate], _RecordedEncoder | None]]:
        while updates:
            for n in ENCODER_WINDOWS:
                key = n, n_frames, n_attended
                if n <= len(updates) and key not in self._recorded:
                    with torch.inference_mode(False):  # also for calls outside of inference mode
                        room = _room(self._model, self._memory, *key)
                        if room is not None:
                            self._recorded[key] = _RecordedEncoder(self._model, self._record, *room)
                if n <= len(updates) and key in self._recorded:
                    break
            else:
                n = len(updates)
            yield updates[:n], self._recorded.get(key)
            updates = updates[n:]


def _room(
    model: Whisper, memory: Tensor, n_windows: int, n_frames: int, n_attended: int | None
) -> tuple[Tensor | None, Tensor, Tensor] | None:
    dtype = model.encoder.conv1.weight.dtype
    sizes = _sizes(model, n_windows, n_frames, n_attended or 0)
    ends = [0, *accumulate(ALIGNMENT * -(-math.prod(size) * dtype.itemsize // ALIGNMENT) for size in sizes)]
    if ends[-1] > len(memory):
        return None
    held, states, cross = (
        memory[first:last][: math.prod(size) * dtype.itemsize].view(dtype).view(size)
        for first, last, size in zip(ends, ends[1:], sizes, strict=False)
    )
    return held if n_attended else None, states, cross


class _RecordedEncoder:
    def __init__(
        self, model: Whisper, record: Record, held: Tensor | None, states: Tensor, cross: Tensor
    ) -> None:
        self._model, self.held, self._states, self._cross = model, held, states, cross
        n, self._n_frames, _ = states.shape
        self._n_attended = self._n_frames if held is None else held.shape[4]
        self._mel = states.new_zeros(n, model.dims.n_mels, MELS_PER_FRAME * (self._n_frames + 2))
        self._numbers = states.new_zeros(n, 3 + 2 * self._n_frames, dtype=torch.int64)
        self._mask = states.new_zeros(n, 1, 1, self._n_attended)
        with torch.no_grad():
            self._replay = record(self._compute)

    def _compute(self) -> Outputs:
        states, cross = _compute(self._model, self._mel, self._numbers, self._mask, self.held)
        return self._states.copy_(states), self._cross.copy_(cross)

    def run(self, updates: Sequence[WindowUpdate]) -> tuple[Tensor, Tensor]:
        """Compute windows; return what `_compute` does, valid until the next run of any."""
        inputs = _inputs(updates, self._n_frames, self._n_attended)
        for static, given in zip((self._mel, self._numbers, self._mask), inputs, strict=True):
            static.copy_(given)
        if self.held is not None:
            self.held.zero_()
            _fill(self.held, updates)
        states, cross = self._replay()
        return states, cross
