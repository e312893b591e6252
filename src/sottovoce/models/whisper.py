"""Whisper's network (Radford et al. 2022, https://arxiv.org/abs/2212.04356).

Modules are named as the keys of OpenAI's checkpoints, so a state dict loads as it is. The network keeps no
state: cache and audio context are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    """The audio side of the decoder's cross-attention.

    keys_values: per layer, (n_audio, n_head, n_frames, d_head) twice.
    groups: which audio each row attends to.
    bias: (n_audio, 1, group_size * n_new, n_frames), added to the attention logits; None adds nothing.
    capture: heads whose attention weights are returned.
    """

    keys_values: list[KeysValues]
    groups: RowGroups
    bias: Tensor | None = None
    capture: AlignmentHeads = ()

    def heads_of(self, layer: int) -> list[int]:
        """Return the captured heads of a layer, each once, ascending."""
        return sorted({head for at, head in self.capture if at == layer})


def sinusoids(length: int, channels: int) -> Tensor:
    """Compute Whisper's fixed position embedding (length, channels) float32: sines, then cosines.

    Wavelengths run geometrically from 2*pi to 10000*2*pi (openai-whisper, model.py).
    """
    n_wave = channels // 2
    rates = torch.exp(-math.log(10_000) / (n_wave - 1) * torch.arange(n_wave, dtype=torch.float32))
    angles = torch.arange(length, dtype=torch.float32)[:, None] * rates[None]
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class LayerNorm(nn.LayerNorm):
    """Layer normalisation computed in float32 for any input dtype."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (..., d) over its last dimension."""
        if x.device.type == "cpu":  # its kernel takes half-precision rows and float32 weights as they are
            return super().forward(x)
        return super().forward(x.float()).to(x.dtype)


class ResidualAttentionBlock(nn.Module):
    """One layer of the encoder: self-attention and a two-layer perceptron."""

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
        """Add the perceptron's residual branch: (B, n, d) -> (B, n, d)."""
        summed: Tensor = x + self.mlp(self.mlp_ln(x))
        return summed


class DecoderBlock(ResidualAttentionBlock):
    """An encoder block with cross-attention between its two halves."""

    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__(n_state, n_head)
        self.cross_attn = MultiHeadAttention(n_state, n_head)
        self.cross_attn_ln = LayerNorm(n_state)

    def self_attention(self, x: Tensor, cache: DecoderCache, layer: int, mask: Tensor | None) -> Tensor:
        """Add self-attention of x (R, n_new, d) over the cache, to which the new positions are appended.

        mask: (R or 1, 1, n_new, n_total) bool, True where a token may attend; None: causal attention.
        """
        normed = self.attn_ln(x)
        keys, values = cache.append(layer, *self.attn.keys_values(normed))
        causal = mask is None and x.shape[1] > 1
        attended: Tensor = self.attn(self.attn.queries(normed), keys, values, mask=mask, causal=causal)
        return x + attended

    def cross_attention(self, x: Tensor, audio: AudioContext, layer: int) -> tuple[Tensor, Tensor | None]:
        """Add cross-attention of x (R, n_new, d) to the audio of each row.

        Returns x, and the weights (R, n_new, C, n_frames) float32 of the layer's C captured heads, or None.
        """
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
    """Encoder: log-mel frames to audio states, by two convolutions, positions and self-attention layers."""

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
        """The blocks, typed."""
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
    """Decoder: tokens to logits over the vocabulary, with cross-attention to the encoder's states."""

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
        """The blocks, typed."""
        return [_decoder_block(block) for block in self.blocks]

    def cross_keys_values(self, states: Tensor) -> list[KeysValues]:
        """Compute every layer's cross-attention keys and values over encoder states (B, n_frames, d).

        Each is (B, H, n_frames, d_head), contiguous by heads: every step reads all of them, which is twice as
        fast as with heads interleaved.
        """
        pairs = (block.cross_attn.keys_values(states) for block in self.layers)
        return [(keys.contiguous(), values.contiguous()) for keys, values in pairs]

    def forward(
        self, tokens: Tensor, cache: DecoderCache, audio: AudioContext
    ) -> tuple[Tensor, Tensor | None]:
        """Run tokens (R, n_new) int64 and append them to the cache.

        Returns normalised hidden states (R, n_new, d), and the captured attention (R, n_captured, n_new,
        n_frames) float32 in the order of `audio.capture`, or None.
        """
        n_new = tokens.shape[1]
        places = self.positional_embedding[cache.positions(n_new)]
        x = (self.token_embedding(tokens) + places).to(self.token_embedding.dtype)
        mask = cache.mask(n_new) if cache.n_tokens or cache.left_padding is not None else None
        captured: dict[tuple[int, int], Tensor] = {}
        for layer, block in enumerate(self.layers):
            x = block.self_attention(x, cache, layer, mask)
            x, weights = block.cross_attention(x, audio, layer)
            if weights is not None:
                heads = audio.heads_of(layer)
                captured.update({(layer, head): weights[:, :, i] for i, head in enumerate(heads)})
            x = block.add_mlp(x)
        cache.advance(n_new)
        if not audio.capture:
            return self.ln(x), None
        return self.ln(x), torch.stack([captured[head] for head in audio.capture], dim=1)

    def logits(self, hidden: Tensor, vocabulary: Tensor | None = None) -> Tensor:
        """Project hidden states (R, n, d) to logits (R, n, n_rows) float32.

        vocabulary: (n_rows,) int64, the rows to compute; None: all of the vocabulary.
        """
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
    """Tell whether a tensor stays float32 in a half-precision model: norms, positions and int8 scales.

    Norms and positions are float32 in openai-whisper too.
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
    """Build a network for inference from weights; on a CPU its linear layers pack them.

    tensors: exactly the names and shapes of OpenAI's state dict, any floating dtype.
    dtype: of activations and weights. int8: store the large tables in eight bits.
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


