"""The encoder of the native backend: in the kernels, or on PyTorch with their int8 linear layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import sottovoce_kernels as kernels
import torch
from sottovoce_kernels.encoder import Encoder, Window
from torch import Tensor, nn

from sottovoce.kernels import WIDEST_HEAD
from sottovoce.models.backend import EncoderOutput, IncrementalResult, IncrementalWindow
from sottovoce.models.checkpoint.base import Array, Checkpoint, Floats, floats
from sottovoce.models.ctc_head import gelu
from sottovoce.models.dims import ModelDims, default_encoder_mode, upper_half_heads
from sottovoce.models.layers import KeysValues, NativeLinear, pack
from sottovoce.models.whisper import AudioEncoder, TextDecoder, Whisper, as_tensor, stays_float32
from sottovoce.runtime.incremental_encoder import (
    CachedWindow,
    EncoderUpdate,
    content_frames,
    plan_updates,
)
from sottovoce.runtime.torch_encoder import TorchEncoderOutput
from sottovoce.threads import n_threads
from sottovoce.types import Features

PREFIX = "encoder."
INT8_PROJECTIONS = ("query", "key")
"""Attention projections in int8: in `base` they err by about 1 %, others by up to 5.5 % (bfloat16: 2.5 %)."""
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
INSTEAD_OF_PYTORCH = MappingProxyType(
    {
        "portable": False,  # plain C++, a number at a time
        "avx2": True,  # 0.68 times PyTorch's float32
        "avx2-vnni": False,  # never measured
        "avx512": True,  # 0.43 times PyTorch's float32
        "avx512-bf16": True,  # 0.47 times PyTorch's float32
        "neon": False,  # never timed
        "amx": False,  # never measured: PyTorch has tiles of bfloat16, these kernels have those of bytes
    }
)
"""Whether an instruction set encodes faster here than on PyTorch: a window of `base`, one thread, Zen 4."""


def network_without_decoder(
    dims: ModelDims, tensors: Mapping[str, Array], *, dtype: torch.dtype, int8: bool
) -> Whisper:
    """Build a network whose decoder has no weights, of OpenAI's state dict.

    int8: use native linear layers where accuracy allows.
    """
    with torch.device("meta"):
        model = Whisper(dims)
        model.decoder = _NoDecoder(dims)
    state = {
        name.removeprefix(PREFIX): as_tensor(tensor).to(torch.float32 if stays_float32(name) else dtype)
        for name, tensor in tensors.items()
        if name.startswith(PREFIX)
    }
    model.encoder.load_state_dict(state, strict=True, assign=True)
    state.clear()  # frees each plain table once it is packed
    model.requires_grad_(False).eval()
    if int8:
        _with_native_linears(model.encoder)
    pack(model.encoder)
    return model


class _NoDecoder(TextDecoder):
    def cross_keys_values(self, states: Tensor) -> list[KeysValues]:
        """Return nothing: the kernels compute their own from the states."""
        return []


def _with_native_linears(encoder: AudioEncoder) -> None:
    for block in encoder.layers:
        for name in INT8_PROJECTIONS:
            setattr(block.attn, name, NativeLinear(_linear(getattr(block.attn, name))))
        up, down = _linear(block.mlp[0]), _linear(block.mlp[2])
        block.mlp = nn.Sequential(NativeLinear(up, gelu=True), nn.Identity(), NativeLinear(down))


def _linear(layer: nn.Module) -> nn.Linear:
    assert isinstance(layer, nn.Linear)
    return layer


def tables_in_bytes() -> tuple[str, ...]:
    return () if kernels.in_use() in WORDS_ALONE else IN_BYTES


def native_encoder_is_faster() -> bool:
    return INSTEAD_OF_PYTORCH.get(kernels.in_use(), False)


def fits_kernels(dims: ModelDims) -> bool:
    """Return whether the kernels support an encoder of these sizes."""
    is_even = not (dims.n_mels % 2 or dims.n_audio_state % 2)
    return is_even and dims.n_audio_state // dims.n_audio_head <= WIDEST_HEAD


@dataclass(frozen=True, slots=True, eq=False)
class WindowFrames:
    """Cached frames: states (n, d) float32, and the encoder's keys_values (n_layer, 2, n, d) bfloat16."""

    states: Tensor
    keys_values: Tensor

    @property
    def n_frames(self) -> int:
        return len(self.states)

    def part(self, start: int, end: int) -> WindowFrames:
        return WindowFrames(self.states[start:end], self.keys_values[:, :, start:end].contiguous())


