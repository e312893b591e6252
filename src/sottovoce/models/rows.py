"""The decoder for continuous batching: rows of any age, each with its own tokens, KV cache and audio.

The new tokens of all rows go through the linear layers as one batch, so that weights are read once; attention
is computed row by row, so that nothing is padded or masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.models.attention import KeysValues, MultiHeadAttention, attend, head_weights
from sottovoce.models.dims import AlignmentHeads
from sottovoce.models.whisper import TextDecoder

FIRST_CAPACITY = 64
"""Positions allocated at first; the buffer doubles whenever it is full."""


class RowKvCache:
    """Self-attention keys and values of one row: (n_layer, 2, H, capacity, d_head), filled up to n_tokens."""

    __slots__ = ("_buffer", "n_tokens")

    def __init__(self, n_layer: int, n_head: int, d_head: int, like: Tensor) -> None:
        """Allocate an empty cache. like: any tensor of the dtype and on the device of the keys."""
        self._buffer = like.new_empty(n_layer, 2, n_head, FIRST_CAPACITY, d_head)
        self.n_tokens = 0

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write new positions (H, n_new, d_head) of a layer; return its keys and values (1, H, n, d_head).

        `advance` counts the positions once all layers have written.
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
        """Drop the newest n_tokens positions."""
        self.n_tokens = max(0, self.n_tokens - n_tokens)

    def first(self, n_tokens: int) -> RowKvCache:
        """Return a cache of the first `n_tokens` positions, over the same buffer.

        Of all caches that go on from there only one may be written to at a time.
        """
        other = object.__new__(RowKvCache)
        other._buffer, other.n_tokens = self._buffer, min(n_tokens, self.n_tokens)
        return other

    def copy(self) -> RowKvCache:
        """Return an independent copy."""
        other = object.__new__(RowKvCache)
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
class RowCrossAttention:
    """The audio of a row: cross-attention keys and values (1, H, n_frames, d_head) of every decoder layer.

    bias: (1, 1, 1, n_frames) float32, added to the attention logits of each frame; None adds nothing.
    """

    keys_values: Sequence[KeysValues]
    bias: Tensor | None = None

    @property
    def n_frames(self) -> int:
        return int(self.keys_values[0][0].shape[2])


@dataclass(frozen=True, slots=True, eq=False)
class RowBatchSlice:
    """The new tokens of one row: positions [start, end) of the batch."""

    cache: RowKvCache
    audio: RowCrossAttention
    start: int
    end: int

    @property
    def n_new(self) -> int:
        return self.end - self.start


class RowsAttention:
    """`DecoderAttention` of rows of any age, row by row: x is (1, n, d), the new tokens of all of them."""

    def __init__(self, rows: Sequence[RowBatchSlice], capture: AlignmentHeads, device: torch.device) -> None:
        self._rows = rows
        self._masks = [_causal(row, device) for row in rows]
        self._groups = list(_by_audio(rows))
        self._capture = capture
        places = [row.cache.n_tokens + i for row in rows for i in range(row.n_new)]
        self.positions = torch.tensor(places, device=device)
        longest = max(row.audio.n_frames for row in rows)
        self.captured = torch.zeros(len(capture), len(places), longest, device=device)

    def over_text(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        """Return self-attention of every row over its own cache, to which its new positions are appended."""
        queries = attention.queries(x)
        keys, values = attention.keys_values(x)
        parts = []
        for row, mask in zip(self._rows, self._masks, strict=True):
            new = slice(row.start, row.end)
            cached = row.cache.append(layer, keys[0, :, new], values[0, :, new])
            causal = row.n_new > 1 and mask is None
            parts.append(attend(queries[:, :, new], *cached, mask, causal=causal))
        return attention.merged(torch.cat(parts, dim=2))

    def over_audio(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        """Return cross-attention of every row to its own audio, and capture the weights of chosen heads."""
        queries = attention.queries(x)
        places = [(place, head) for place, (at, head) in enumerate(self._capture) if at == layer]
        parts = []
        for audio, start, end in self._groups:
            keys, values = audio.keys_values[layer]
            own = queries[:, :, start:end]
            mask = None if audio.bias is None else audio.bias.to(queries.dtype)
            parts.append(attend(own, keys, values, mask))
            if places:
                weights = head_weights(own, keys, [head for _, head in places], audio.bias)[0]
                for i, (place, _) in enumerate(places):
                    self.captured[place, start:end, : audio.n_frames] = weights[:, i]
        return attention.merged(torch.cat(parts, dim=2))


@torch.no_grad()
def decode_rows(
    decoder: TextDecoder, tokens: Tensor, rows: Sequence[RowBatchSlice], capture: AlignmentHeads
) -> tuple[Tensor, Tensor]:
    """Run the decoder on the new tokens (n,) int64 of all rows, and append them to the rows' caches.

    Returns normalised hidden states (n, d), and the attention of the captured heads (n_captured, n, n_frames)
    float32; n_frames is that of the longest audio, and 0.0 stands beyond a row's own.
    """
    attention = RowsAttention(rows, capture, tokens.device)
    hidden: Tensor = decoder(tokens[None], attention)[0]
    for row in rows:
        row.cache.advance(row.n_new)
    return hidden, attention.captured


def _causal(row: RowBatchSlice, device: torch.device) -> Tensor | None:
    """Causal mask (n_new, n_total) bool of several new tokens behind cached ones; None where none is
    needed.
    """
    n_cached, n_new = row.cache.n_tokens, row.n_new
    if n_new == 1 or not n_cached:
        return None
    return torch.ones(n_new, n_cached + n_new, dtype=torch.bool, device=device).tril(n_cached)


def _by_audio(rows: Sequence[RowBatchSlice]) -> Iterator[tuple[RowCrossAttention, int, int]]:
    """Group neighbouring rows of one audio, with their positions [start, end): they share its keys and
    values.
    """
    at = 0
    while at < len(rows):
        last = at
        while last + 1 < len(rows) and rows[last + 1].audio is rows[at].audio:
            last += 1
        yield rows[at].audio, rows[at].start, rows[last].end
        at = last + 1
