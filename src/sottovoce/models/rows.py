"""The decoder over rows of any age, each with its own tokens, its own memory and its own audio.

All new tokens of all rows go through the linear layers as one batch, which is where the weights are read;
only attention is taken row by row, so nothing is padded and nothing masked. Not known here: when rows come
and go, and what is done with the logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.models.attention import MultiHeadAttention, attend, head_weights
from sottovoce.models.dims import AlignmentHeads
from sottovoce.models.whisper import KeysValues, TextDecoder

FIRST_CAPACITY = 64
"""Positions allocated at first; the buffer doubles whenever it is full."""


class RowMemory:
    """Self-attention keys and values (n_layer, 2, H, capacity, d_head) of one row, and how many there are."""

    __slots__ = ("_buffer", "n_tokens")

    def __init__(self, n_layer: int, n_head: int, d_head: int, like: Tensor) -> None:
        """like: a tensor of the dtype and on the device of the keys."""
        self._buffer = like.new_empty(n_layer, 2, n_head, FIRST_CAPACITY, d_head)
        self.n_tokens = 0

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write new positions (H, n_new, d_head) of a layer; all of its keys and values (1, H, n, d_head).

        They count as read with `advance`, once all layers have written.
        """
        end = self.n_tokens + keys.shape[1]
        if end > self._buffer.shape[3]:
            self._buffer = self._with_room(end)
        written = self._buffer[layer]
        written[0, :, self.n_tokens : end] = keys
        written[1, :, self.n_tokens : end] = values
        return written[:1, :, :end], written[1:, :, :end]

    def advance(self, n_new: int) -> None:
        """Count `n_new` positions as read."""
        self.n_tokens += n_new

    def cut(self, n_tokens: int) -> None:
        """Forget so many of the newest positions."""
        self.n_tokens = max(0, self.n_tokens - n_tokens)

    def first(self, n_tokens: int) -> RowMemory:
        """Another one that has read the first `n_tokens` positions, in the same buffer.

        Only one of those that go on from there may read at a time.
        """
        other = object.__new__(RowMemory)
        other._buffer, other.n_tokens = self._buffer, min(n_tokens, self.n_tokens)
        return other

    def copy(self) -> RowMemory:
        """Another one that has read the same."""
        other = object.__new__(RowMemory)
        other._buffer = self._with_room(self._buffer.shape[3])
        other.n_tokens = self.n_tokens
        return other

    def _with_room(self, n_needed: int) -> Tensor:
        capacity = self._buffer.shape[3]
        while capacity < n_needed:
            capacity *= 2
        buffer = self._buffer.new_empty(*self._buffer.shape[:3], capacity, self._buffer.shape[4])
        buffer[:, :, :, : self.n_tokens] = self._buffer[:, :, :, : self.n_tokens]
        return buffer


@dataclass(frozen=True, slots=True, eq=False)
class RowAudio:
    """What rows listen to: keys and values (1, H, n_frames, d_head) of every decoder layer.

    bias: (1, 1, 1, n_frames) float32, added to the attention to each frame; None adds nothing.
    """

    keys_values: Sequence[KeysValues]
    bias: Tensor | None = None

    @property
    def n_frames(self) -> int:
        return int(self.keys_values[0][0].shape[2])


@dataclass(frozen=True, slots=True, eq=False)
class RowTokens:
    """New tokens of one row: places [start, end) of the batch."""

    memory: RowMemory
    audio: RowAudio
    start: int
    end: int

    @property
    def n_new(self) -> int:
        return self.end - self.start


