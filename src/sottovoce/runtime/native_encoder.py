"""The encoder of the native backend, in the kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import sottovoce_kernels as kernels
from sottovoce_kernels.encoder import Encoder, Window

from sottovoce.errors import OptionError
from sottovoce.models.backend import EncoderOutput, EncoderState, IncrementalResult, IncrementalWindow
from sottovoce.models.checkpoint.base import Array, Checkpoint, Floats, floats
from sottovoce.models.ctc_head import gelu
from sottovoce.models.dims import default_encoder_mode, upper_half_heads
from sottovoce.runtime.incremental_encoder import (
    CachedWindow,
    EncoderUpdate,
    content_frames,
    plan_updates,
)
from sottovoce.threads import n_threads
from sottovoce.types import Features

Words = npt.NDArray[np.uint16]
"""Bits of bfloat16."""

LAYERS = (
    (("attn.query", "attn.key"), "query_key"),
    (("attn.value",), "value"),
    (("attn.out",), "out"),
    (("mlp.0",), "up"),
    (("mlp.2",), "down"),
)
"""Linear layers of a block that share a table, in the order of the kernels, and the table's name."""
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


@dataclass(slots=True, eq=False)
class NativeEncoderOutput(EncoderOutput):
    """Encoder states (B, n_frames, d) float32 of windows.

    cross_kv: per decoder layer; None: computed when needed. log_weights: (B, n_frames) float32, added to the
    attention logits of frames that represent several; or None.
    """

    states: Floats
    n_content_frames: tuple[int, ...]
    cross_kv: Sequence[CrossKeysValues] | None = field(default=None, repr=False)
    log_weights: Floats | None = field(default=None, repr=False)

    @property
    def n_frames(self) -> int:
        return int(self.states.shape[1])

    def rows(self, windows: Sequence[int]) -> NativeEncoderOutput:
        if [*windows] == [*range(self.batch_size)]:
            return self
        first, n = windows[0], len(windows)
        is_run = [*windows] == [*range(first, first + n)]
        some = slice(first, first + n) if is_run else np.array(windows)
        return NativeEncoderOutput(
            self.states[some],
            tuple(self.n_content_frames[window] for window in windows),
            self.cross_kv and [CrossKeysValues(kv.keys[some], kv.values[some]) for kv in self.cross_kv],
            None if self.log_weights is None else self.log_weights[some],
        )

    def _lengthened(self, n_frames: int) -> NativeEncoderOutput:
        """Append frames that no token attends to."""
        missing = n_frames - self.n_frames
        if not missing:
            return self
        weights = self.log_weights
        if weights is None:
            weights = np.zeros(self.states.shape[:2], np.float32)
        states = np.pad(self.states, ((0, 0), (0, missing), (0, 0)))
        weights = np.pad(weights, ((0, 0), (0, missing)), constant_values=-np.inf)
        return NativeEncoderOutput(states, self.n_content_frames, None, weights)

    def joined(self, others: Sequence[EncoderOutput]) -> NativeEncoderOutput:
        if not others:
            return self
        longest = max(output.n_frames for output in (self, *others))
        outputs = [native_output(output)._lengthened(longest) for output in (self, *others)]
        computed = [output.cross_kv for output in outputs if output.cross_kv is not None]
        cross_kv = weights = None
        if len(computed) == len(outputs):
            layers = (zip(*layer, strict=True) for layer in zip(*computed, strict=True))
            cross_kv = [CrossKeysValues(*map(np.concatenate, layer)) for layer in layers]
        if any(output.log_weights is not None for output in outputs):
            parts = [(output.log_weights, output.states.shape[:2]) for output in outputs]
            weights = np.concatenate([np.zeros(n, np.float32) if own is None else own for own, n in parts])
        n_content = tuple(n for output in outputs for n in output.n_content_frames)
        states = np.concatenate([output.states for output in outputs])
        return NativeEncoderOutput(states, n_content, cross_kv, weights)

    def with_content(self, n_content_frames: tuple[int, ...]) -> NativeEncoderOutput:
        return replace(self, n_content_frames=n_content_frames)

    def states_on_host(self) -> Floats:
        return self.states


def native_output(encoded: EncoderOutput) -> NativeEncoderOutput:
    """Return windows of this runtime.

    Raises:
        OptionError: windows of another one.
    """
    if not isinstance(encoded, NativeEncoderOutput):
        raise OptionError(f"rows: expected windows encoded in the kernels, got {type(encoded).__name__}")
    return encoded


