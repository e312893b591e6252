"""Whisper's network (Radford et al. 2022, https://arxiv.org/abs/2212.04356).

Modules are named as the keys of OpenAI's checkpoints, so a state dict loads as it is. The network
keeps no state: cache and audio context are arguments. It knows no tokenizer, decoding or file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sottovoce.models.attention import MultiHeadAttention, head_weights
from sottovoce.models.cache import DecoderCache, RowGroups
from sottovoce.models.dims import AlignmentHeads, ModelDims
from sottovoce.models.int8 import Int8Embedding, int8_tables, with_int8_tables
from sottovoce.models.linear import Linear, TokenEmbedding, rows_times_table
from sottovoce.models.packed import pack

KeysValues = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class AudioContext:
    """What the decoder's cross-attention sees.

    keys_values: per layer, (n_audio, n_head, n_frames, d_head) twice.
    bias: (n_audio, 1, group_size * n_new, n_frames), added to the logits; None adds nothing.
    capture: heads whose weights are returned.
    """

    keys_values: list[KeysValues]
    groups: RowGroups
    bias: Tensor | None = None
    capture: AlignmentHeads = ()

    def heads_of(self, layer: int) -> list[int]:
        """Captured heads of a layer, each once, ascending."""
        return sorted({head for at, head in self.capture if at == layer})


def sinusoids(length: int, channels: int) -> Tensor:
    """Whisper's fixed positions: (length, channels) float32, sines then cosines.

    Wavelengths run geometrically from 2*pi to 10000*2*pi (openai-whisper, model.py).
    """
    n_wave = channels // 2
    rates = torch.exp(-math.log(10_000) / (n_wave - 1) * torch.arange(n_wave, dtype=torch.float32))
    angles = torch.arange(length, dtype=torch.float32)[:, None] * rates[None]
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class LayerNorm(nn.LayerNorm):
    """Layer normalisation in float32, whatever comes in."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu":  # its kernel takes half-precision rows and float32 weights as they are
            return super().forward(x)
        return super().forward(x.float()).to(x.dtype)


class ResidualAttentionBlock(nn.Module):
    """Self-attention, and a two-layer perceptron: one layer of the encoder."""

    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__()
        self.attn = MultiHeadAttention(n_state, n_head)
        self.attn_ln = LayerNorm(n_state)
        self.mlp = nn.Sequential(Linear(n_state, 4 * n_state), nn.GELU(), Linear(4 * n_state, n_state))
        self.mlp_ln = LayerNorm(n_state)

    def forward(self, x: Tensor) -> Tensor:
        """(B, n_frames, d) -> (B, n_frames, d)."""
        normed = self.attn_ln(x)
        x = x + self.attn(self.attn.queries(normed), *self.attn.keys_values(normed))
        return self.add_mlp(x)

    def add_mlp(self, x: Tensor) -> Tensor:
        """The second residual branch."""
        summed: Tensor = x + self.mlp(self.mlp_ln(x))
        return summed


class DecoderBlock(ResidualAttentionBlock):
    """An encoder block with cross-attention between its two halves."""

    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__(n_state, n_head)
        self.cross_attn = MultiHeadAttention(n_state, n_head)
        self.cross_attn_ln = LayerNorm(n_state)

    def read(self, x: Tensor, cache: DecoderCache, layer: int, mask: Tensor | None) -> Tensor:
        """Self-attention over the cache, which takes up the new positions; x (R, n_new, d)."""
        normed = self.attn_ln(x)
        keys, values = cache.append(layer, *self.attn.keys_values(normed))
        causal = mask is None and x.shape[1] > 1
        attended: Tensor = self.attn(self.attn.queries(normed), keys, values, mask=mask, causal=causal)
        return x + attended

    def listen(self, x: Tensor, audio: AudioContext, layer: int) -> tuple[Tensor, Tensor | None]:
        """Cross-attention; returns x (R, n_new, d) and the captured weights (R, n_new, C, n_frames)."""
        keys, values = audio.keys_values[layer]
        folded = audio.groups.fold(self.cross_attn_ln(x))  # (n_audio, group_size * n_new, d)
        queries = self.cross_attn.queries(folded)
        mask = None if audio.bias is None else audio.bias.to(x.dtype)
        x = x + audio.groups.unfold(self.cross_attn(queries, keys, values, mask=mask))
        heads = audio.heads_of(layer)
        if not heads:
            return x, None
        weights = head_weights(queries, keys, heads, audio.bias)
        rows = audio.groups.unfold(weights.flatten(2))
        return x, rows.reshape(*rows.shape[:2], len(heads), -1)


