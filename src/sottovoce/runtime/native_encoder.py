"""The encoder of the native backend, in the kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import sottovoce_kernels as kernels
from sottovoce_kernels.encoder import Encoder, Frames, Window

from sottovoce.models.backend import EncoderState, IncrementalResult, IncrementalWindow
from sottovoce.models.checkpoint.base import Array, Checkpoint, floats
from sottovoce.models.ctc_head import gelu
from sottovoce.models.dims import ModelDims, default_encoder_mode, upper_half_heads
from sottovoce.runtime.incremental_encoder import (
    CachedWindow,
    EncodedWindows,
    EncoderUpdate,
    content_frames,
    plan_updates,
)
from sottovoce.runtime.packed import PackedNumbers, PackedPart, PackedTable, PackedWeights, stored
from sottovoce.threads import n_threads
from sottovoce.types import Features, Floats

Words = npt.NDArray[np.uint16]
"""Bits of bfloat16."""

LAYERS = (
    ("query_key", ("attn.query", "attn.key"), 2, 1),
    ("value", ("attn.value",), 1, 1),
    ("out", ("attn.out",), 1, 1),
    ("up", ("mlp.0",), 4, 1),
    ("down", ("mlp.2",), 1, 4),
)
"""Tables of a block, in the order of the kernels: name, linear layers, outputs and inputs in widths of the
encoder.
"""
CONVOLUTIONS = ("encoder.conv1", "encoder.conv2")
POSITIONS = "encoder.positional_embedding"
PADDING = "encoder.padding"
"""The output of the convolutions far from any audio (d,)."""
IN_BYTES = ("down",)
"""Tables in int8, as far as this is faster; others are int16. The states' error is that of PyTorch's
bfloat16 (1.6 and 1.8 %, docs/research/kernels.md); with int16 alone 0.2 %.
"""
WORDS_ALONE = ("portable", "avx2")
"""Instruction sets on which int8 is no faster than int16."""


def tables_in_bytes() -> tuple[str, ...]:
    return () if kernels.in_use() in WORDS_ALONE else IN_BYTES


class CrossKeysValues(NamedTuple):
    """Cross-attention keys and values of a decoder layer, packed for the kernels, for windows (B, ...)."""

    keys: Words
    values: Words


class NativeEncoderOutput(EncodedWindows[Floats, CrossKeysValues]):
    """Encoder states (B, n_frames, d) float32 of windows."""

    __slots__ = ()

    @staticmethod
    def pair(keys: Words, values: Words) -> CrossKeysValues:
        return CrossKeysValues(keys, values)

    @staticmethod
    def concatenated(arrays: Sequence[Floats], axis: int = 0) -> Floats:
        joined: Floats = np.concatenate(arrays, axis)
        return joined

    def filled(self, shape: tuple[int, ...], value: float) -> Floats:
        return np.full(shape, value, np.float32)

    def states_on_host(self) -> Floats:
        return self.states


@dataclass(frozen=True, slots=True, eq=False)
class WindowFrames:
    """Cached frames: states (n, d) float32, and keys and values of which theirs begin at `first`."""

    states: Floats
    keys_values: Frames
    first: int = 0

    @property
    def n_frames(self) -> int:
        return len(self.states)

    def part(self, start: int, end: int) -> WindowFrames:
        return WindowFrames(self.states[start:end], self.keys_values, self.first + start)


def _window(update: EncoderUpdate[WindowFrames], mel: Floats, frames: WindowFrames) -> Window:
    """Return the update's part to compute; states of frames that are kept are copied."""
    n_columns = mel.shape[1]
    before, after, weights = update.before, update.after, update.log_weights
    n_before, n_after = (0 if kept is None else kept.n_frames for kept in (before, after))
    if before is not None:
        frames.states[:n_before] = before.states
    if after is not None:
        frames.states[frames.n_frames - n_after :] = after.states
    return Window(
        mel.ctypes.data,
        n_columns,
        min(n_columns, 2 * update.end) if update.ends else n_columns,
        update.start,
        update.end - update.start,
        frames.states[n_before:].ctypes.data,
        places=update.places,
        kept=None if before is None else before.keys_values,
        n_before=n_before,
        first_after=0 if after is None else after.first,
        n_after=n_after,
        log_weights=0 if weights is None else weights.ctypes.data,
        frames=frames.keys_values,
    )


