"""`FirstToken` on a CPU by compiled code, where numba (extra `fast`) is installed and tables can be read.

Not known here: how it is computed (see `first_token_kernel`), caches, and tokenizers.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sottovoce.models.linear import Linear
from sottovoce.models.packed import PackedLinear
from sottovoce.models.whisper import DecoderBlock, KeysValues, TextDecoder

logger = logging.getLogger(__name__)
Array = npt.NDArray[Any]


@lru_cache(maxsize=1)
def has_compiler() -> bool:
    """numba is installed."""
    return importlib.util.find_spec("numba") is not None


class CompiledFirstToken:
    """`FirstToken` with the same parameters and answers, in float32 throughout.

    What is kept besides the weights: norms, biases, two rows, and n_rows of the embedding. The first one on a
    machine waits some seconds for the compiler, whose work is kept on disk.

    Raises: ValueError where the decoder's weights cannot be read in place.
    """

    def __init__(self, decoder: TextDecoder, token: int, vocabulary: Tensor) -> None:
        from sottovoce.jit import compiling_is_told
        from sottovoce.models import first_token_kernel

        self._kernel = first_token_kernel
        blocks = decoder.layers
        layers = [layer for block in blocks for layer in _linears(block)]
        self._layers = layers  # whose storage the tables are views of
        self._tables = tuple(_table(layer) for layer in layers)
        self._norms = np.stack([[_norm(norm) for norm in _norms(block)] for block in blocks])
        biases = [_bias(layer) for layer in layers]
        self._biases = np.stack([[biases[6 * i + k] for k in (0, 1, 2, 3, 5)] for i in range(len(blocks))])
        self._inner_biases = np.stack(biases[4::6])
        self._last_norm = _norm(decoder.ln)
        self._vocabulary = decoder.token_embedding.rows(vocabulary).detach().float().numpy()
        embedded = decoder.token_embedding(torch.tensor(token))
        row = (embedded + decoder.positional_embedding[0]).detach().float()  # (d,)
        known = (self._tables, self._norms, self._biases, 0)
        with compiling_is_told("the language probe"):
            self._start = first_token_kernel.read(row.numpy()[None], *known)
            self._first_queries = first_token_kernel.queries_of(self._start, *known)
            self(
                [_one_frame(block, row) for block in blocks], [(0, 1)]
            )  # so that the first stretch need not wait

    def __call__(self, keys_values: Sequence[KeysValues], spans: Sequence[tuple[int, int]]) -> Tensor:
        """See `FirstToken.__call__`."""
        found = self._kernel.answers(
            self._start,
            self._first_queries,
            self._tables,
            self._norms,
            self._biases,
            self._inner_biases,
            self._last_norm,
            self._vocabulary,
            tuple(_of_one(each) for pair in keys_values for each in pair),
            np.array(spans, dtype=np.int64),
        )
        return torch.from_numpy(found)


def compiled_first_token(decoder: TextDecoder, token: int, vocabulary: Tensor) -> CompiledFirstToken | None:
    """A `CompiledFirstToken`, or None where there can be none."""
    if not has_compiler() or vocabulary.device.type != "cpu":
        return None
    try:
        return CompiledFirstToken(decoder, token, vocabulary)
    except ValueError as error:
        logger.debug("the first token is not compiled: %s", error)
        return None


def _linears(block: DecoderBlock) -> tuple[nn.Module, ...]:
    own, cross = block.attn, block.cross_attn
    return (own.value, own.out, cross.query, cross.out, block.mlp[0], block.mlp[2])


def _norms(block: DecoderBlock) -> tuple[nn.LayerNorm, ...]:
    return (block.attn_ln, block.cross_attn_ln, block.mlp_ln)


def _norm(norm: nn.LayerNorm) -> Array:
    return np.stack([norm.weight.detach().float().numpy(), norm.bias.detach().float().numpy()])


def _bias(layer: nn.Module) -> Array:
    assert isinstance(layer, (Linear, PackedLinear))
    bias: Array = layer.bias.detach().float().numpy()
    return bias


def _table(layer: nn.Module) -> Array:
    """A layer's table as the kernel reads it, without a copy."""
    if isinstance(layer, PackedLinear):
        blocks = layer.blocks()
        if blocks is None:
            raise ValueError("tables are packed in an unknown order")
        return blocks
    if not isinstance(layer, Linear) or layer.weight.dtype != torch.float32:
        raise ValueError(f"a table of {type(layer).__name__} in {getattr(layer, 'dtype', 'another dtype')}")
    table: Array = layer.weight.detach().contiguous().numpy()
    return table


def _one_frame(block: DecoderBlock, row: Tensor) -> KeysValues:
    """Keys and values of a frame without sound."""
    n_heads = block.cross_attn.n_head
    frame = torch.zeros(1, n_heads, 1, row.shape[0] // n_heads, dtype=_dtype(block))
    return frame, frame


def _dtype(block: DecoderBlock) -> torch.dtype:
    return block.cross_attn.out.bias.dtype


def _of_one(tensor: Tensor) -> Array:
    """Keys or values (1, H, n_frames, d_head) of one audio: (H, n_frames, d_head), bfloat16 as uint16."""
    shown = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
    return np.ascontiguousarray(shown.numpy()[0])
