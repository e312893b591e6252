"""Decoder rows, their memory, and the decoder's attention to it.

The rows of a recording share an arena of cells: a token's keys and values are written once, to a free cell. A
table on the host lists the cells of each row, so branching, reordering and dropping beams copies no cache.
All new tokens of a recording are queries of one attention over its arena, masked by the table, and of one
over its audio, whose keys and values are read once for all beams.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby, islice, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.models.backend import (
    EncoderOutput,
    RowPrefix,
    RowsOutput,
    check_admitted,
    check_heads,
    check_selected,
    check_spans,
    check_step,
)
from sottovoce.models.dims import AlignmentHeads, ModelDims, Span, aligned
from sottovoce.models.whisper import (
    KeysValues,
    MultiHeadAttention,
    TextDecoder,
    attend,
    head_weights,
)
from sottovoce.runtime.torch_encoder import TorchEncoderOutput
from sottovoce.types import Ints

Table = npt.NDArray[np.int16]
"""(n_rows, n_cells): 1 + the position of the row's token in each cell; 0: not one of its own."""


class RowMemory:
    """Self-attention keys and values of the rows of up to `n_recordings` recordings.

    text: (n_layers, 2, n_recordings, H, 1 + n_cells, d_head). The first cell of each arena is for rows that
    compute nothing.
    """

    def __init__(
        self,
        dims: ModelDims,
        dtype: torch.dtype,
        device: torch.device,
        n_recordings: int = 0,
        n_cells: int = 63,  # 64 with the unused first one; a full arena doubles
    ) -> None:
        self.dims = dims
        d_head = dims.n_text_state // dims.n_text_head
        size = (dims.n_text_layer, 2, n_recordings, dims.n_text_head, 1 + n_cells, d_head)
        with torch.inference_mode(False):
            self.text = torch.zeros(size, dtype=dtype, device=device)

    @property
    def n_recordings(self) -> int:
        return self.text.shape[2]

    @property
    def n_cells(self) -> int:
        return self.text.shape[4] - 1

    def grow(self, n_recordings: int, n_cells: int) -> None:
        """Make room for recordings and cells by doubling the full dimension."""
        more_recordings = _doubled(self.n_recordings, n_recordings) - self.n_recordings
        more_cells = _doubled(1 + self.n_cells, aligned(1 + n_cells)) - (1 + self.n_cells)
        if more_recordings or more_cells:
            with torch.inference_mode(False):
                self.text = F.pad(self.text, (0, 0, 0, more_cells, 0, 0, 0, more_recordings))

    def clear(self, slot: int, prefix: Tensor | None) -> None:
        """Begin a recording's arena, with the keys and values (n_layers, 2, H, n, d_head) of a prefix.

        A masked key must be finite.
        """
        self.text[:, :, slot].zero_()
        if prefix is not None:
            self.text[:, :, slot, :, 1 : 1 + prefix.shape[3]] = prefix


def _doubled(size: int, needed: int) -> int:
    return size if needed <= size else max(needed, 2 * size)