@dataclass(frozen=True, slots=True, eq=False)
class WindowFrames:
    """Cached frames: states (n, d) float32, and the encoder's keys_values (n_layer, 2, n, d) bfloat16."""

    states: Floats
    keys_values: Words

    @property
    def n_frames(self) -> int:
        return len(self.states)

    def part(self, start: int, end: int) -> WindowFrames:
        return WindowFrames(self.states[start:end], np.ascontiguousarray(self.keys_values[:, :, start:end]))


def _joined(update: EncoderUpdate[WindowFrames], computed: WindowFrames) -> WindowFrames:
    parts = [part for part in (update.before, computed, update.after) if part is not None]
    if len(parts) == 1:
        return computed
    states = np.concatenate([part.states for part in parts])
    return WindowFrames(states, np.concatenate([part.keys_values for part in parts], axis=2))


def _window(update: EncoderUpdate[WindowFrames], mel: Floats, computed: WindowFrames) -> Window:
    n_columns = mel.shape[1]
    before, after, weights = update.before, update.after, update.log_weights
    return Window(
        mel.ctypes.data,
        n_columns,
        min(n_columns, 2 * update.end) if update.ends else n_columns,
        update.start,
        update.end - update.start,
        computed.states.ctypes.data,
        places=update.places,
        before=0 if before is None else before.keys_values.ctypes.data,
        n_before=0 if before is None else before.n_frames,
        after=0 if after is None else after.keys_values.ctypes.data,
        n_after=0 if after is None else after.n_frames,
        log_weights=0 if weights is None else weights.ctypes.data,
        keys_values=computed.keys_values.ctypes.data,
    )


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
        tensors = checkpoint.tensors
        chosen = tables_in_bytes() if in_bytes is None else in_bytes
        for layer in range(dims.n_audio_layer):
            self._set_layer(layer, tensors, chosen)
        for which, n_in in enumerate((dims.n_mels, dims.n_audio_state)):
            weight, bias = (floats(tensors[f"encoder.conv{which + 1}.{of}"]) for of in ("weight", "bias"))
            self._encoder.set_convolution(which, weight.ctypes.data, bias.ctypes.data, n_in)
        self._set_norm(-1, 0, tensors, "encoder.ln_post")
        positions = floats(tensors["encoder.positional_embedding"])
        self._encoder.set_positions(positions.ctypes.data)
        padding = _frame_of_padding(tensors)
        self._encoder.set_padding(padding.ctypes.data)

    def _set_layer(self, layer: int, tensors: Mapping[str, Array], in_bytes: Collection[str]) -> None:
        block = f"encoder.blocks.{layer}"
        for which, (parts, name) in enumerate(LAYERS):
            weights = [floats(tensors[f"{block}.{part}.weight"]) for part in parts]
            weight = np.concatenate(weights)
            bias = np.concatenate([self._bias(tensors, f"{block}.{part}", len(weights[0])) for part in parts])
            shape = (weight.shape[0], weight.shape[1])
            self._encoder.set_table(
                layer, which, weight.ctypes.data, bias.ctypes.data, shape, in_bytes=name in in_bytes
            )
        self._set_norm(layer, 0, tensors, f"{block}.attn_ln")
        self._set_norm(layer, 1, tensors, f"{block}.mlp_ln")

    @staticmethod
    def _bias(tensors: Mapping[str, Array], name: str, n_out: int) -> Floats:
        bias = tensors.get(f"{name}.bias")
        return np.zeros(n_out, np.float32) if bias is None else floats(bias)

    def _set_norm(self, layer: int, which: int, tensors: Mapping[str, Array], name: str) -> None:
        weight, bias = (floats(tensors[f"{name}.{of}"]) for of in ("weight", "bias"))
        self._encoder.set_norm(layer, which, weight.ctypes.data, bias.ctypes.data)

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
        mels = [np.ascontiguousarray(update.mel, np.float32) for _, update in planned]
        rooms = [self._room(update) for _, update in planned]
        to_encode = [
            _window(update, mel, room) for (_, update), mel, room in zip(planned, mels, rooms, strict=True)
        ]
        self._encoder.encode(to_encode, n_threads())
        results = []
        for (plan, update), room in zip(planned, rooms, strict=True):
            frames = _joined(update, room)
            weights = None if update.log_weights is None else update.log_weights[None]
            encoded = NativeEncoderOutput(frames.states[None], (plan.cache.n_content,), None, weights)
            state: EncoderState = NativeEncoderState(plan.cache, frames)
            results.append(IncrementalResult(encoded, state, plan.n_computed, plan.start))
        return results

    def _room(self, update: EncoderUpdate[WindowFrames]) -> WindowFrames:
        n_frames, d = update.n_frames, self.dims.n_audio_state
        keys_values = np.empty((self.dims.n_audio_layer, 2, n_frames, d), np.uint16)
        return WindowFrames(np.empty((n_frames, d), np.float32), keys_values)