def _parts(dims: ModelDims, in_bytes: Collection[str]) -> dict[str, PackedPart]:
    d = dims.n_audio_state
    parts: dict[str, PackedPart] = {
        name: PackedTable((name,), (d, 3 * n_in), in_words=True)
        for name, n_in in zip(CONVOLUTIONS, (dims.n_mels, d), strict=True)
    }
    parts |= stored(POSITIONS, dims.n_audio_ctx, d)
    parts[PADDING] = PackedNumbers((d,), _frame_of_padding)
    norms = ["encoder.ln_post"]
    for layer in range(dims.n_audio_layer):
        block = f"encoder.blocks.{layer}"
        norms += [f"{block}.attn_ln", f"{block}.mlp_ln"]
        for name, layers, n_out, n_in in LAYERS:
            names, shape = tuple(f"{block}.{each}" for each in layers), (n_out * d, n_in * d)
            parts[f"{block}.{name}"] = PackedTable(names, shape, in_words=name not in in_bytes)
    for norm in norms:
        parts |= stored(f"{norm}.weight", d) | stored(f"{norm}.bias", d)
    return parts


def _frame_of_padding(tensors: Mapping[str, Array]) -> Floats:
    first, bias = (floats(tensors[f"encoder.conv{which}.bias"]) for which in (1, 2))
    return gelu(floats(tensors["encoder.conv2.weight"]).sum(2) @ gelu(first) + bias)


@dataclass(frozen=True, slots=True, eq=False)
class NativeEncoderState(CachedWindow[WindowFrames]):
    """cross_kv: the decoder's, of the window."""

    cross_kv: Sequence[CrossKeysValues] = ()


class NativeEncoder:
    def __init__(self, checkpoint: Checkpoint, *, in_bytes: Collection[str] | None = None) -> None:
        """in_bytes: names of the int8 tables; None: by the instruction set."""
        dims = checkpoint.dims
        self.name, self.dims, self.tail_s = checkpoint.name, dims, checkpoint.tail_s
        self.alignment_heads = checkpoint.alignment_heads or upper_half_heads(dims)
        self.encoder_mode = checkpoint.encoder_mode or default_encoder_mode(dims)
        sizes = (dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head, dims.n_audio_layer)
        self._encoder = Encoder(dims.n_mels, *sizes)
        chosen = tables_in_bytes() if in_bytes is None else in_bytes
        self._weights = weights = PackedWeights(checkpoint, _parts(dims, chosen))
        d = dims.n_audio_state
        for layer in range(dims.n_audio_layer):
            block = f"encoder.blocks.{layer}"
            for which, (name, _, n_out, n_in) in enumerate(LAYERS):
                memory, shape = weights[f"{block}.{name}"], (n_out * d, n_in * d)
                self._encoder.set_table(layer, which, memory, shape, in_words=name not in chosen)
            self._set_norm(layer, 0, f"{block}.attn_ln")
            self._set_norm(layer, 1, f"{block}.mlp_ln")
        for which, n_in in enumerate((dims.n_mels, d)):
            self._encoder.set_convolution(which, weights[CONVOLUTIONS[which]], n_in)
        self._set_norm(-1, 0, "encoder.ln_post")
        self._encoder.set_positions(weights[POSITIONS])
        self._encoder.set_padding(weights[PADDING])

    def _set_norm(self, layer: int, which: int, name: str) -> None:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        self._encoder.set_norm(layer, which, weight, bias)

    def encode(self, features: Features) -> NativeEncoderOutput:
        n_content = content_frames(features, self.dims, self.name)
        rows = np.ascontiguousarray(features.mel, np.float32)
        n_columns = rows.shape[2]
        states = np.empty((len(rows), n_columns // 2, self.dims.n_audio_state), np.float32)
        self._encoder.encode(
            [
                Window(mel.ctypes.data, n_columns, n_columns, 0, n_columns // 2, into.ctypes.data)
                for mel, into in zip(rows, states, strict=True)
            ],
            n_threads(),
        )
        return NativeEncoderOutput(states, n_content)

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        planned = plan_updates(windows, NativeEncoderState, dims=self.dims, name=self.name)
        mels = [np.ascontiguousarray(update.mel(), np.float32) for _, update in planned]
        rooms = [self._room(update) for _, update in planned]
        to_encode = [
            _window(update, mel, room) for (_, update), mel, room in zip(planned, mels, rooms, strict=True)
        ]
        self._encoder.encode(to_encode, n_threads())
        results = []
        for (plan, update), frames in zip(planned, rooms, strict=True):
            weights = None if update.log_weights is None else update.log_weights[None]
            encoded = NativeEncoderOutput(frames.states[None], (plan.cache.n_content,), None, weights)
            state: EncoderState = NativeEncoderState(plan.cache, frames)
            results.append(IncrementalResult(encoded, state, plan.n_computed, plan.start))
        return results

    def _room(self, update: EncoderUpdate[WindowFrames]) -> WindowFrames:
        return WindowFrames(np.empty((update.n_attended, self.dims.n_audio_state), np.float32), Frames())
