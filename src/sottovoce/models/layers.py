"""Linear layers for decoder steps (few rows, int8, packed weights), and multi-head attention.

A decoder step is limited by reading the weights. A CPU's float32 "row times matrix" kernels reach a third
of the memory bandwidth, a batch of "matrix times column" products nearly all of it (MKL, AVX-512: 1.7 to 2.4
times as fast).

int8 weights have one scale per row, the largest absolute value over 127 (LLM.int8(), Dettmers et al. 2022,
without outlier columns). For many rows the weights are dequantised.

Packed weights are stored in oneDNN's blocks, which oneDNN otherwise makes at every product: half of the
time of a bfloat16 decoder step (Zen 4, PyTorch 2.13). In float32, 2 to 32 rows are two to four times as fast.
The operators are those of `torch.compile`'s frozen graphs; without them layers stay plain.

Shapes of attention: B batch, H heads, T queries, S keys, d_head = d / H.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sottovoce.models.devices import aligned as aligned
from sottovoce.threads import n_threads

FEW_ROWS = 2
"""Most rows of the transposed product; more rows only pay over very large tables."""
FEW_ROWS_OF_LARGE = 16
LARGE = 1 << 14
"""Rows of a very large table, such as a vocabulary."""


class Linear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return rows_times_table(input, self.weight, self.bias)


class TokenEmbedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """Initialise, except on the meta device, where PyTorch would import its compiler."""
        if not self.weight.is_meta:
            super().reset_parameters()

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    def rows(self, indices: Tensor) -> Tensor:
        return self.weight[indices]

    def logits(self, hidden: Tensor) -> Tensor:
        """Map hidden states (..., d) to logits (..., n_vocab)."""
        return rows_times_table(hidden, self.weight)


def rows_times_table(x: Tensor, table: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply x (..., n_in) by table (n_out, n_in) transposed and add bias (n_out,): (..., n_out)."""
    n_out, n_in = table.shape
    n_rows = x.numel() // n_in
    limit = FEW_ROWS_OF_LARGE if n_out >= LARGE else FEW_ROWS
    if table.dtype != torch.float32 or table.device.type != "cpu" or not 1 <= n_rows <= limit:
        return F.linear(x, table, bias)
    n_parts = _parts(n_out) if n_rows == 1 else 1
    if n_rows == 1 and n_parts == 1:
        return F.linear(x, table, bias)
    columns = x.reshape(n_rows, n_in).t().expand(n_parts, n_in, n_rows)
    parts = table.view(n_parts, n_out // n_parts, n_in)
    product = torch.bmm(parts, columns).view(n_out, n_rows)
    rows = product.t().contiguous().view(*x.shape[:-1], n_out)
    return rows if bias is None else rows + bias


def _parts(n_out: int) -> int:
    return next((n for n in (4, 2, 5, 3) if n_out % n == 0), 1)


FEW_INT8_ROWS = 16
"""Most rows of PyTorch's int8 kernel; for more, float products are faster (measured on Zen 4)."""
KERNEL_STEP = 32
"""Columns of a block of the kernel."""


class Int8Table(nn.Module):
    """A table (n_out, n_in) of int8 values with a float32 scale per row."""

    values: Tensor
    scales: Tensor

    def __init__(self, n_out: int, n_in: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.register_buffer("values", torch.empty(n_out, n_in, dtype=torch.int8))
        self.register_buffer("scales", torch.empty(n_out))

    def rows(self, indices: Tensor | None = None) -> Tensor:
        """Return rows as floats (*indices, n_in); None: all (n_out, n_in)."""
        values = self.values if indices is None else self.values[indices]
        scales = self.scales if indices is None else self.scales[indices]
        return values.to(self.dtype) * scales[..., None].to(self.dtype)

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply x (..., n_in) by the table transposed and add bias (n_out,): (..., n_out)."""
        n_out, n_in = self.values.shape
        n_rows = x.numel() // n_in
        if x.device.type != "cpu" or n_in % KERNEL_STEP or not 1 <= n_rows <= FEW_INT8_ROWS:
            return F.linear(x, self.rows(), bias)
        # The kernel is fast for bfloat16 only; scales of 1 here leave the real ones to float32.
        ones = torch.ones(n_out, dtype=torch.bfloat16)
        summed = torch._weight_int8pack_mm(x.reshape(n_rows, n_in).bfloat16(), self.values, ones)
        scaled = (summed * self.scales).to(x.dtype).view(*x.shape[:-1], n_out)
        return scaled if bias is None else scaled + bias


class NativeLinear(nn.Module):
    """A linear layer of int8 weights and activations in the native kernels."""

    def __init__(self, linear: nn.Linear, *, gelu: bool = False) -> None:
        import sottovoce_kernels as kernels

        super().__init__()
        weight = linear.weight.detach().float().contiguous()
        bias = None if linear.bias is None else linear.bias.detach().float().contiguous()
        self._n_out, self._n_in = weight.shape
        address = 0 if bias is None else bias.data_ptr()
        self._table = kernels.Linear(weight.data_ptr(), address, self._n_out, self._n_in)
        self._epilogue = kernels.GELU if gelu else kernels.STORE

    def forward(self, x: Tensor) -> Tensor:
        rows = x.detach().float().contiguous()
        out = torch.empty(*x.shape[:-1], self._n_out)
        n_rows = rows.numel() // self._n_in
        if n_rows:
            self._table.apply(rows.data_ptr(), n_rows, out.data_ptr(), self._epilogue, n_threads())
        return out.to(x.dtype)


class Int8Linear(Int8Table):
    """A linear layer over an int8 table; bias and activations have the same dtype."""

    def __init__(self, like: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__(like.out_features, like.in_features, dtype)
        self.bias = None if like.bias is None else nn.Parameter(torch.empty(like.out_features, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.bias)


class Int8Embedding(Int8Table):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.rows(tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.product(hidden)


def quantize(table: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise a table (n_out, n_in) to int8 values and float32 scales (n_out,)."""
    largest = table.float().abs().amax(dim=1)
    scales = torch.where(largest > 0, largest / 127, torch.ones_like(largest))
    return (table.float() / scales[:, None]).round().to(torch.int8), scales


def with_int8_tables(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Replace every linear layer and embedding by an uninitialised int8 table; return the model."""
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


N_ROWS_HINT = 8
"""The number of rows that the layout is optimised for."""


class PackedLinear(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._table = packed(linear.weight)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return packed_product(x, self._table, self.bias)


class PackedEmbedding(TokenEmbedding):
    def __init__(self, embedding: TokenEmbedding) -> None:
        n_rows, n_state = embedding.weight.shape
        super().__init__(n_rows, n_state, _weight=embedding.weight)
        self._table = packed(embedding.weight)

    def logits(self, hidden: Tensor) -> Tensor:
        return packed_product(hidden, self._table, None)


def packed(table: Tensor) -> Tensor:
    """Reorder a table (n_out, n_in) into oneDNN's blocks, an opaque tensor.

    Raises:
        RuntimeError: not supported by this build or processor.
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
    """Pack linear layers and token embeddings of a model for inference, if possible."""
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


KeysValues = tuple[Tensor, Tensor]
"""Keys and values, (B, H, S, d_head) each."""
FEW_QUERIES = 8
"""Up to here plain products take half as long as PyTorch's bfloat16 CPU kernel (Zen 4). So they do for more
queries, but they round logits to bfloat16, which costs words.
"""
MANY_KEYS = 64
"""Below, as in a growing cache, plain products would need a new kernel for every number of keys."""


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention with Whisper's projections (keys have no bias)."""

    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.query = Linear(n_state, n_state)
        self.key = Linear(n_state, n_state, bias=False)
        self.value = Linear(n_state, n_state)
        self.out = Linear(n_state, n_state)

    def keys_values(self, x: Tensor) -> KeysValues:
        """Project x (B, S, d) to keys and values, (B, H, S, d_head) each."""
        return self.split_heads(self.key(x)), self.split_heads(self.value(x))

    def queries(self, x: Tensor) -> Tensor:
        """Project x (B, T, d) to queries (B, H, T, d_head)."""
        return self.split_heads(self.query(x))

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Attend from queries (B, H, T, d_head) to keys and values (B, H, S, d_head); returns (B, T, d).

        mask: broadcastable to (B, H, T, S); bool (True: may attend) or added to the logits.
        """
        return self.merged(attend(queries, keys, values, mask))

    def merged(self, attended: Tensor) -> Tensor:
        """Merge the outputs of heads (B, H, T, d_head) by the output projection: (B, T, d)."""
        merged: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return merged

    def split_heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.n_head, -1).transpose(1, 2)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend from queries (B, H, T, d_head) to keys and values (B, H, S, d_head); returns (B, H, T,
    d_head).

    Uses PyTorch's fused kernel, or plain products if they are much faster.

    mask: broadcastable to (B, H, T, S); bool (True: may attend) or added to the logits.
    """
    if queries.shape[2] <= FEW_QUERIES and queries.dtype == torch.bfloat16 and queries.device.type == "cpu":
        if keys.shape[2] >= MANY_KEYS:
            return _by_products(queries, keys, values, mask)
        if queries.shape[2] == 1:  # the fused kernel is slower for one than for two
            doubled = queries.expand(-1, -1, 2, -1)
            return F.scaled_dot_product_attention(doubled, keys, values, attn_mask=mask)[:, :, :1]
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


def _by_products(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    logits = (queries * queries.shape[-1] ** -0.5 @ keys.transpose(-1, -2)).float()
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
    attended: Tensor = logits.softmax(dim=-1).to(values.dtype) @ values
    return attended


def head_weights(queries: Tensor, keys: Tensor, heads: Sequence[int], bias: Tensor | None = None) -> Tensor:
    """Compute attention probabilities of single heads: (len(heads), B, T, S) float32.

    queries: (B, H, T, d_head). keys: (B, H, S, d_head). bias: (B, 1, 1 or T, S), added to the logits, or
    None.
    """
    scaled = queries.float() * queries.shape[-1] ** -0.5
    logits = torch.stack([scaled[:, head] @ keys[:, head].float().transpose(-1, -2) for head in heads])
    if bias is not None:
        logits = logits + bias[:, 0]
    return logits.softmax(dim=-1)


@contextmanager
def attention_plans(device: torch.device, allowed: bool) -> Iterator[None]:
    """Let cuDNN, the fastest on Hopper, compute attention or not: it plans each new shape for tens of
    milliseconds, which pays only where shapes are fixed.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(allowed)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
