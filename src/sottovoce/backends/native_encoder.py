"""The encoder on PyTorch, with int8 linear layers of the kernels if asked for.

Weights have a scale a row, activations a scale a token; attention, norms and convolutions stay PyTorch's, so
that incremental encoding is the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import sottovoce_kernels as kernels
import torch
from torch import Tensor, nn

from sottovoce.models.dims import ModelDims
from sottovoce.models.layers import KeysValues, pack
from sottovoce.models.whisper import AudioEncoder, TextDecoder, Whisper, stays_float32
from sottovoce.threads import n_threads

PREFIX = "encoder."
INT8_PROJECTIONS = ("query", "key")
"""Of attention. In `base`, relative errors of the states with one kind of layer in int8: query 1.1 %, key
0.8 %, value 5.5 %, out 4.5 %, the perceptron's two 2.6 % and 2.1 %; bfloat16 everywhere gives 2.5 %."""


class NativeLinear(nn.Module):
    """An int8 linear layer, followed by GELU if `gelu`."""

    def __init__(self, linear: nn.Linear, *, gelu: bool = False) -> None:
        super().__init__()
        weight = linear.weight.detach().float().contiguous()
        bias = None if linear.bias is None else linear.bias.detach().float().contiguous()
        self._n_out, self._n_in = weight.shape
        address = 0 if bias is None else bias.data_ptr()
        self._table = kernels.Linear(weight.data_ptr(), address, self._n_out, self._n_in)
        self._epilogue = kernels.GELU if gelu else kernels.STORE

    def forward(self, x: Tensor) -> Tensor:
        """(..., n_in) -> (..., n_out), in the dtype of x."""
        rows = x.detach().float().contiguous()
        out = torch.empty(*x.shape[:-1], self._n_out)
        n_rows = rows.numel() // self._n_in
        if n_rows:
            self._table.apply(rows.data_ptr(), n_rows, out.data_ptr(), self._epilogue, n_threads())
        return out.to(x.dtype)


def network_without_decoder(
    dims: ModelDims, tensors: Mapping[str, Tensor], *, dtype: torch.dtype, int8: bool
) -> Whisper:
    """Build a network whose decoder has no weights.

    tensors: names and shapes of OpenAI's state dict, tables (n_out, n_in). dtype: of the activations, and of
    the weights. int8: the linear layers that bear it are native.
    """
    with torch.device("meta"):
        model = Whisper(dims)
        model.decoder = _NoDecoder(dims)
    state = {
        name.removeprefix(PREFIX): tensor.to("cpu", torch.float32 if stays_float32(name) else dtype)
        for name, tensor in tensors.items()
        if name.startswith(PREFIX)
    }
    model.encoder.load_state_dict(state, strict=True, assign=True)
    state.clear()  # so that each plain table goes when it is packed
    model.requires_grad_(False).eval()
    if int8:
        _with_native_linears(model.encoder)
    pack(model.encoder)
    return model


class _NoDecoder(TextDecoder):
    """A decoder without layers to compute for."""

    def cross_keys_values(self, states: Tensor) -> list[KeysValues]:
        """Return nothing: the kernels compute their own from the states."""
        return []


def _with_native_linears(encoder: AudioEncoder) -> None:
    """Replace the linear layers of an encoder that bear int8 by native ones."""
    for block in encoder.layers:
        for name in INT8_PROJECTIONS:
            setattr(block.attn, name, NativeLinear(_linear(getattr(block.attn, name))))
        up, down = _linear(block.mlp[0]), _linear(block.mlp[2])
        block.mlp = nn.Sequential(NativeLinear(up, gelu=True), nn.Identity(), NativeLinear(down))


def _linear(layer: nn.Module) -> nn.Linear:
    assert isinstance(layer, nn.Linear)
    return layer
