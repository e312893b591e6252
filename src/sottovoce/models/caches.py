"""KV caches of the decoder and attention over them.

`RowBuffers` holds rows of any age (continuous batching): new tokens of all rows go through the linear
layers as one batch, and neighbouring rows with equally many new tokens through attention. `DecoderCache`
holds rows of one length with padding at the left.
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


class RowBuffers:
    """Self-attention keys and values of all rows, a buffer (2, n_rows, H, capacity, d_head) for each layer.

    lengths: filled positions of each row; the others are masked.
    """

    def __init__(self, dims: ModelDims, dtype: torch.dtype, device: torch.device) -> None:
        size = (2, 0, dims.n_text_head, FIRST_CAPACITY, dims.n_text_state // dims.n_text_head)
        self.layers = [torch.zeros(size, dtype=dtype, device=device) for _ in range(dims.n_text_layer)]
        self.lengths: list[int] = []

    def add(self, first: Sequence[Tensor] | None) -> None:
        """Append a row; first: the keys and values (2, H, n, d_head) of its first positions per layer."""
        self.lengths.append(0)
        n_rows = len(self.lengths)
        if n_rows > self.layers[0].shape[1]:
            self._grow(1, max(n_rows, 2 * (n_rows - 1)))
        if first is not None:
            n_tokens = first[0].shape[2]
            self.make_room(n_tokens)
            self.lengths[-1] = n_tokens
            for layer, cached in zip(self.layers, first, strict=True):
                layer[:, n_rows - 1, :, :n_tokens] = cached

    def select(self, rows: Sequence[int]) -> None:
        if list(rows) != list(range(len(rows))):
            index = torch.tensor(rows, device=self.layers[0].device)
            self.layers = [layer.index_select(1, index) for layer in self.layers]
        self.lengths = [self.lengths[row] for row in rows]

    def first(self, row: int, n_tokens: int) -> list[Tensor]:
        """Copy the first positions of a row, as for `add`."""
        return [layer[:, row, :, : min(n_tokens, self.lengths[row])].clone() for layer in self.layers]

    def make_room(self, n_tokens: int) -> None:
        """Make room for rows of up to `n_tokens`."""
        capacity = self.layers[0].shape[3]
        if n_tokens > capacity:
            self._grow(3, max(n_tokens, 2 * capacity))

    def _grow(self, dim: int, size: int) -> None:
        for at, layer in enumerate(self.layers):
            shape = list(layer.shape)
            shape[dim] = size - shape[dim]
            self.layers[at] = torch.cat((layer, layer.new_zeros(shape)), dim=dim)


@dataclass(frozen=True, slots=True, eq=False)
class RowAudio:
    """The recording of a row: window `index` of cross-attention keys and values (B, H, n_frames, d_head).

    log_weights: (B, n_frames) float32, added to the attention logits, or None.
    """

    keys_values: Sequence[KeysValues]
    index: int
    log_weights: Tensor | None

    @property
    def n_frames(self) -> int:
        return int(self.keys_values[0][0].shape[2])

    def same_batch(self, other: RowAudio) -> bool:
        return self.keys_values is other.keys_values and self.log_weights is other.log_weights


class _EqualRows:
    """Neighbouring rows with equally many new tokens: [start, end) of the flat batch, rows [first, last)."""

    def __init__(
        self, first: int, lengths: Sequence[int], n_new: int, start: int, device: torch.device
    ) -> None:
        self.n_rows, self.n_new = len(lengths), n_new
        self.rows = slice(first, first + self.n_rows)
        self.places = slice(start, start + self.n_rows * n_new)
        self.n_total = max(lengths) + n_new
        begins = torch.tensor(lengths, device=device)[:, None]
        self.positions = begins + torch.arange(n_new, device=device)  # (n_rows, n_new)
        self.is_even = min(lengths) == max(lengths)
        self.is_causal = self.is_even and not lengths[0] and n_new > 1
        self.mask: Tensor | None = None
        if not (self.is_even and (n_new == 1 or not lengths[0])):
            keys = torch.arange(self.n_total, device=device)
            self.mask = (keys <= self.positions[..., None])[:, None]
        self.indices = torch.arange(first, first + self.n_rows, device=device)[:, None]

    def attend(self, buffer: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write keys and values, (1, n, H, d_head) of the flat batch, and attend: (n, H, d_head)."""
        shape = (self.n_rows, self.n_new, *queries.shape[2:])
        for written, new in zip(buffer, (keys, values), strict=True):
            own = new[0, self.places].view(shape)
            if self.is_even:
                end = self.n_total
                written[self.rows, :, end - self.n_new : end] = own.transpose(1, 2)
            else:
                written[self.indices, :, self.positions] = own
        cached = buffer[:, self.rows, :, : self.n_total]
        own = queries[0, self.places].view(shape).transpose(1, 2)
        attended = attend(own, cached[0], cached[1], self.mask, causal=self.is_causal)
        return attended.transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True, slots=True, eq=False)
