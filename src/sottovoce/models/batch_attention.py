"""The decoder for batches of one length: one KV cache for all rows, which are grouped by their audio.

Rows of any age have a cache each (`models.rows`): for sixteen that takes 1.3 times as long (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sottovoce.models.attention import KeysValues, MultiHeadAttention, head_weights
from sottovoce.models.dims import AlignmentHeads
from sottovoce.models.whisper import TextDecoder

FIRST_CAPACITY = 32
"""Positions allocated at first; the buffers double whenever they are full."""


class CacheShape(NamedTuple):
    """Size of a cache but for its length: layers, rows, heads, and width of a head."""

    n_layer: int
    n_rows: int
    n_head: int
    d_head: int


class DecoderCache:
    """Keys and values (n_rows, n_head, capacity, d_head) of every layer, and how far they are filled.

    left_padding: (n_rows,) int64 on the cache's device, tokens at the left of a row that are padding.
    least_padding: its minimum, known to the host.
    """

    __slots__ = ("_buffers", "least_padding", "left_padding", "n_rows", "n_tokens")

    def __init__(
        self,
        shape: CacheShape,
        *,
        dtype: torch.dtype,
        device: torch.device,
        left_padding: Tensor | None = None,
    ) -> None:
        size = (2, shape.n_rows, shape.n_head, FIRST_CAPACITY, shape.d_head)
        self._buffers = [torch.empty(size, dtype=dtype, device=device) for _ in range(shape.n_layer)]
        self.left_padding = left_padding
        self.least_padding = 0 if left_padding is None else int(left_padding.min())
        self.n_rows = shape.n_rows
        self.n_tokens = 0

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new positions of one layer; return all of its keys and values so far.

        keys, values: (n_rows, n_head, n_new, d_head). The position counter moves with `advance`, once
        all layers have written.
        """
        end = self.n_tokens + keys.shape[2]
        if end > self._buffers[layer].shape[3]:
            self._buffers[layer] = self._with_room(self._buffers[layer], end)
        buffer = self._buffers[layer]
        buffer[0, :, :, self.n_tokens : end] = keys
        buffer[1, :, :, self.n_tokens : end] = values
        return buffer[0, :, :, :end], buffer[1, :, :, :end]

    def advance(self, n_new: int) -> None:
        """Count `n_new` positions as read."""
        self.n_tokens += n_new

    def reorder(self, rows: Tensor) -> None:
        """Replace the rows by `rows` (n_rows',) int64; rows may repeat or be left out."""
        rows = rows.to(self._buffers[0].device)
        self._buffers = [buffer.index_select(1, rows) for buffer in self._buffers]
        if self.left_padding is not None:
            self.left_padding = self.left_padding.index_select(0, rows)
            self.least_padding = int(self.left_padding.min())
        self.n_rows = int(rows.shape[0])

    def truncate(self, n_tokens: int) -> None:
        """Drop every position from `n_tokens` on."""
        self.n_tokens = min(self.n_tokens, n_tokens)

    def fork(self) -> DecoderCache:
        """Return an independent copy."""
        copy = object.__new__(DecoderCache)
        copy._buffers = [buffer[:, :, :, : self.n_tokens].clone() for buffer in self._buffers]
        copy.left_padding = self.left_padding
        copy.least_padding = self.least_padding
        copy.n_rows = self.n_rows
        copy.n_tokens = self.n_tokens
        return copy

    def positions(self, n_new: int) -> Tensor:
        """Return the text positions of the next `n_new` tokens: (n_rows or 1, n_new) int64; padding has 0."""
        columns = torch.arange(self.n_tokens, self.n_tokens + n_new, device=self._buffers[0].device)
        if self.left_padding is None:
            return columns[None]
        return (columns[None] - self.left_padding[:, None]).clamp(min=0)

    def mask(self, n_new: int) -> Tensor | None:
        """Return the mask of the next tokens: (n_rows or 1, 1, n_new, n_total) bool; None: no key is masked.

        A padding token attends to itself alone, so that no row of the softmax is empty, and no other token
        attends to it.
        """
        if self.left_padding is None and n_new == 1:
            return None
        device = self._buffers[0].device
        keys = torch.arange(self.n_tokens + n_new, device=device)
        queries = keys[self.n_tokens :, None]
        allowed = (keys[None] <= queries)[None]  # (1, n_new, n_total)
        if self.left_padding is not None:
            is_text = keys[None] >= self.left_padding[:, None]  # (n_rows, n_total)
            allowed = (allowed & is_text[:, None]) | (keys[None] == queries)[None]
        return allowed[:, None]

    def _with_room(self, buffer: Tensor, n_needed: int) -> Tensor:
        capacity = max(n_needed, 2 * buffer.shape[3], FIRST_CAPACITY)
        larger = buffer.new_empty((*buffer.shape[:3], capacity, buffer.shape[4]))
        larger[:, :, :, : self.n_tokens] = buffer[:, :, :, : self.n_tokens]
        return larger


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Which audio each row attends to, and how rows fold into the queries of one audio.

    Hypotheses over one audio become more queries over its one set of keys, so that keys and values are never
    repeated. Where there are not `group_size` rows for each audio, in order, rows are scattered to slots;
    empty slots are computed and dropped.

    audio: index of the audio of each row. slots: (n_rows,) int64, the slot of each row among
    n_audio * group_size; None where slot and row are the same.
    """

    audio: tuple[int, ...]
    n_audio: int
    group_size: int
    slots: Tensor | None

    @classmethod
    def of(cls, audio: Sequence[int], n_audio: int, device: torch.device) -> RowGroups:
        """Group rows by `audio`, the index of the audio of each row."""
        filled = [0] * n_audio
        places: list[tuple[int, int]] = []
        for index in audio:
            places.append((index, filled[index]))
            filled[index] += 1
        group_size = max(filled)
        slots = [index * group_size + place for index, place in places]
        in_order = slots == list(range(n_audio * group_size))
        return cls(
            audio=tuple(audio),
            n_audio=n_audio,
            group_size=group_size,
            slots=None if in_order else torch.tensor(slots, dtype=torch.int64, device=device),
        )

    def fold(self, rows: Tensor) -> Tensor:
        """Fold rows (n_rows, n_new, d) to (n_audio, group_size * n_new, d)."""
        if self.slots is not None:
            spread = rows.new_zeros((self.n_audio * self.group_size, *rows.shape[1:]))
            rows = spread.index_copy_(0, self.slots, rows)
        return rows.reshape(self.n_audio, self.group_size * rows.shape[1], rows.shape[2])

    def unfold(self, folded: Tensor) -> Tensor:
        """Undo `fold`: (n_audio, group_size * n_new, d) to (n_rows, n_new, d)."""
        rows = folded.reshape(self.n_audio * self.group_size, -1, folded.shape[2])
        return rows if self.slots is None else rows.index_select(0, self.slots)


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


class BatchAttention:
    """`DecoderAttention` of rows of one length: over their cache, and over the audio of each."""

    def __init__(self, cache: DecoderCache, audio: AudioContext, n_new: int) -> None:
        self._cache = cache
        self._audio = audio
        self._n_new = n_new
        is_plain = not cache.n_tokens and cache.left_padding is None
        self._mask = None if is_plain else cache.mask(n_new)
        self._captured: dict[tuple[int, int], Tensor] = {}
        self.positions = cache.positions(n_new)

    def over_text(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        """Return self-attention over the cache, to which the new positions are appended."""
        keys, values = self._cache.append(layer, *attention.keys_values(x))
        causal = self._mask is None and self._n_new > 1
        attended: Tensor = attention(attention.queries(x), keys, values, mask=self._mask, causal=causal)
        return attended

    def over_audio(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        """Return cross-attention to the audio of each row, and capture the weights of chosen heads."""
        groups, bias = self._audio.groups, self._audio.bias
        keys, values = self._audio.keys_values[layer]
        queries = attention.queries(groups.fold(x))  # (n_audio, H, group_size * n_new, d_head)
        heads = self._audio.heads_of(layer)
        if heads:
            weights = groups.unfold(head_weights(queries, keys, heads, bias).flatten(2))
            by_head = weights.reshape(*weights.shape[:2], len(heads), -1).unbind(2)
            self._captured.update(zip(((layer, head) for head in heads), by_head, strict=True))
        mask = None if bias is None else bias.to(x.dtype)
        return groups.unfold(attention(queries, keys, values, mask=mask))

    def finish(self) -> Tensor | None:
        """Count the new tokens in the cache; return the captured attention as `decode_batch` does."""
        self._cache.advance(self._n_new)
        heads = [self._captured[head] for head in self._audio.capture]
        return torch.stack(heads, dim=1) if heads else None


def decode_batch(
    decoder: TextDecoder, tokens: Tensor, cache: DecoderCache, audio: AudioContext
) -> tuple[Tensor, Tensor | None]:
    """Run the decoder on new tokens (R, n_new) int64 of every row, and append them to the cache.

    Returns normalised hidden states (R, n_new, d), and the captured attention (R, n_captured, n_new,
    n_frames) float32 in the order of `audio.capture`, or None where nothing is captured.
    """
    attention = BatchAttention(cache, audio, tokens.shape[1])
    hidden = decoder(tokens, attention)
    return hidden, attention.finish()