@dataclass(frozen=True, slots=True, eq=False)
class RowAudio:
    """The audio of rows: window `index` of cross-attention keys and values, per layer (B, H, n, d_head).

    slot: its arena in the memory. n_frames: of the window. log_weights: (n_frames,) float32, added to the
    attention logits, or None.
    """

    slot: int
    keys_values: Sequence[KeysValues]
    index: int
    n_frames: int
    log_weights: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class NewTokens:
    """The new tokens of a step, in the order of their recordings.

    places: where the tokens of all rows, row by row, are in this order. ranks: among those of the recording.
    frames: (n, 2), attended to. visible: (n, n_cells). with_logits: those that get logits. counts: of each
    row. table: after the step. ahead: (n, n_steps - 1), cells for the tokens of the next steps. has_spans:
    they attend to other frames than the window's, and are not kept.
    """

    places: Ints
    tokens: Ints
    rows: Ints
    positions: Ints
    cells: Ints
    slots: Ints
    ranks: Ints
    frames: Ints
    visible: npt.NDArray[np.bool_]
    with_logits: Ints
    counts: Sequence[int]
    table: Table
    ahead: Ints
    capture: AlignmentHeads = ()
    has_spans: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Attention of the new tokens of neighbouring recordings, n_queries each, as one call a layer.

    tokens: of the batch. cells, frames: attended to. mask: (n_recordings, 1, n_queries, n_cells), added to
    the attention logits, or None. bias: (n_recordings, 1, 1 or n_queries, n_frames) float32, the same for
    the audio, or None; audio_mask: the bias in the dtype of the queries.
    """

    slots: slice
    windows: slice
    keys_values: Sequence[KeysValues] | Tensor
    tokens: slice
    cells: slice
    frames: slice
    mask: Tensor | None
    bias: Tensor | None
    audio_mask: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class RowsAttention:
    """`DecoderAttention` of the new tokens (n, d) of rows, run by run.

    positions: (n,) int64 of the tokens in their rows. entries: (n * H,) int64, where keys and values are
    written. head_attention: of each run and captured head, (n_tokens, n_frames) float32. reads_itself: the
    rows have no other token, and keep none.
    """

    memory: RowMemory
    runs: Sequence[Run]
    positions: Tensor
    entries: Tensor
    capture: AlignmentHeads = ()
    reads_itself: bool = False
    head_attention: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)

    def over_text(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        if self.reads_itself:
            only_value: Tensor = attention.out(attention.value(x))
            return only_value
        keys, values = self.memory.text[layer]
        for held, new in ((keys, attention.key(x)), (values, attention.value(x))):
            d_head = held.shape[-1]
            held.view(-1, d_head).index_copy_(0, self.entries, new.view(-1, d_head))
        parts = [
            attend(queries, keys[run.slots, :, run.cells], values[run.slots, :, run.cells], run.mask)
            for run, queries in self._queries(attention, x)
        ]
        return _merged(attention, parts)

    def over_audio(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        heads = [head for at, head in self.capture if at == layer]
        parts = []
        for place, (run, queries) in enumerate(self._queries(attention, x)):
            keys, values = (each[run.windows, :, run.frames] for each in run.keys_values[layer])
            parts.append(attend(queries, keys, values, run.audio_mask))
            if heads:
                weights = head_weights(queries, keys, heads, run.bias).flatten(1, 2)
                self.head_attention.update(
                    zip(((place, layer, head) for head in heads), weights, strict=True)
                )
        return _merged(attention, parts)

    def _queries(self, attention: MultiHeadAttention, x: Tensor) -> Iterator[tuple[Run, Tensor]]:
        queries = attention.query(x)
        for run in self.runs:
            of_run = queries if len(self.runs) == 1 else queries[run.tokens]
            size = run.slots.stop - run.slots.start, -1, attention.n_head, x.shape[1] // attention.n_head
            yield run, of_run.view(size).transpose(1, 2)

    def captured(self, place: int) -> Tensor:
        """Return a run's attention (n_captured, n_tokens, n_frames) float32, in the order of `capture`."""
        return torch.stack([self.head_attention[place, layer, head] for layer, head in self.capture])


def _merged(attention: MultiHeadAttention, parts: Sequence[Tensor]) -> Tensor:
    rows = [part.transpose(1, 2).reshape(-1, part.shape[1] * part.shape[3]) for part in parts]
    merged: Tensor = attention.out(rows[0] if len(rows) == 1 else torch.cat(rows))
    return merged


def cross_keys_values(decoder: TextDecoder, encoded: TorchEncoderOutput) -> Sequence[KeysValues]:
    """Return cross-attention keys and values, per layer (B, H, n_frames, d_head), computed once."""
    if encoded.cross_kv is None:
        encoded.cross_kv = decoder.cross_keys_values(encoded.states)
    return encoded.cross_kv


@dataclass(frozen=True, slots=True, eq=False)
class TorchPrefix:
    """The cache of a row's first tokens.

    keys_values: (n_layers, 2, H, n_tokens, d_head).
    """

    keys_values: Tensor

    @property
    def n_tokens(self) -> int:
        return self.keys_values.shape[3]