class _EqualAudios:
    """Windows [first, last) of one batch with equally many queries each: [start, end) of the flat batch."""

    audio: RowAudio
    first: int
    last: int
    start: int
    end: int


class RowsAttention:
    """`DecoderAttention` of rows of any age; x is (1, n, d), the new tokens of all rows.

    Rows of one recording are queries over its single set of keys and values.
    """

    def __init__(
        self,
        buffers: RowBuffers,
        audio: Sequence[RowAudio],
        n_new: Sequence[int],
        capture: AlignmentHeads,
    ) -> None:
        device = buffers.layers[0].device
        self._buffers = buffers
        self._capture = capture
        buffers.make_room(max(map(sum, zip(buffers.lengths, n_new, strict=True))))
        self._rows = list(_equal_rows(buffers.lengths, n_new, device))
        self._audios = _equal_audios(audio, n_new)
        self.positions = torch.cat([rows.positions.flatten() for rows in self._rows])
        longest = max(one.n_frames for one in audio)
        self.captured = torch.zeros(len(capture), len(self.positions), longest, device=device)

    def over_text(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        heads = (1, x.shape[1], attention.n_head, -1)
        queries, keys = attention.query(x).view(heads), attention.key(x).view(heads)
        values = attention.value(x).view(heads)
        buffer = self._buffers.layers[layer]
        parts = [rows.attend(buffer, queries, keys, values) for rows in self._rows]
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        merged: Tensor = attention.out(attended.flatten(1)[None])
        return merged

    def over_audio(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        queries = attention.query(x)[0].view(x.shape[1], attention.n_head, -1)
        places = [(place, head) for place, (at, head) in enumerate(self._capture) if at == layer]
        parts = []
        for one in self._audios:
            keys, values = (each[one.first : one.last] for each in one.audio.keys_values[layer])
            own = queries[one.start : one.end].unflatten(0, (one.last - one.first, -1)).transpose(1, 2)
            weights = one.audio.log_weights
            bias = None if weights is None else weights[one.first : one.last, None, None]
            mask = None if bias is None else bias.to(own.dtype)
            parts.append(attend(own, keys, values, mask).transpose(1, 2).flatten(0, 1))
            if places:
                found = head_weights(own, keys, [head for _, head in places], bias).flatten(0, 1)
                for i, (place, _) in enumerate(places):
                    self.captured[place, one.start : one.end, : one.audio.n_frames] = found[:, i]
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        merged: Tensor = attention.out(attended.flatten(1)[None])
        return merged


def _equal_rows(lengths: Sequence[int], n_new: Sequence[int], device: torch.device) -> Iterator[_EqualRows]:
    first = at = 0
    while first < len(n_new):
        last = first
        while last < len(n_new) and n_new[last] == n_new[first]:
            last += 1
        if n_new[first]:
            yield _EqualRows(first, lengths[first:last], n_new[first], at, device)
        at += (last - first) * n_new[first]
        first = last


def _equal_audios(audio: Sequence[RowAudio], n_new: Sequence[int]) -> list[_EqualAudios]:
    found: list[_EqualAudios] = []
    at = 0
    for one, n in zip(audio, n_new, strict=True):
        before = found[-1] if found else None
        if n and before and before.audio.same_batch(one) and before.last == one.index + 1:
            found[-1] = _EqualAudios(one, before.first, before.last, before.start, at + n)
        elif n:
            found.append(_EqualAudios(one, one.index, one.index + 1, at, at + n))
        at += n
    joined: list[_EqualAudios] = []
    for now in found:
        before = joined[-1] if joined else None
        if before and before.audio.same_batch(now.audio) and before.last == now.first:
            size = (before.end - before.start) // (before.last - before.first)
            if now.end - now.start == size:
                joined[-1] = _EqualAudios(now.audio, before.first, now.last, before.start, now.end)
                continue
        joined.append(now)
    return joined


@torch.no_grad()
def decode_rows(
    decoder: TextDecoder,
    tokens: Sequence[Sequence[int]],
    buffers: RowBuffers,
    audio: Sequence[RowAudio],
    capture: AlignmentHeads,
) -> tuple[Tensor, Tensor]:
    """Run the decoder on the new tokens of every row, and append them to the buffers.

    Returns normalised hidden states (n, d), and the captured attention (n_captured, n, n_frames) float32,
    where n_frames is that of the longest audio and shorter ones are padded with 0.0.
    """
    n_new = list(map(len, tokens))
    attention = RowsAttention(buffers, audio, n_new, capture)
    flat = torch.tensor([[token for new in tokens for token in new]], device=attention.positions.device)
    hidden: Tensor = decoder(flat, attention)[0]
    buffers.lengths = [length + n for length, n in zip(buffers.lengths, n_new, strict=True)]
    return hidden, attention.captured


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