def first_token_logits(
    decoder: TextDecoder,
    keys_values: Sequence[KeysValues],
    spans: Sequence[tuple[int, int]],
    *,
    token: int,
    vocabulary: Tensor,
) -> Tensor:
    """Logits (n_spans, n_rows) float32 after `token` at position 0, one row a span of frames of one audio.

    Row r attends to the frames [start, end) of span r alone. This is a decoder step with everything left out
    that is fixed in advance: the softmax of self-attention over a single key is 1, so its output is the
    value, and up to the first cross-attention all rows are one.

    keys_values: per layer, (1, H, n_frames, d_head) twice. spans: at least one, none of them empty.
    vocabulary: (n_rows,) int64, on the decoder's device.
    """
    embedding = decoder.token_embedding
    row = embedding(torch.tensor([[token]], device=vocabulary.device))
    x = (row + decoder.positional_embedding[0]).to(embedding.dtype)  # (1, 1, d)
    for block, (keys, values) in zip(decoder.layers, keys_values, strict=True):
        x = x + block.attn.out(block.attn.value(block.attn_ln(x)))
        queries = block.cross_attn.queries(block.cross_attn_ln(x)).expand(-1, -1, len(spans), -1)
        x = x + block.cross_attn.out(_span_attention(queries, keys, values, spans))  # (1, n_spans, d)
        x = block.add_mlp(x)
    return decoder.logits(decoder.ln(x), vocabulary)[0]


def _span_attention(
    queries: Tensor, keys: Tensor, values: Tensor, spans: Sequence[tuple[int, int]]
) -> Tensor:
    """Attention (1, n_spans, d) of query r to the frames of span r.

    Span by span and in float32: on a CPU faster than one product with all frames under a mask, and than its
    kernel for single queries in bfloat16.
    """
    attended = [
        F.scaled_dot_product_attention(query, keys[:, :, start:end].float(), values[:, :, start:end].float())
        for query, (start, end) in zip(torch.split(queries.float(), 1, dim=2), spans, strict=True)
    ]
    return torch.cat(attended, dim=2).transpose(1, 2).flatten(2).to(queries.dtype)
