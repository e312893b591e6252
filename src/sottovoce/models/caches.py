"""Attention of decoder rows of any age (continuous batching), and their self-attention caches.

New tokens of all rows go through the linear layers as one batch. Neighbouring rows with equally many new
tokens share a call of self-attention; rows of one window, and of neighbouring windows of an encoded batch,
share a call of cross-attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.models.dims import AlignmentHeads, ModelDims, Span
from sottovoce.models.layers import KeysValues, MultiHeadAttention, attend, head_weights
from sottovoce.models.whisper import TextDecoder

FIRST_CAPACITY = 32
"""Positions allocated initially; full buffers double."""


class RowBuffers:
    """Self-attention keys and values of all rows, a buffer (2, n_rows, H, capacity, d_head) for each layer.

    The buffers may have more rows than there are. lengths: filled positions of each row; others are masked.
    """

    def __init__(self, dims: ModelDims, dtype: torch.dtype, device: torch.device) -> None:
        size = (2, 0, dims.n_text_head, FIRST_CAPACITY, dims.n_text_state // dims.n_text_head)
        self.layers = [torch.zeros(size, dtype=dtype, device=device) for _ in range(dims.n_text_layer)]
        self.lengths: list[int] = []

    def add(self, first: Sequence[Tensor] | None) -> None:
        """Append a row; first: the keys and values (2, H, n, d_head) of its first positions per layer."""
        row = len(self.lengths)
        for layer in self.layers:
            layer[:, row : row + 1].zero_()  # a masked key must be finite
        self.lengths.append(0 if first is None else first[0].shape[2])
        if first is not None:
            self.make_room(self.lengths[row])
            for layer, cached in zip(self.layers, first, strict=True):
                layer[:, row, :, : self.lengths[row]] = cached

    def select(self, rows: Sequence[int]) -> None:
        longest = max(self.lengths, default=0)
        self.lengths = [self.lengths[row] for row in rows]
        moved = [(to, row) for to, row in enumerate(rows) if to != row]
        if moved and longest:
            self.make_room(longest)
            to, row = torch.tensor(moved, device=self.layers[0].device).unbind(1)
            for layer in self.layers:
                filled = layer[:, :, :, :longest]
                filled.index_copy_(1, to, filled.index_select(1, row))

    def first(self, row: int, n_tokens: int) -> list[Tensor]:
        """Copy the first positions of a row, as for `add`."""
        self.make_room(0)
        return [layer[:, row, :, : min(n_tokens, self.lengths[row])].clone() for layer in self.layers]

    def make_room(self, n_tokens: int) -> None:
        """Make room for all rows, of up to `n_tokens`."""
        n_slots, capacity = self.layers[0].shape[1], self.layers[0].shape[3]
        n_rows = len(self.lengths)
        more_rows = max(n_rows, 2 * n_slots) - n_slots if n_rows > n_slots else 0
        more_tokens = max(n_tokens, 2 * capacity) - capacity if n_tokens > capacity else 0
        if more_rows or more_tokens:
            self.layers = [F.pad(layer, (0, 0, 0, more_tokens, 0, 0, 0, more_rows)) for layer in self.layers]


@dataclass(frozen=True, slots=True, eq=False)
class RowAudio:
    """The audio of a row: window `index` of cross-attention keys and values (B, H, n_frames, d_head).

    log_weights: (n_frames,) float32, added to the attention logits, or None.
    """

    keys_values: Sequence[KeysValues]
    index: int
    log_weights: Tensor | None

    @property
    def n_frames(self) -> int:
        return int(self.keys_values[0][0].shape[2])


class _EqualRows:
    """Self-attention of rows from `first` on that have `n_new` new tokens each, from `start` of the batch.

    lengths: cached positions of these rows.
    """

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
        """Write keys and values, (n, H, d_head) of the batch, and attend: (n_rows * n_new, H, d_head)."""
        shape = (self.n_rows, self.n_new, *queries.shape[1:])
        for written, new in zip(buffer, (keys, values), strict=True):
            own = new[self.places].view(shape)
            if self.is_even:
                written[self.rows, :, self.n_total - self.n_new : self.n_total] = own.transpose(1, 2)
            else:
                written[self.indices, :, self.positions] = own
        cached = buffer[:, self.rows, :, : self.n_total]
        own = queries[self.places].view(shape).transpose(1, 2)
        attended = attend(own, cached[0], cached[1], self.mask, causal=self.is_causal)
        return attended.transpose(1, 2).flatten(0, 1)


def _equal_rows(lengths: Sequence[int], n_new: Sequence[int], device: torch.device) -> Iterator[_EqualRows]:
    first = at = 0
    for n, same in groupby(n_new):
        last = first + len(list(same))
        if n:
            yield _EqualRows(first, lengths[first:last], n, at, device)
        first, at = last, at + (last - first) * n


@dataclass(frozen=True, slots=True, eq=False)
class _EqualWindows:
    """Cross-attention to the same frames of `windows` of one encoded batch, with equally many queries each.

    queries: their places in the batch of new tokens. bias: (n_windows, 1, 1 or n_queries, n_frames) float32,
    added to the attention logits, or None.
    """

    keys_values: Sequence[KeysValues]
    windows: slice
    frames: slice
    queries: slice
    bias: Tensor | None


def _equal_windows(
    audio: Sequence[RowAudio], spans: Sequence[Span], n_new: Sequence[int]
) -> Iterator[_EqualWindows]:
    frames = list(spans)
    if not slices_spans(audio[0].keys_values[0][0].device):
        frames = [(0, one.n_frames) for one in audio]
    is_masked = frames != list(spans)

    def window(row: int) -> tuple[int, Span, int]:
        return id(audio[row].keys_values), frames[row], audio[row].index

    def series(place: tuple[int, list[int]]) -> tuple[int, Span, int, int]:
        at, rows = place
        batch, some, index = window(rows[0])
        return batch, some, index - at, sum(n_new[row] for row in rows)

    ends = [0, *accumulate(n_new)]
    by_window = [list(rows) for _, rows in groupby((row for row, n in enumerate(n_new) if n), key=window)]
    for _, some in groupby(enumerate(by_window), key=series):
        windows = [rows for _, rows in some]
        first, last = windows[0][0], windows[-1][-1]
        biased = [rows[0] for rows in windows]
        if is_masked:  # rows of one window differ
            biased = [row for rows in windows for row in rows for _ in range(n_new[row])]
        biases = [_bias(audio[row], spans[row], is_masked) for row in biased]
        given = [one for one in biases if one is not None]  # all or none of them
        yield _EqualWindows(
            audio[first].keys_values,
            windows=slice(audio[first].index, audio[last].index + 1),
            frames=slice(*frames[first]),
            queries=slice(ends[first], ends[last + 1]),
            bias=torch.stack(given).view(len(windows), 1, -1, len(given[0])) if given else None,
        )


def slices_spans(device: torch.device) -> bool:
    """Return whether each span gets its own call; elsewhere a kernel launch costs more than masked frames."""
    return device.type == "cpu"


def _bias(audio: RowAudio, span: Span, is_masked: bool) -> Tensor | None:
    """Return the bias of a row: of the frames of its span, or of all with -inf outside the span."""
    weights = None if audio.log_weights is None else audio.log_weights[slice(*span)]
    if not is_masked:
        return weights
    bias = torch.full((audio.n_frames,), -torch.inf, device=audio.keys_values[0][0].device)
    bias[slice(*span)] = 0.0 if weights is None else weights
    return bias


class RowsAttention:
    """`DecoderAttention` of rows of any age; x is (1, n, d), the new tokens of all rows.

    Rows of one window are queries over its single set of keys and values. appends: whether the tokens stay.
    """

    def __init__(
        self,
        buffers: RowBuffers,
        audio: Sequence[RowAudio],
        spans: Sequence[Span],
        n_new: Sequence[int],
        capture: AlignmentHeads,
        *,
        appends: bool,
    ) -> None:
        n_total = [n_cached + n for n_cached, n in zip(buffers.lengths, n_new, strict=True)]
        self._reads_itself = not appends and max(n_total) == 1
        if not self._reads_itself:
            buffers.make_room(max(n_total))
        device = buffers.layers[0].device
        self._layers = buffers.layers
        self._capture = capture
        self._rows = list(_equal_rows(buffers.lengths, n_new, device))
        self._windows = list(_equal_windows(audio, spans, n_new))
        self.positions = torch.cat([rows.positions.flatten() for rows in self._rows])
        longest = max(one.n_frames for one in audio)
        self.captured = torch.zeros(len(capture), len(self.positions), longest, device=device)

    def over_text(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        if self._reads_itself:
            only_value: Tensor = attention.out(attention.value(x))
            return only_value
        projections = (attention.query, attention.key, attention.value)
        new = [project(x)[0].view(x.shape[1], attention.n_head, -1) for project in projections]
        parts = [rows.attend(self._layers[layer], *new) for rows in self._rows]
        return _merged(attention, parts)

    def over_audio(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        queries = attention.query(x)[0].view(x.shape[1], attention.n_head, -1)
        places = [(place, head) for place, (at, head) in enumerate(self._capture) if at == layer]
        parts = []
        for one in self._windows:
            keys, values = (each[one.windows, :, one.frames] for each in one.keys_values[layer])
            own = queries[one.queries].unflatten(0, (len(keys), -1)).transpose(1, 2)
            mask = None if one.bias is None else one.bias.to(own.dtype)
            parts.append(attend(own, keys, values, mask).transpose(1, 2).flatten(0, 1))
            if places:
                found = head_weights(own, keys, [head for _, head in places], one.bias).flatten(0, 1)
                for i, (place, _) in enumerate(places):
                    self.captured[place, one.queries, one.frames] = found[:, i]
        return _merged(attention, parts)


def _merged(attention: MultiHeadAttention, parts: Sequence[Tensor]) -> Tensor:
    """Join parts (n, H, d_head) of the batch, and merge the heads: (1, n, d)."""
    attended = parts[0] if len(parts) == 1 else torch.cat(list(parts))
    merged: Tensor = attention.out(attended.flatten(1)[None])
    return merged


@torch.no_grad()
def decode_rows(
    decoder: TextDecoder,
    tokens: Sequence[Sequence[int]],
    buffers: RowBuffers,
    audio: Sequence[RowAudio],
    spans: Sequence[Span] | None,
    capture: AlignmentHeads,
) -> tuple[Tensor, Tensor]:
    """Run the decoder on the new tokens of every row; append them to the buffers, unless there are spans.

    spans: the frames of its window that each row attends to; None: all.

    Returns normalised hidden states (n, d), and the captured attention (n_captured, n, n_frames) float32,
    where n_frames is that of the longest audio and shorter ones are padded with 0.0.
    """
    n_new = list(map(len, tokens))
    frames = [(0, one.n_frames) for one in audio] if spans is None else spans
    attention = RowsAttention(buffers, audio, frames, n_new, capture, appends=spans is None)
    flat = torch.tensor([[token for new in tokens for token in new]], device=attention.positions.device)
    hidden: Tensor = decoder(flat, attention)[0]
    if spans is None:
        buffers.lengths = [length + n for length, n in zip(buffers.lengths, n_new, strict=True)]
    return hidden, attention.captured
