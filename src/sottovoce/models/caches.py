"""KV caches of the decoder and attention over them.

`DecoderCache` holds rows of one length, grouped by audio. `RowKvCache` holds one row of any age
(continuous batching): new tokens of all rows go through the linear layers as one batch, and attention runs
row by row without padding. One cache for both purposes would take 1.3 times as long for sixteen rows of
one length (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.models.dims import AlignmentHeads, ModelDims
from sottovoce.models.layers import KeysValues, MultiHeadAttention, attend, head_weights
from sottovoce.models.whisper import TextDecoder

FIRST_CAPACITY = 32
"""Positions allocated initially; full buffers double."""


class DecoderCache:
    """Keys and values (n_rows, n_head, capacity, d_head) of every layer, and their length.

    left_padding: (n_rows,) int64 on the cache's device, padding tokens at the left. least_padding: its
    minimum, on the host.
    """

    __slots__ = ("_buffers", "least_padding", "left_padding", "n_rows", "n_tokens")

    def __init__(
        self,
        dims: ModelDims,
        n_rows: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        left_padding: Tensor | None = None,
    ) -> None:
        size = (2, n_rows, dims.n_text_head, FIRST_CAPACITY, dims.n_text_state // dims.n_text_head)
        self._buffers = [torch.empty(size, dtype=dtype, device=device) for _ in range(dims.n_text_layer)]
        self.left_padding = left_padding
        self.least_padding = 0 if left_padding is None else int(left_padding.min())
        self.n_rows = n_rows
        self.n_tokens = 0

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the new positions of one layer; return all of its keys and values.

        keys, values: (n_rows, n_head, n_new, d_head). `advance` counts the positions once all layers have
        written.
        """
        end = self.n_tokens + keys.shape[2]
        if end > self._buffers[layer].shape[3]:
            self._buffers[layer] = self._with_room(self._buffers[layer], end)
        buffer = self._buffers[layer]
        buffer[0, :, :, self.n_tokens : end] = keys
        buffer[1, :, :, self.n_tokens : end] = values
        return buffer[0, :, :, :end], buffer[1, :, :, :end]

    def advance(self, n_new: int) -> None:
        self.n_tokens += n_new

    def reorder(self, rows: Tensor) -> None:
        """Select the rows `rows` (n_rows',) int64; rows may repeat or be left out."""
        rows = rows.to(self._buffers[0].device)
        self._buffers = [buffer.index_select(1, rows) for buffer in self._buffers]
        if self.left_padding is not None:
            self.left_padding = self.left_padding.index_select(0, rows)
            self.least_padding = int(self.left_padding.min())
        self.n_rows = int(rows.shape[0])

    def truncate(self, n_tokens: int) -> None:
        self.n_tokens = min(self.n_tokens, n_tokens)

    def positions(self, n_new: int) -> Tensor:
        """Return the text positions of the next `n_new` tokens: (n_rows or 1, n_new) int64; padding has 0."""
        columns = torch.arange(self.n_tokens, self.n_tokens + n_new, device=self._buffers[0].device)
        if self.left_padding is None:
            return columns[None]
        return (columns[None] - self.left_padding[:, None]).clamp(min=0)

    def mask(self, n_new: int) -> Tensor | None:
        """Return the mask of the next tokens: (n_rows or 1, 1, n_new, n_total) bool; None: no key is
        masked.

        A padding token attends to itself only, so that no row of the softmax is empty.
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
    """The audio of each row, and how rows become queries of one audio.

    Hypotheses over one audio become more queries over its single set of keys. Unless each audio has
    `group_size` rows in order, rows are scattered to slots, and empty slots are computed and dropped.

    audio: index of the audio of each row. slots: (n_rows,) int64 among n_audio * group_size; None if slot
    and row are the same.
    """

    audio: tuple[int, ...]
    n_audio: int
    group_size: int
    slots: Tensor | None

    @classmethod
    def of(cls, audio: Sequence[int], n_audio: int, device: torch.device) -> RowGroups:
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

    keys_values: per layer, (n_audio, n_head, n_frames, d_head) twice. bias: (n_audio, 1, group_size *
    n_new, n_frames), added to the attention logits, or None. capture: heads whose attention weights are
    returned.
    """

    keys_values: list[KeysValues]
    groups: RowGroups
    bias: Tensor | None = None
    capture: AlignmentHeads = ()

    def heads_of(self, layer: int) -> list[int]:
        """Return the captured heads of a layer without repetition, ascending."""
        return sorted({head for at, head in self.capture if at == layer})