def _joined(update: EncoderUpdate[WindowFrames], computed: WindowFrames) -> WindowFrames:
    parts = [part for part in (update.before, computed, update.after) if part is not None]
    if len(parts) == 1:
        return computed
    states = torch.cat([part.states for part in parts])
    return WindowFrames(states, torch.cat([part.keys_values for part in parts], dim=2))


def _window(update: EncoderUpdate[WindowFrames], mel: Tensor, computed: WindowFrames) -> Window:
    n_columns = mel.shape[1]
    before, after, weights = update.before, update.after, update.log_weights
    return Window(
        mel.data_ptr(),
        n_columns,
        min(n_columns, 2 * update.end) if update.ends else n_columns,
        update.start,
        update.end - update.start,
        computed.states.data_ptr(),
        places=update.places,
        before=0 if before is None else before.keys_values.data_ptr(),
        n_before=0 if before is None else before.n_frames,
        after=0 if after is None else after.keys_values.data_ptr(),
        n_after=0 if after is None else after.n_frames,
        log_weights=0 if weights is None else weights.ctypes.data,
        keys_values=computed.keys_values.data_ptr(),
    )


def _frame_of_padding(tensors: Mapping[str, Array]) -> Floats:
    first, bias = (floats(tensors[f"encoder.conv{which}.bias"]) for which in (1, 2))
    return gelu(floats(tensors["encoder.conv2.weight"]).sum(2) @ gelu(first) + bias)


class NativeEncoderState(CachedWindow[WindowFrames]):
    __slots__ = ()


class NativeEncoder:
    runtime = "native, int8 and int16"
    device = torch.device("cpu")

    def __init__(
        self, checkpoint: Checkpoint, *, dtype: torch.dtype, in_bytes: Collection[str] | None = None
    ) -> None:
        """dtype: of the states. in_bytes: names of the int8 tables; None: by the instruction set."""
        dims = checkpoint.dims
        self.name, self.dims, self.tail_s, self.dtype = checkpoint.name, dims, checkpoint.tail_s, dtype
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

    def encode(self, features: Features) -> EncoderOutput:
        n_content = content_frames(features, self.dims, self.name)
        rows = torch.from_numpy(np.ascontiguousarray(features.mel))
        n_columns = rows.shape[2]
        states = torch.empty(len(rows), n_columns // 2, self.dims.n_audio_state)
        self._encoder.encode(
            [
                Window(mel.data_ptr(), n_columns, n_columns, 0, n_columns // 2, into.data_ptr())
                for mel, into in zip(rows, states, strict=True)
            ],
            n_threads(),
        )
        return TorchEncoderOutput(states.to(self.dtype), n_content)

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        planned = plan_updates(windows, NativeEncoderState, dims=self.dims, name=self.name)
        mels = [torch.from_numpy(np.ascontiguousarray(update.mel)) for _, update in planned]
        rooms = [self._room(update) for _, update in planned]
        to_encode = [
            _window(update, mel, room) for (_, update), mel, room in zip(planned, mels, rooms, strict=True)
        ]
        self._encoder.encode(to_encode, n_threads())
        results = []
        for (plan, update), room in zip(planned, rooms, strict=True):
            frames = _joined(update, room)
            state, states = NativeEncoderState(plan.cache, frames), frames.states[None].to(self.dtype)
            weights = None if update.log_weights is None else torch.from_numpy(update.log_weights)[None]
            encoded = TorchEncoderOutput(states, (plan.cache.n_content,), log_weights=weights)
            results.append(IncrementalResult(encoded, state, plan.n_computed, plan.start))
        return results

    def _room(self, update: EncoderUpdate[WindowFrames]) -> WindowFrames:
        n_frames, d = update.n_frames, self.dims.n_audio_state
        keys_values = torch.empty(self.dims.n_audio_layer, 2, n_frames, d, dtype=torch.bfloat16)
        return WindowFrames(torch.empty(n_frames, d), keys_values)
