"""Weights in eight bits, everything else in a float dtype: less memory to hold, and to read at every step.

Each row of a table has one scale, its largest absolute value over 127 (symmetric, round to nearest; the
weight-only scheme of LLM.int8(), Dettmers et al. 2022, without its outlier columns). A decoder step for a
few hypotheses is bound by reading weights, and reads a quarter of float32's; for many rows (the encoder,
a prompt) the table is turned back into floats, which is little work beside the product.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEW_ROWS = 16
"""Up to here PyTorch's int8 kernel reads the table as it is; above, floats are faster (measured on Zen 4)."""
KERNEL_STEP = 32
"""The kernel reads rows in blocks of so many columns."""


class Int8Table(nn.Module):
    """A table (n_out, n_in): int8 values, and one float32 scale a row."""

    values: Tensor
    scales: Tensor

    def __init__(self, n_out: int, n_in: int, dtype: torch.dtype) -> None:
        """Allocate a table. dtype: of the rows that `rows` returns."""
        super().__init__()
        self.dtype = dtype
        self.register_buffer("values", torch.empty(n_out, n_in, dtype=torch.int8))
        self.register_buffer("scales", torch.empty(n_out))

    def rows(self, indices: Tensor | None = None) -> Tensor:
        """Return rows as floats: (*indices, n_in); indices None: the whole table (n_out, n_in)."""
        values = self.values if indices is None else self.values[indices]
        scales = self.scales if indices is None else self.scales[indices]
        return values.to(self.dtype) * scales[..., None].to(self.dtype)

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply x (..., n_in) by the table transposed and add bias (n_out,): (..., n_out)."""
        n_out, n_in = self.values.shape
        n_rows = x.numel() // n_in
        if x.device.type != "cpu" or n_in % KERNEL_STEP or not 1 <= n_rows <= FEW_ROWS:
            return F.linear(x, self.rows(), bias)
        # The kernel is quick for bfloat16 alone; its scale of 1 keeps the true ones in float32.
        ones = torch.ones(n_out, dtype=torch.bfloat16)
        summed = torch._weight_int8pack_mm(x.reshape(n_rows, n_in).bfloat16(), self.values, ones)
        scaled = (summed * self.scales).to(x.dtype).view(*x.shape[:-1], n_out)
        return scaled if bias is None else scaled + bias


class Int8Linear(Int8Table):
    """A linear layer over an int8 table; the bias, if any, is in the dtype of the activations."""

    def __init__(self, like: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__(like.out_features, like.in_features, dtype)
        self.bias = None if like.bias is None else nn.Parameter(torch.empty(like.out_features, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., n_in) to (..., n_out)."""
        return self.product(x, self.bias)


class Int8Embedding(Int8Table):
    """Token embedding over an int8 table: rows by token, and logits of the whole vocabulary."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up tokens (...) int64: (..., d)."""
        return self.rows(tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        """Map hidden states (..., d) to logits (..., n_vocab)."""
        return self.product(hidden)


def quantize(table: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise a table (n_out, n_in) to int8 values and float32 scales (n_out,); a row of zeros has scale
    1.
    """
    largest = table.float().abs().amax(dim=1)
    scales = torch.where(largest > 0, largest / 127, torch.ones_like(largest))
    return (table.float() / scales[:, None]).round().to(torch.int8), scales


def with_int8_tables(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Replace every linear layer and embedding by an int8 table without values; return the model."""
    for name, child in list(model.named_children()):
        if isinstance(child, nn.Linear):
            setattr(model, name, Int8Linear(child, dtype))
        elif isinstance(child, nn.Embedding):
            setattr(model, name, Int8Embedding(child.num_embeddings, child.embedding_dim, dtype))
        else:
            with_int8_tables(child, dtype)
    return model


def int8_tables(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Quantise a state dict: `weight` (n_out, n_in) of each table becomes `values` and `scales`."""
    state = dict(tensors)
    for name, module in model.named_modules():
        if isinstance(module, Int8Table):
            state[f"{name}.values"], state[f"{name}.scales"] = quantize(state.pop(f"{name}.weight"))
    return state