class AudioEncoder(nn.Module):
    """Log-mel frames to audio states: two convolutions, positions, self-attention layers."""

    positional_embedding: Tensor

    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        n_state = dims.n_audio_state
        self.conv1 = nn.Conv1d(dims.n_mels, n_state, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(n_state, n_state, kernel_size=3, stride=2, padding=1)
        self.register_buffer("positional_embedding", torch.empty(dims.n_audio_ctx, n_state))
        layers = [ResidualAttentionBlock(n_state, dims.n_audio_head) for _ in range(dims.n_audio_layer)]
        self.blocks = nn.ModuleList(layers)
        self.ln_post = LayerNorm(n_state)

    @property
    def layers(self) -> list[ResidualAttentionBlock]:
        """The blocks, by their type."""
        return [_encoder_block(block) for block in self.blocks]

    def forward(self, mel: Tensor) -> Tensor:
        """(B, n_mels, n_mel_frames), even and at most 2 * n_audio_ctx -> (B, n_mel_frames / 2, d)."""
        x = F.gelu(self.conv1(mel))
        x = F.gelu(self.conv2(x)).transpose(1, 2)
        x = (x + self.positional_embedding[: x.shape[1]]).to(mel.dtype)
        for block in self.layers:
            x = block(x)
        normed: Tensor = self.ln_post(x)
        return normed


class TextDecoder(nn.Module):
    """Tokens to logits over the vocabulary, listening to the encoder's states."""

    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        n_state = dims.n_text_state
        self.token_embedding: TokenEmbedding | Int8Embedding = TokenEmbedding(dims.n_vocab, n_state)
        self.positional_embedding = nn.Parameter(torch.empty(dims.n_text_ctx, n_state))
        layers = [DecoderBlock(n_state, dims.n_text_head) for _ in range(dims.n_text_layer)]
        self.blocks: nn.ModuleList = nn.ModuleList(layers)
        self.ln = LayerNorm(n_state)

    @property
    def layers(self) -> list[DecoderBlock]:
        """The blocks, by their type."""
        return [_decoder_block(block) for block in self.blocks]

    def cross_keys_values(self, states: Tensor) -> list[KeysValues]:
        """Every layer's cross-attention keys and values over encoder states (B, n_frames, d).

        Laid out head by head: every step reads all of them, twice as fast as from rows of all heads.
        """
        pairs = (block.cross_attn.keys_values(states) for block in self.layers)
        return [(keys.contiguous(), values.contiguous()) for keys, values in pairs]

    def forward(
        self, tokens: Tensor, cache: DecoderCache, audio: AudioContext
    ) -> tuple[Tensor, Tensor | None]:
        """Read tokens (R, n_new) int64 into the cache.

        Returns hidden states (R, n_new, d), and the captured attention (R, n_captured, n_new,
        n_frames) float32 in the order of `audio.capture`, or None.
        """
        n_new = tokens.shape[1]
        places = self.positional_embedding[cache.positions(n_new)]
        x = (self.token_embedding(tokens) + places).to(self.token_embedding.dtype)
        mask = cache.mask(n_new) if cache.n_tokens or cache.left_padding is not None else None
        captured: dict[tuple[int, int], Tensor] = {}
        for layer, block in enumerate(self.layers):
            x = block.read(x, cache, layer, mask)
            x, weights = block.listen(x, audio, layer)
            if weights is not None:
                heads = audio.heads_of(layer)
                captured.update({(layer, head): weights[:, :, i] for i, head in enumerate(heads)})
            x = block.add_mlp(x)
        cache.advance(n_new)
        if not audio.capture:
            return self.ln(x), None
        return self.ln(x), torch.stack([captured[head] for head in audio.capture], dim=1)

    def logits(self, hidden: Tensor, vocabulary: Tensor | None = None) -> Tensor:
        """(R, n, d) -> (R, n, n_rows) float32, over all of the vocabulary or the rows given."""
        if vocabulary is None:
            return self.token_embedding.logits(hidden).float()
        return rows_times_table(hidden, self.token_embedding.rows(vocabulary)).float()


def _encoder_block(block: nn.Module) -> ResidualAttentionBlock:
    assert isinstance(block, ResidualAttentionBlock)
    return block


def _decoder_block(block: nn.Module) -> DecoderBlock:
    assert isinstance(block, DecoderBlock)
    return block


class Whisper(nn.Module):
    """Encoder and decoder."""

    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        self.dims = dims
        self.encoder = AudioEncoder(dims)
        self.decoder = TextDecoder(dims)


def stays_float32(name: str) -> bool:
    """Whether a tensor keeps float32 in a half-precision model: norms and positions, as OpenAI runs them.

    So do the scales of int8 tables.
    """
    if name.endswith(("positional_embedding", ".scales")):
        return True
    return name.split(".")[-2].endswith(("ln", "ln_post"))


def _dtype_of(name: str, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if stays_float32(name) else dtype


def whisper_from_tensors(
    dims: ModelDims,
    tensors: Mapping[str, Tensor],
    *,
    device: torch.device,
    dtype: torch.dtype,
    int8: bool = False,
) -> Whisper:
    """A network for inference with these weights; on a CPU its linear layers hold them packed.

    tensors: exactly the names and shapes of OpenAI's state dict, any floating dtype.
    dtype: of the activations, and of the weights. int8: the large tables are kept in eight bits.
    """
    with torch.device("meta"):
        model = Whisper(dims)
        if int8:
            with_int8_tables(model, dtype)
    state = {
        name: tensor.to(device) if tensor.dtype == torch.int8 else tensor.to(device, _dtype_of(name, dtype))
        for name, tensor in int8_tables(model, tensors).items()
    }
    model.load_state_dict(state, strict=True, assign=True)
    state.clear()  # so that each plain table goes when it is packed
    model.requires_grad_(False).eval()
    if device.type == "cpu":
        pack(model)
    return model