class TorchRows:
    """`RunningRows` of one model."""

    def __init__(self, decoder: TextDecoder, memory: RowMemory, name: str) -> None:
        self._decoder, self._memory, self._name = decoder, memory, name
        self._dims, self._dtype, self._device = memory.dims, memory.text.dtype, memory.text.device
        self._recordings: list[RowAudio] = []
        """Of each row."""
        self._table: Table = np.zeros((0, memory.n_cells), np.int16)

    @property
    def n_rows(self) -> int:
        return len(self._recordings)

    @property
    def _n_frames(self) -> list[int]:
        return [recording.n_frames for recording in self._recordings]

    def has_room(self, n_windows: int) -> bool:
        return True

    def _free_slots(self, n_windows: int) -> list[int]:
        taken = {recording.slot for recording in self._recordings}
        return list(islice((slot for slot in count() if slot not in taken), n_windows))

    @torch.no_grad()
    def admit(self, encoded: EncoderOutput, prefix: RowPrefix | None = None) -> None:
        cached = check_admitted(encoded, prefix, TorchPrefix, self._name)
        encoded = TorchEncoderOutput.checked(encoded)
        n_cached = 0 if cached is None else cached.n_tokens
        keys_values = cross_keys_values(self._decoder, encoded)
        slots = self._free_slots(encoded.batch_size)
        self._reserve(1 + max(slots), n_cached)
        for index, slot in enumerate(slots):
            weights = None if encoded.log_weights is None else encoded.log_weights[index]
            recording = RowAudio(slot, keys_values, index, encoded.n_frames, weights)
            self._recordings.append(self._begin(recording, None if cached is None else cached.keys_values))
        rows = np.zeros((len(slots), self._memory.n_cells), np.int16)
        rows[:, :n_cached] = range(1, n_cached + 1)
        self._table = np.concatenate((self._table, rows))

    def _begin(self, recording: RowAudio, prefix: Tensor | None) -> RowAudio:
        self._memory.clear(recording.slot, prefix)
        return recording

    def _reserve(self, n_recordings: int, n_cells: int) -> None:
        self._memory.grow(n_recordings, n_cells)
        more = self._memory.n_cells - self._table.shape[1]
        if more:
            self._table = np.pad(self._table, ((0, 0), (0, more)))

    def select(self, rows: Sequence[int]) -> None:
        check_selected(rows, self.n_rows)
        self._recordings = [self._recordings[row] for row in rows]
        self._table = self._table[list(rows)]

    def cut(self, row: int, n_tokens: int) -> None:
        held = self._table[row]
        held[held > held.max() - n_tokens] = 0

    def prefixes_of(self, rows: Sequence[tuple[int, int]]) -> list[TorchPrefix]:
        # A row's cells in the order of its tokens; those that it does not hold come first.
        cells = [1 + self._table[row].argsort()[-self._table[row].max() :][:n] for row, n in rows]
        index = torch.split(
            indices(np.concatenate(cells), self._device), [len(row_cells) for row_cells in cells]
        )
        slots = [self._recordings[row].slot for row, _ in rows]
        return [
            TorchPrefix(self._memory.text[:, :, slot].index_select(3, row_cells))
            for slot, row_cells in zip(slots, index, strict=True)
        ]

    def _new_tokens(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        capture: AlignmentHeads = (),
        spans: Sequence[Span] | None = None,
        n_steps: int = 1,
    ) -> NewTokens:
        lengths = self._table.max(axis=1, initial=0)
        check_step(tokens, wanted, lengths.tolist(), longest=self._dims.n_text_ctx, name=self._name)
        check_heads(capture, self._dims)
        check_spans(spans, self._n_frames)
        counts = list(map(len, tokens))
        slots_of_rows = np.asarray([recording.slot for recording in self._recordings])
        rows, starts = np.repeat(np.arange(self.n_rows), counts), np.cumsum([0, *counts])
        order = np.argsort(slots_of_rows[rows], kind="stable")
        places, rows = np.argsort(order), rows[order]
        positions, slots = lengths[rows] + order - starts[rows], slots_of_rows[rows]
        ranks = np.arange(len(slots)) - np.searchsorted(slots, slots)
        # Each takes the next cell that no row of its recording holds.
        held_by, held = self._table.nonzero()
        n_cells = self._table.shape[1] + n_steps * len(slots)
        is_held = np.zeros((1 + slots_of_rows.max(), n_cells), np.bool_)
        is_held[slots_of_rows[held_by], held] = True
        of_slots, free = (~is_held).nonzero()
        first_free = np.searchsorted(of_slots, slots) + n_steps * ranks
        cells = free[first_free[:, None] + np.arange(n_steps)]
        self._reserve(0, 1 + int(cells.max()))
        table = self._table.copy()
        table[rows, cells[:, 0]] = 1 + positions
        wanted_places = [
            starts[row] + place for row, places_of_row in enumerate(wanted) for place in places_of_row
        ]
        return NewTokens(
            places=places,
            tokens=np.asarray([token for new in tokens for token in new], np.int64)[order],
            rows=rows,
            positions=positions,
            cells=cells[:, 0],
            ahead=cells[:, 1:],
            slots=slots,
            ranks=ranks,
            frames=np.asarray([(0, n) for n in self._n_frames] if spans is None else spans)[rows],
            visible=(table[rows] > 0) & (table[rows] <= 1 + positions[:, None]),
            with_logits=places[np.asarray(wanted_places, np.int64)],
            counts=counts,
            table=table,
            capture=tuple(capture),
            has_spans=spans is not None,
        )

    @torch.no_grad()
    def step(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        *,
        vocabulary: Ints | None = None,
        capture: AlignmentHeads = (),
        spans: Sequence[Span] | None = None,
    ) -> RowsOutput:
        new = self._new_tokens(tokens, wanted, capture, spans)
        some = None if vocabulary is None else indices(vocabulary, self._device)
        logits, captured = self._computed(new, some)
        if spans is None:
            self._table = new.table
        attention = np.zeros((0, len(new.tokens), max(self._n_frames)), np.float32)
        if captured is not None:
            attention = selected(captured, new.places, 1).cpu().numpy()
        return RowsOutput(logits.cpu().numpy(), attention, new.counts, self._n_frames)

    def _computed(self, new: NewTokens, vocabulary: Tensor | None) -> tuple[Tensor, Tensor | None]:
        n_head = self._dims.n_text_head
        entries = (new.slots[:, None] * n_head + np.arange(n_head)) * (1 + self._memory.n_cells)
        attention = RowsAttention(
            self._memory,
            self._runs(new),
            positions=indices(new.positions, self._device),
            entries=indices((entries + 1 + new.cells[:, None]).ravel(), self._device),
            capture=new.capture,
            reads_itself=new.has_spans and not new.positions.any(),
        )
        hidden = self._decoder(indices(new.tokens, self._device), attention)
        logits = self._decoder.logits(selected(hidden, new.with_logits, 0), vocabulary)
        if not new.capture:
            return logits, None
        longest = max(self._n_frames)
        captured = [
            F.pad(attention.captured(place), (run.frames.start, longest - run.frames.stop))
            for place, run in enumerate(attention.runs)
        ]
        return logits, torch.cat(captured, dim=1)

    def _runs(self, new: NewTokens) -> list[Run]:
        borders = np.diff(new.slots).astype(bool) | np.diff(new.frames, axis=0).any(axis=1)
        ends = [*(1 + np.flatnonzero(borders)), len(new.slots)]

        def run_of(numbered: tuple[int, tuple[int, int]]) -> tuple[object, ...]:
            """Neighbours in the memory and in their windows that have equally many tokens share a run."""
            number, (begin, end) = numbered
            audio = self._recordings[new.rows[begin]]
            place = audio.slot - number, audio.index - number
            return *place, id(audio.keys_values), end - begin, *new.frames[begin].tolist()

        runs = []
        for _, group in groupby(enumerate(pairwise([0, *ends])), run_of):
            spans = [span for _, span in group]
            recordings = [self._recordings[new.rows[begin]] for begin, _ in spans]
            runs.append(self._run(new, recordings, slice(spans[0][0], spans[-1][1])))
        return runs

    def _run(self, new: NewTokens, recordings: Sequence[RowAudio], tokens: slice) -> Run:
        first, n, frames = recordings[0], len(recordings), slice(*new.frames[tokens.start].tolist())
        visible = new.visible[tokens]
        n_cells = int(np.flatnonzero(visible.any(axis=0))[-1]) + 1
        hidden = torch.from_numpy(~visible[:, :n_cells]).view(n, 1, -1, n_cells)
        mask = bias = None
        if hidden.any():
            mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, -torch.inf)
        given = [
            recording.log_weights for recording in recordings if recording.log_weights is not None
        ]  # all or none
        if given:
            bias = torch.stack(given)[:, None, None, frames]
        return Run(
            slots=slice(first.slot, first.slot + n),
            windows=slice(first.index, first.index + n),
            keys_values=first.keys_values,
            tokens=tokens,
            cells=slice(1, 1 + n_cells),
            frames=frames,
            mask=mask,
            bias=bias,
            audio_mask=None if bias is None else bias.to(self._dtype),
        )


def indices(places: Ints, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(places)).to(device)


def selected(tensor: Tensor, places: Ints, dim: int) -> Tensor:
    """Select along a dimension; without a copy, if these are the first."""
    if np.array_equal(places, np.arange(len(places))):
        return tensor.narrow(dim, 0, len(places))
    return tensor.index_select(dim, indices(places, tensor.device))
