"""The encoder of the kernels behind tensors: whole windows of any length, and frames of growing ones.

Several windows are computed in one call, each as if it were alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import sottovoce_kernels as kernels
import torch
from sottovoce_kernels.encoder import Encoder, Window
from torch import Tensor
from torch.nn.functional import gelu

from sottovoce.backends.kernels import WIDEST_HEAD
from sottovoce.models.dims import ModelDims
from sottovoce.models.incremental_encoder import EncoderUpdate
from sottovoce.threads import n_threads

LAYERS = (
    (("attn.query", "attn.key"), "query_key"),
    (("attn.value",), "value"),
    (("attn.out",), "out"),
    (("mlp.0",), "up"),
    (("mlp.2",), "down"),
)
"""Linear layers of a block that share a table, in the order of the kernels, and the table's name."""
IN_BYTES = ("down",)
"""Tables in eight bits where these are faster; the others are in words of 16 bits. States are no farther from
float32's than those of PyTorch's bfloat16 (1.6 and 1.8 %, docs/benchmarks.md); in words alone 0.2 %."""
WORDS_ALONE = ("portable", "avx2")
"""Instruction sets whose products of bytes are those of words, so that eight bits would be as slow."""

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


def tables_in_bytes() -> tuple[str, ...]:
    """Return the names of the tables in eight bits that suit the instruction set in use."""
    return () if kernels.in_use() in WORDS_ALONE else IN_BYTES


def native_encoder_is_faster() -> bool:
    """Tell whether the instruction set in use encodes faster than PyTorch; False for an unknown one."""
    return INSTEAD_OF_PYTORCH.get(kernels.in_use(), False)


def fits_kernels(dims: ModelDims) -> bool:
    """Tell whether the kernels take an encoder of these sizes: even, heads they have room for."""
    is_even = not (dims.n_mels % 2 or dims.n_audio_state % 2)
    return is_even and dims.n_audio_state // dims.n_audio_head <= WIDEST_HEAD


