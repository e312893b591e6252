"""Whisper's network (Radford et al. 2022, https://arxiv.org/abs/2212.04356).

Modules are named as in OpenAI's checkpoints. The network is stateless: cache and audio are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sottovoce.models.checkpoint.base import BFLOAT16, Array
from sottovoce.models.dims import ModelDims
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
        # The kernel's blocks have 32 columns.
        if x.device.type != "cpu" or n_in % 32 or not 1 <= n_rows <= FEW_INT8_ROWS:
            return F.linear(x, self.rows(), bias)
        # The kernel is fast for bfloat16 only; scales of 1 here leave the real ones to float32.
        ones = torch.ones(n_out, dtype=torch.bfloat16)
        summed = torch._weight_int8pack_mm(x.reshape(n_rows, n_in).bfloat16(), self.values, ones)
        scaled = (summed * self.scales).to(x.dtype).view(*x.shape[:-1], n_out)
        return scaled if bias is None else scaled + bias


class NativeLinear(nn.Module):
    """A linear layer of int8 weights and activations in the native kernels."""

    def __init__(self, linear: nn.Linear) -> None:
        import sottovoce_kernels as kernels

        super().__init__()
        weight = linear.weight.detach().float().contiguous()
        bias = None if linear.bias is None else linear.bias.detach().float().contiguous()
        self._n_out, self._n_in = weight.shape
        address = 0 if bias is None else bias.data_ptr()
        self._table = kernels.Linear(weight.data_ptr(), address, self._n_out, self._n_in)
        self._epilogue = kernels.STORE

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
    # The layout is optimised for 8 rows.
    blocks: Tensor = torch.ops.mkldnn._reorder_linear_weight(table.detach(), 8)
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


CPU = torch.device("cpu")
Extend = Callable[[KeysValues], KeysValues]


class DecoderAttention(Protocol):
    """Attention of the decoder's layers to the text so far, and to the audio."""

    @property
    def positions(self) -> Tensor: ...

    def over_text(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        """Return the self-attention of a layer for normed x (n, d), in the shape of x."""

    def over_audio(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        """Return the cross-attention of a layer for normed x (n, d), in the shape of x."""


def as_tensor(array: Array) -> Tensor:
    """Return a checkpoint's array as a tensor that shares its memory, if it is contiguous."""
    plain = np.require(array, requirements=["C", "A", "W"])
    if plain.dtype == BFLOAT16:
        return torch.from_numpy(plain.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(plain)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__()
        self.attn = MultiHeadAttention(n_state, n_head)
        self.attn_ln = nn.LayerNorm(n_state)
        self.mlp = nn.Sequential(Linear(n_state, 4 * n_state), nn.GELU(), Linear(4 * n_state, n_state))
        self.mlp_ln = nn.LayerNorm(n_state)

    def forward(self, x: Tensor, extended: Extend | None = None, mask: Tensor | None = None) -> Tensor:
        """Run (B, n_frames, d) -> (B, n_frames, d).

        extended: maps keys and values of x to those attended to; None: self-attention. mask: added to the
        attention logits, broadcastable to (B, H, n_frames, n_attended).
        """
        normed = self.attn_ln(x)
        new = self.attn.keys_values(normed)
        keys, values = new if extended is None else extended(new)
        return self.add_mlp(x + self.attn(self.attn.queries(normed), keys, values, mask=mask))

    def add_mlp(self, x: Tensor) -> Tensor:
        summed: Tensor = x + self.mlp(self.mlp_ln(x))
        return summed


class DecoderBlock(ResidualAttentionBlock):
    """Self-attention, cross-attention and a perceptron, run by `TextDecoder`."""

    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__(n_state, n_head)
        self.cross_attn = MultiHeadAttention(n_state, n_head)
        self.cross_attn_ln = nn.LayerNorm(n_state)


class AudioEncoder(nn.Module):
    """Log-mel frames to audio states: two convolutions, positions and self-attention layers."""

    positional_embedding: Tensor

    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        n_state = dims.n_audio_state
        self.conv1 = nn.Conv1d(dims.n_mels, n_state, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(n_state, n_state, kernel_size=3, stride=2, padding=1)
        self.register_buffer("positional_embedding", torch.empty(dims.n_audio_ctx, n_state))
        layers = [ResidualAttentionBlock(n_state, dims.n_audio_head) for _ in range(dims.n_audio_layer)]
        self.blocks = nn.ModuleList(layers)
        self.ln_post = nn.LayerNorm(n_state)

    @property
    def layers(self) -> list[ResidualAttentionBlock]:
        return cast("list[ResidualAttentionBlock]", list(self.blocks))

    def forward(self, mel: Tensor) -> Tensor:
        """(B, n_mels, n_mel_frames), even and at most 2 * n_audio_ctx -> (B, n_mel_frames / 2, d)."""
        x = F.gelu(self.conv1(mel))
        x = F.gelu(self.conv2(x)).transpose(1, 2)
        # Contiguous: the layers would keep the order of the convolutions, which costs a card a quarter.
        return self.run_layers((x.contiguous() + self.positional_embedding[: x.shape[1]]).to(mel.dtype))

    def run_layers(
        self,
        x: Tensor,
        extended: Callable[[int, KeysValues], KeysValues] | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Run the layers and the last norm: (B, n_frames, d) -> (B, n_frames, d).

        extended, mask: as for a block; extended also gets the layer's index.
        """
        for layer, block in enumerate(self.layers):
            x = block(x, None if extended is None else partial(extended, layer), mask)
        normed: Tensor = self.ln_post(x)
        return normed


class TextDecoder(nn.Module):
    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        n_state = dims.n_text_state
        self.token_embedding: TokenEmbedding | Int8Embedding = TokenEmbedding(dims.n_vocab, n_state)
        self.positional_embedding = nn.Parameter(torch.empty(dims.n_text_ctx, n_state))
        layers = [DecoderBlock(n_state, dims.n_text_head) for _ in range(dims.n_text_layer)]
        self.blocks: nn.ModuleList = nn.ModuleList(layers)
        self.ln = nn.LayerNorm(n_state)

    @property
    def layers(self) -> list[DecoderBlock]:
        return cast("list[DecoderBlock]", list(self.blocks))

    def cross_keys_values(self, states: Tensor) -> list[KeysValues]:
        """Compute every layer's cross-attention keys and values over encoder states (B, n_frames, d).

        Each is (B, H, n_frames, d_head), contiguous by heads, which makes every step twice as fast.
        """
        pairs = (block.cross_attn.keys_values(states) for block in self.layers)
        return [(keys.contiguous(), values.contiguous()) for keys, values in pairs]

    def forward(self, tokens: Tensor, attention: DecoderAttention) -> Tensor:
        """Run the new tokens (n,) int64 of all rows; returns normalised hidden states (n, d)."""
        embedding = self.token_embedding
        x = (embedding(tokens) + self.positional_embedding[attention.positions]).to(embedding.dtype)
        for layer, block in enumerate(self.layers):
            x = x + attention.over_text(layer, block.attn, block.attn_ln(x))
            x = x + attention.over_audio(layer, block.cross_attn, block.cross_attn_ln(x))
            x = block.add_mlp(x)
        hidden: Tensor = self.ln(x)
        return hidden

    def logits(self, hidden: Tensor, vocabulary: Tensor | None = None) -> Tensor:
        """Project hidden states (n, d) to logits (n, n_rows) float32.

        vocabulary: (n_rows,) int64 rows to compute, or None for all.
        """
        if vocabulary is None:
            return self.token_embedding.logits(hidden).float()
        return rows_times_table(hidden, self.token_embedding.rows(vocabulary)).float()


class Whisper(nn.Module):
    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        self.dims = dims
        self.encoder = AudioEncoder(dims)
        self.decoder = TextDecoder(dims)


def stays_float32(name: str, device: torch.device = CPU) -> bool:
    """Return whether a tensor stays float32 in a half-precision model: int8 scales, positions, and on a CPU
    norms.
    """
    if name.endswith(("positional_embedding", ".scales")):
        return True
    return device.type == "cpu" and name.split(".")[-2].endswith(("ln", "ln_post"))


def whisper_from_tensors(
    dims: ModelDims,
    tensors: Mapping[str, Array],
    *,
    device: torch.device,
    dtype: torch.dtype,
    int8: bool = False,
) -> Whisper:
    """Build a network for inference of OpenAI's state dict; on a CPU its linear layers pack their weights.

    dtype: of activations and weights. int8: quantise the large tables.
    """
    with torch.device("meta"):
        model = Whisper(dims)
        if int8:
            with_int8_tables(model, dtype)
    state = {
        name: tensor.to(device)
        if tensor.dtype == torch.int8
        else tensor.to(device, torch.float32 if stays_float32(name, device) else dtype)
        for name, tensor in int8_tables(
            model, {name: as_tensor(array) for name, array in tensors.items()}
        ).items()
    }
    model.load_state_dict(state, strict=True, assign=True)
    state.clear()  # frees each plain table once it is packed
    model.requires_grad_(False).eval()
    if device.type == "cpu":
        pack(model)
    return model