@torch.no_grad()
def read_rows(
    decoder: TextDecoder, tokens: Tensor, rows: Sequence[RowTokens], capture: AlignmentHeads
) -> tuple[Tensor, Tensor]:
    """Read tokens (n,) int64 of all rows into their memories.

    Returns hidden states (n, d), normalised; and the attention of the captured heads (n_captured, n,
    n_frames) float32, n_frames of the longest audio, 0 behind that of a row.
    """
    places = [row.memory.n_tokens + i for row in rows for i in range(row.n_new)]
    positions = torch.tensor(places, device=tokens.device)
    embedding = decoder.token_embedding
    x = (embedding(tokens) + decoder.positional_embedding[positions]).to(embedding.dtype)[None]  # (1, n, d)
    masks = [_causal(row, tokens.device) for row in rows]
    groups = list(_by_audio(rows))
    longest = max(row.audio.n_frames for row in rows)
    captured = x.new_zeros(len(capture), len(places), longest, dtype=torch.float32)
    for layer, block in enumerate(decoder.layers):
        x = x + _remembered(block.attn, block.attn_ln(x), rows, masks, layer)
        queries = block.cross_attn.queries(block.cross_attn_ln(x))
        x = block.add_mlp(x + _heard(block.cross_attn, queries, groups, layer))
        _capture(queries, groups, layer, capture, captured)
    for row in rows:
        row.memory.advance(row.n_new)
    hidden: Tensor = decoder.ln(x)[0]
    return hidden, captured


def _remembered(
    attention: MultiHeadAttention,
    x: Tensor,
    rows: Sequence[RowTokens],
    masks: Sequence[Tensor | None],
    layer: int,
) -> Tensor:
    """Self-attention of every row over its own memory, which takes up its new positions: (1, n, d)."""
    queries = attention.queries(x)
    keys, values = attention.keys_values(x)
    parts = []
    for row, mask in zip(rows, masks, strict=True):
        new = slice(row.start, row.end)
        known = row.memory.append(layer, keys[0, :, new], values[0, :, new])
        causal = row.n_new > 1 and mask is None
        parts.append(attend(queries[:, :, new], *known, mask, causal=causal))
    return attention.merged(torch.cat(parts, dim=2))


def _causal(row: RowTokens, device: torch.device) -> Tensor | None:
    """What several new tokens behind others may attend to: (n_new, n_total) bool; None where it is plain."""
    n_known, n_new = row.memory.n_tokens, row.n_new
    if n_new == 1 or not n_known:
        return None
    return torch.ones(n_new, n_known + n_new, dtype=torch.bool, device=device).tril(n_known)


def _by_audio(rows: Sequence[RowTokens]) -> Iterator[tuple[RowAudio, int, int]]:
    """Neighbouring rows of one audio, and their places [start, end): they read one copy of its keys."""
    at = 0
    while at < len(rows):
        last = at
        while last + 1 < len(rows) and rows[last + 1].audio is rows[at].audio:
            last += 1
        yield rows[at].audio, rows[at].start, rows[last].end
        at = last + 1


def _heard(
    attention: MultiHeadAttention, queries: Tensor, groups: Sequence[tuple[RowAudio, int, int]], layer: int
) -> Tensor:
    """Cross-attention of every row to its own audio: (1, n, d)."""
    parts = []
    for audio, start, end in groups:
        keys, values = audio.keys_values[layer]
        mask = None if audio.bias is None else audio.bias.to(queries.dtype)
        parts.append(attend(queries[:, :, start:end], keys, values, mask))
    return attention.merged(torch.cat(parts, dim=2))


def _capture(
    queries: Tensor,
    groups: Sequence[tuple[RowAudio, int, int]],
    layer: int,
    capture: AlignmentHeads,
    captured: Tensor,
) -> None:
    """Write the attention of a layer's captured heads to where it belongs."""
    places = [(place, head) for place, (at, head) in enumerate(capture) if at == layer]
    if not places:
        return
    for audio, start, end in groups:
        keys = audio.keys_values[layer][0]
        weights = head_weights(queries[:, :, start:end], keys, [head for _, head in places], audio.bias)[0]
        for i, (place, _) in enumerate(places):
            captured[place, start:end, : audio.n_frames] = weights[:, i]
