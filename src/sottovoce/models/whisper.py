"""Whisper's network (Radford et al. 2022, https://arxiv.org/abs/2212.04356).

Modules are named as in OpenAI's checkpoints. The network is stateless: cache and audio are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sottovoce.models.checkpoint.base import BFLOAT16, Array
from sottovoce.models.dims import ModelDims
from sottovoce.models.layers import (
    Int8Embedding,
    KeysValues,
    Linear,
    MultiHeadAttention,
    TokenEmbedding,
    int8_tables,
    pack,
    rows_times_table,
    with_int8_tables,
)

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
        own = self.attn.keys_values(normed)
        keys, values = own if extended is None else extended(own)
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