class BatchAttention:
    """`DecoderAttention` of rows of one length over a `DecoderCache` and an `AudioContext`."""

    def __init__(self, cache: DecoderCache, audio: AudioContext, n_new: int) -> None:
        self._cache = cache
        self._audio = audio
        self._n_new = n_new
        is_plain = not cache.n_tokens and cache.left_padding is None
        self._mask = None if is_plain else cache.mask(n_new)
        self._captured: dict[tuple[int, int], Tensor] = {}
        self.positions = cache.positions(n_new)

    def over_text(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        keys, values = self._cache.append(layer, *attention.keys_values(x))
        causal = self._mask is None and self._n_new > 1
        attended: Tensor = attention(attention.queries(x), keys, values, mask=self._mask, causal=causal)
        return attended

    def over_audio(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
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
        """Advance the cache; return the captured attention as `decode_batch` does."""
        self._cache.advance(self._n_new)
        heads = [self._captured[head] for head in self._audio.capture]
        return torch.stack(heads, dim=1) if heads else None


def decode_batch(
    decoder: TextDecoder, tokens: Tensor, cache: DecoderCache, audio: AudioContext
) -> tuple[Tensor, Tensor | None]:
    """Run the decoder on new tokens (R, n_new) int64 of every row, and append them to the cache.

    Returns normalised hidden states (R, n_new, d), and the captured attention (R, n_captured, n_new,
    n_frames) float32 in the order of `audio.capture`, or None.
    """
    attention = BatchAttention(cache, audio, tokens.shape[1])
    hidden = decoder(tokens, attention)
    return hidden, attention.finish()


FIRST_ROW_CAPACITY = 64
"""Positions allocated initially; a full buffer doubles."""


class RowKvCache:
    """Self-attention keys and values of one row: (n_layer, 2, H, capacity, d_head), filled up to n_tokens."""

    __slots__ = ("_buffer", "n_tokens")

    def __init__(self, dims: ModelDims, like: Tensor) -> None:
        """Allocate an empty cache; like: any tensor of its dtype and device."""
        d_head = dims.n_text_state // dims.n_text_head
        self._buffer = like.new_empty(dims.n_text_layer, 2, dims.n_text_head, FIRST_ROW_CAPACITY, d_head)
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
        self.n_tokens += n_new

    def cut(self, n_tokens: int) -> None:
        self.n_tokens = max(0, self.n_tokens - n_tokens)

    def first(self, n_tokens: int) -> RowKvCache:
        """Return a cache of the first `n_tokens` positions over the same buffer.

        Only one of the caches that share a buffer may be written to.
        """
        other = object.__new__(RowKvCache)
        other._buffer, other.n_tokens = self._buffer, min(n_tokens, self.n_tokens)
        return other

    def copy(self) -> RowKvCache:
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
    """Cross-attention keys and values (1, H, n_frames, d_head) of one row, per decoder layer.

    bias: (1, 1, 1, n_frames) float32, added to the attention logits, or None.
    """

    keys_values: Sequence[KeysValues]
    bias: Tensor | None = None

    @property
    def n_frames(self) -> int:
        return int(self.keys_values[0][0].shape[2])


@dataclass(frozen=True, slots=True, eq=False)
class RowBatchSlice:
    """Positions [start, end) of one row's new tokens in the batch."""

    cache: RowKvCache
    audio: RowCrossAttention
    start: int
    end: int

    @property
    def n_new(self) -> int:
        return self.end - self.start


class RowsAttention:
    """`DecoderAttention` of rows of any age, row by row; x is (1, n, d), the new tokens of all rows."""

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

    Returns normalised hidden states (n, d), and the captured attention (n_captured, n, n_frames) float32,
    where n_frames is that of the longest audio and shorter ones are padded with 0.0.
    """
    attention = RowsAttention(rows, capture, tokens.device)
    hidden: Tensor = decoder(tokens[None], attention)[0]
    for row in rows:
        row.cache.advance(row.n_new)
    return hidden, attention.captured


def _causal(row: RowBatchSlice, device: torch.device) -> Tensor | None:
    """Return the causal mask (n_new, n_total) bool, or None for a single token."""
    n_cached, n_new = row.cache.n_tokens, row.n_new
    if n_new == 1 or not n_cached:
        return None
    return torch.ones(n_new, n_cached + n_new, dtype=torch.bool, device=device).tril(n_cached)


def _by_audio(rows: Sequence[RowBatchSlice]) -> Iterator[tuple[RowCrossAttention, int, int]]:
    """Group neighbouring rows with the same audio as positions [start, end)."""
    at = 0
    while at < len(rows):
        last = at
        while last + 1 < len(rows) and rows[last + 1].audio is rows[at].audio:
            last += 1
        yield rows[at].audio, rows[at].start, rows[last].end
        at = last + 1


class SpanAttention:
    """`DecoderAttention` of one token at position 0; row r attends to the frames [start, end) of span r.

    Self-attention over a single key returns its value; up to the first cross-attention all rows are equal.
    """

    def __init__(self, keys_values: Sequence[KeysValues], spans: Sequence[tuple[int, int]]) -> None:
        self._keys_values = keys_values
        self._spans = spans
        self.positions = torch.zeros(1, dtype=torch.int64, device=keys_values[0][0].device)

    def over_text(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        value: Tensor = attention.out(attention.value(x))
        return value

    def over_audio(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        """Return the cross-attention (1, n_spans, d) of each row to its span.

        One product per span in float32 is faster on a CPU than a masked product, and than its bfloat16
        kernel for single queries.
        """
        keys, values = self._keys_values[layer]
        queries = attention.queries(x).expand(-1, -1, len(self._spans), -1)
        attended = [
            F.scaled_dot_product_attention(
                query, keys[:, :, start:end].float(), values[:, :, start:end].float()
            )
            for query, (start, end) in zip(torch.split(queries.float(), 1, dim=2), self._spans, strict=True)
        ]
        return attention.merged(torch.cat(attended, dim=2).to(queries.dtype))


def first_token_logits(
    decoder: TextDecoder,
    keys_values: Sequence[KeysValues],
    spans: Sequence[tuple[int, int]],
    *,
    token: int,
    vocabulary: Tensor,
) -> Tensor:
    """Return logits (n_spans, n_rows) float32 after `token` at position 0, for each span of one audio.

    keys_values: per layer, (1, H, n_frames, d_head) twice. spans: frames [start, end), at least one, none
    empty. vocabulary: (n_rows,) int64, on the decoder's device.
    """
    tokens = torch.tensor([[token]], device=vocabulary.device)
    return decoder.logits(decoder(tokens, SpanAttention(keys_values, spans)), vocabulary)[0]
