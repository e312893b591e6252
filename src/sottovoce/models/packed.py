"""Linear layers on a CPU with their tables laid out for its kernels once, instead of at every product.

PyTorch keeps a table row by row, and oneDNN brings it into blocks whenever it multiplies. In bfloat16 that is
half of the time of a decoder step, which reads every weight once and computes little with it; 1500 rows of
an encoder gain 4 to 15 % (Zen 4, PyTorch 2.13). Single rows in float32 are quicker from a plain table
(`linear.py`). The operators are those of `torch.compile`'s frozen graphs; where a build or a processor
has none, layers stay as they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sottovoce.models.linear import TokenEmbedding

N_ROWS_HINT = 8
"""The number of rows that the layout is made for; others, one and 1500, are as quick with it."""

BLOCK_ROWS = 64
"""Rows of a bfloat16 table that oneDNN keeps together."""


class PackedLinear(nn.Module):
    """A linear layer for inference whose table is packed; the bias, if any, is not."""

    def __init__(self, linear: nn.Linear) -> None:
        """Raises: RuntimeError where tables of this dtype cannot be packed."""
        super().__init__()
        self._table = packed(linear.weight)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """(..., n_in) -> (..., n_out)."""
        return packed_product(x, self._table, self.bias)

    def blocks(self) -> npt.NDArray[np.uint32] | None:
        """The table as it lies in memory, see `blocks`; valid while the layer lives."""
        return blocks(self._table)


class PackedEmbedding(TokenEmbedding):
    """Rows by token from the table as it is, and the logits of all from a packed copy."""

    def __init__(self, embedding: TokenEmbedding) -> None:
        """Raises: RuntimeError where tables of this dtype cannot be packed."""
        n_rows, n_state = embedding.weight.shape
        super().__init__(n_rows, n_state, _weight=embedding.weight)
        self._table = packed(embedding.weight)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., d) -> (..., n_vocab)."""
        return packed_product(hidden, self._table, None)


def packed(table: Tensor) -> Tensor:
    """A table (n_out, n_in) in oneDNN's blocks: an opaque tensor.

    Raises: RuntimeError where this build or processor cannot.
    """
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        raise RuntimeError("this build of PyTorch packs no tables")
    blocks: Tensor = torch.ops.mkldnn._reorder_linear_weight(table.detach(), N_ROWS_HINT)
    return blocks


def packed_product(x: Tensor, table: Tensor, bias: Tensor | None) -> Tensor:
    """x (..., n_in) times a packed table transposed, plus bias (n_out,): (..., n_out)."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, table, bias, "none", [], "")
    return product


def blocks(table: Tensor) -> npt.NDArray[np.uint32] | None:
    """A packed bfloat16 table (n_out, n_in) as it lies: (n_out / 64, n_in / 2, 64); None in another order.

    Element [b, k, o] holds weights [64 b + o, 2 k] (lower half) and [64 b + o, 2 k + 1] (upper half).
    """
    if table.dtype != torch.bfloat16 or table.shape[0] % BLOCK_ROWS or table.shape[1] % 4:
        return None
    n_out, n_in = table.shape
    return _memory(table) if _lies_in_blocks(n_out, n_in) else None


@lru_cache(maxsize=64)
def _lies_in_blocks(n_out: int, n_in: int) -> bool:
    """Whether this build and processor lay out tables of a shape as `blocks` reads them: tried on numbers."""
    places = torch.arange(n_out * n_in).view(n_out, n_in)
    expected = places.view(-1, BLOCK_ROWS, n_in // 2, 2).transpose(1, 2)  # (n_out / 64, n_in / 2, 64, 2)
    for shift in (0, 8, 16):  # bfloat16 holds integers up to 256
        digits = places >> shift & 255
        table = packed(digits.to(torch.bfloat16))
        found = _memory(table)
        if found is None:
            return False
        halves = torch.from_numpy(found.view(np.int16).copy()).view(torch.bfloat16).view(expected.shape)
        if not torch.equal(halves.long(), expected >> shift & 255):
            return False
    return True


def _memory(table: Tensor) -> npt.NDArray[np.uint32] | None:
    """The memory of a packed bfloat16 table, without a copy; None where it holds more than the table."""
    n_out, n_in = table.shape
    n_bytes: int = torch.ops.mkldnn._nbytes(table)
    if n_bytes != 2 * n_out * n_in:
        return None
    words = (ctypes.c_uint32 * (n_bytes // 4)).from_address(torch.ops.mkldnn.data_ptr(table))
    return np.ctypeslib.as_array(words).reshape(n_out // BLOCK_ROWS, n_in // 2, BLOCK_ROWS)


def pack(model: nn.Module, only: Collection[str] = ()) -> None:
    """Pack linear layers and token embeddings of a model for inference, where that can be done.

    only: names of the layers meant; all that the model holds when there are none.
    """
    for name, child in list(model.named_children()):
        if only and name not in only:
            continue
        try:
            if isinstance(child, nn.Linear):
                setattr(model, name, PackedLinear(child))
            elif isinstance(child, TokenEmbedding):
                setattr(model, name, PackedEmbedding(child))
            else:
                pack(child)
        except RuntimeError:
            return