class NativeWindows:
    """Whisper's encoder in the kernels."""

    def __init__(
        self, dims: ModelDims, tensors: Mapping[str, Tensor], *, in_bytes: Collection[str] | None = None
    ) -> None:
        """Pack weights. tensors: names and shapes of OpenAI's state dict, any floating dtype.

        in_bytes: names of the tables in eight bits; None for those that suit the instruction set.
        """
        self.dims = dims
        sizes = (dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head, dims.n_audio_layer)
        self._encoder = Encoder(dims.n_mels, *sizes)
        chosen = tables_in_bytes() if in_bytes is None else in_bytes
        for layer in range(dims.n_audio_layer):
            self._set_layer(layer, tensors, chosen)
        for which, n_in in enumerate((dims.n_mels, dims.n_audio_state)):
            weight, bias = (_floats(tensors[f"encoder.conv{which + 1}.{of}"]) for of in ("weight", "bias"))
            self._encoder.set_convolution(which, weight.data_ptr(), bias.data_ptr(), n_in)
        self._set_norm(-1, 0, tensors, "encoder.ln_post")
        positions = _floats(tensors["encoder.positional_embedding"])
        self._encoder.set_positions(positions.data_ptr())
        padding = _frame_of_padding(tensors)
        self._encoder.set_padding(padding.data_ptr())

    def _set_layer(self, layer: int, tensors: Mapping[str, Tensor], in_bytes: Collection[str]) -> None:
        block = f"encoder.blocks.{layer}"
        for which, (parts, name) in enumerate(LAYERS):
            weights = [_floats(tensors[f"{block}.{part}.weight"]) for part in parts]
            weight = torch.cat(weights)
            bias = torch.cat([self._bias(tensors, f"{block}.{part}", len(weights[0])) for part in parts])
            shape = (weight.shape[0], weight.shape[1])
            self._encoder.set_table(
                layer, which, weight.data_ptr(), bias.data_ptr(), shape, in_bytes=name in in_bytes
            )
        self._set_norm(layer, 0, tensors, f"{block}.attn_ln")
        self._set_norm(layer, 1, tensors, f"{block}.mlp_ln")

    @staticmethod
    def _bias(tensors: Mapping[str, Tensor], name: str, n_out: int) -> Tensor:
        """Bias (n_out,) of a layer; the key's has none."""
        bias = tensors.get(f"{name}.bias")
        return torch.zeros(n_out) if bias is None else _floats(bias)

    def _set_norm(self, layer: int, which: int, tensors: Mapping[str, Tensor], name: str) -> None:
        weight, bias = (_floats(tensors[f"{name}.{of}"]) for of in ("weight", "bias"))
        self._encoder.set_norm(layer, which, weight.data_ptr(), bias.data_ptr())

    def __call__(self, mel: Tensor) -> Tensor:
        """Encode (B, n_mels, n_mel_frames), an even number, to states (B, n_mel_frames / 2, d) float32."""
        rows = _floats(mel)
        n_columns = rows.shape[2]
        states = torch.empty(len(rows), n_columns // 2, self.dims.n_audio_state)
        self._encoder.encode(
            [
                Window(one.data_ptr(), n_columns, n_columns, 0, n_columns // 2, into.data_ptr())
                for one, into in zip(rows, states, strict=True)
            ],
            n_threads(),
        )
        return states

    def update(self, updates: Sequence[EncoderUpdate[WindowFrames]]) -> list[WindowFrames]:
        """Compute the frames of several windows; return each window's, those before and after included."""
        mels = [_floats(update.mel) for update in updates]
        made = [self._room(update) for update in updates]
        windows = [_window(update, mel, own) for update, mel, own in zip(updates, mels, made, strict=True)]
        self._encoder.encode(windows, n_threads())
        return [_joined(update, own) for update, own in zip(updates, made, strict=True)]

    def _room(self, update: EncoderUpdate[WindowFrames]) -> WindowFrames:
        n_frames, d = update.n_frames, self.dims.n_audio_state
        keys_values = torch.empty(self.dims.n_audio_layer, 2, n_frames, d, dtype=torch.bfloat16)
        return WindowFrames(torch.empty(n_frames, d), keys_values)


@dataclass(frozen=True, slots=True, eq=False)
class WindowFrames:
    """What is kept of a window's frames.

    states: (n, d) float32. keys_values: (n_layer, 2, n, d) bfloat16, of the encoder's layers.
    """

    states: Tensor
    keys_values: Tensor

    @property
    def n_frames(self) -> int:
        return len(self.states)

    def part(self, start: int, end: int) -> WindowFrames:
        """Return frames [start, end), contiguous."""
        return WindowFrames(self.states[start:end], self.keys_values[:, :, start:end].contiguous())


def _joined(update: EncoderUpdate[WindowFrames], own: WindowFrames) -> WindowFrames:
    """Return all frames of a window, given the computed ones."""
    parts = [part for part in (update.before, own, update.after) if part is not None]
    if len(parts) == 1:
        return own
    states = torch.cat([part.states for part in parts])
    return WindowFrames(states, torch.cat([part.keys_values for part in parts], dim=2))


def _window(update: EncoderUpdate[WindowFrames], mel: Tensor, own: WindowFrames) -> Window:
    n_columns = mel.shape[1]
    before, after, weights = update.before, update.after, update.log_weights
    return Window(
        mel.data_ptr(),
        n_columns,
        min(n_columns, 2 * update.end) if update.ends else n_columns,
        update.start,
        update.end - update.start,
        own.states.data_ptr(),
        places=update.places,
        before=0 if before is None else before.keys_values.data_ptr(),
        n_before=0 if before is None else before.n_frames,
        after=0 if after is None else after.keys_values.data_ptr(),
        n_after=0 if after is None else after.n_frames,
        log_weights=0 if weights is None else weights.data_ptr(),
        keys_values=own.keys_values.data_ptr(),
    )


def _frame_of_padding(tensors: Mapping[str, Tensor]) -> Tensor:
    """Output (d,) of the convolutions for padding far from any audio."""
    first, bias = (_floats(tensors[f"encoder.conv{which}.bias"]) for which in (1, 2))
    table = _floats(tensors["encoder.conv2.weight"]).sum(2)
    return gelu(table @ gelu(first) + bias).contiguous()


def _floats(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32).contiguous()
