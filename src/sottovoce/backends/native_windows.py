"""The encoder of the kernels behind tensors: whole windows of any length, a batch in one call."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

import sottovoce_kernels as kernels
import torch
from sottovoce_kernels.encoder import Encoder
from torch import Tensor

from sottovoce.models.dims import ModelDims

LAYERS = (
    (("attn.query", "attn.key"), "query_key"),
    (("attn.value",), "value"),
    (("attn.out",), "out"),
    (("mlp.0",), "up"),
    (("mlp.2",), "down"),
)
"""Linear layers of a block that share a table, in the order of the kernels, and the table's name."""
IN_BYTES = ("query_key", "up", "down")
"""Tables in eight bits; the others are in bfloat16."""

INSTEAD_OF_PYTORCH = MappingProxyType(
    {
        "portable": False,  # plain C++: some twenty times as slow
        "avx2": False,  # 1.1 times PyTorch's float32 in processor time: products of words, bfloat16 unpacked
        "avx2-vnni": False,  # never measured
        "avx512": True,  # 0.52 times PyTorch's float32, although bfloat16 is unpacked for every product
        "avx512-bf16": True,  # 0.35 times PyTorch's float32
        "amx": False,  # never measured: PyTorch has tiles for bfloat16, these kernels have none for it
    }
)
"""Whether an instruction set encodes faster here than on PyTorch: a window of `base`, one thread, Zen 4."""


def native_encoder_is_faster() -> bool:
    """Tell whether the instruction set in use encodes faster than PyTorch; False for one that is not known."""
    return INSTEAD_OF_PYTORCH.get(kernels.in_use(), False)


def fits_kernels(dims: ModelDims) -> bool:
    """Tell whether the kernels take an encoder of these sizes: even ones, and heads of at most 256."""
    return not (dims.n_mels % 2 or dims.n_audio_state % 2) and dims.n_audio_state // dims.n_audio_head <= 256


class NativeWindows:
    """Whisper's encoder in the kernels."""

    def __init__(
        self, dims: ModelDims, tensors: Mapping[str, Tensor], *, in_bytes: Collection[str] = IN_BYTES
    ) -> None:
        """Pack weights. tensors: names and shapes of OpenAI's state dict, any floating dtype.

        in_bytes: names of the tables in eight bits.
        """
        self.dims = dims
        sizes = (dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head, dims.n_audio_layer)
        self._encoder = Encoder(dims.n_mels, *sizes)
        for layer in range(dims.n_audio_layer):
            self._set_layer(layer, tensors, in_bytes)
        for which, n_in in enumerate((dims.n_mels, dims.n_audio_state)):
            weight, bias = (_floats(tensors[f"encoder.conv{which + 1}.{of}"]) for of in ("weight", "bias"))
            self._encoder.set_convolution(which, weight.data_ptr(), bias.data_ptr(), n_in)
        self._set_norm(-1, 0, tensors, "encoder.ln_post")
        positions = _floats(tensors["encoder.positional_embedding"])
        self._encoder.set_positions(positions.data_ptr())

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
        n_windows, n_frames = len(rows), rows.shape[2] // 2
        states = torch.empty(n_windows, n_frames, self.dims.n_audio_state)
        n_threads = torch.get_num_threads()
        self._encoder.encode(rows.data_ptr(), n_windows, n_frames, states.data_ptr(), n_threads)
        return states


def _floats(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32).contiguous()
