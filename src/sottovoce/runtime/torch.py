"""Whisper on PyTorch: CPU, CUDA or MPS, in floats or with int8 weights."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count, islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.errors import OptionError
from sottovoce.models.backend import (
    AlignmentHeads,
    BestTokens,
    IncrementalResult,
    IncrementalWindow,
    RowPrefix,
    RowsOutput,
    Span,
    TokenChoice,
    check_admitted,
    check_heads,
    check_selected,
    check_spans,
    check_step,
)
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.devices import MOST_RECORDINGS, NumberFormat, aligned, free_bytes, plan_memory
from sottovoce.models.dims import default_encoder_mode, upper_half_heads
from sottovoce.models.layers import KeysValues
from sottovoce.models.whisper import Whisper, whisper_from_tensors
from sottovoce.runtime.incremental_encoder import (
    CachedWindow,
    EncoderKvCache,
    content_frames,
    encode_incremental,
    plan_updates,
    result_of,
)
from sottovoce.runtime.rows import (
    FEW_QUERIES,
    FEW_WANTED,
    FRAME_PARTS,
    MOST_QUERIES,
    RowAudio,
    RowMemory,
    RowPool,
    RowsAttention,
    Run,
    StaticMemory,
    StaticStep,
    StepShape,
    eagerly,
    planned_attention,
    recorder_of,
    step_sizes,
)
from sottovoce.types import EncoderOutput, Features

logger = logging.getLogger(__name__)
Table = npt.NDArray[np.int16]
"""(n_rows, n_cells): 1 + the position of the row's token in each cell; 0: not one of its own."""


class TorchEncoderState(CachedWindow[EncoderKvCache]):
    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class TorchPrefix:
    """keys_values: of a row's first tokens, (n_layers, 2, H, n_tokens, d_head)."""

    keys_values: Tensor

    @property
    def n_tokens(self) -> int:
        return self.keys_values.shape[3]


@dataclass(slots=True, eq=False)
class _Piece:
    """Rows whose new tokens share a call of attention, before it is known which others join them.

    recordings: neighbours, with equally many of the rows each. n_new: tokens of each row. frames: attended
    to.
    """

    recordings: list[RowAudio]
    rows: list[int]
    n_new: int
    frames: Span

    def takes(self, other: _Piece) -> bool:
        """Return whether another piece, of one recording, may be added."""
        if (self.n_new, self.frames) != (other.n_new, other.frames):
            return False
        last, new = self.recordings[-1], other.recordings[0]
        if last is new:  # more rows of it
            return len(self.recordings) == 1
        follows = new.slot == last.slot + 1 and new.index == last.index + 1
        same_size = len(self.rows) == len(self.recordings) * len(other.rows)
        return follows and same_size and new.keys_values is last.keys_values

    def add(self, other: _Piece) -> None:
        if self.recordings[-1] is not other.recordings[0]:
            self.recordings.append(other.recordings[0])
        self.rows += other.rows


@dataclass(slots=True, eq=False)
class _Batch:
    """The new tokens of a step. table: of the rows, after it. starts: of each row, in the batch."""

    table: Table
    starts: list[int]
    pieces: list[_Piece] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)

    def add(self, row: int, slot: int, cells: Sequence[int]) -> None:
        """Add new tokens of a row, to be written to these cells."""
        begin = int(self.table[row].max())
        positions = range(begin, begin + len(cells))
        self.table[row, cells] = [1 + position for position in positions]
        self.starts[row] = len(self.positions)
        self.rows.append(row)
        self.positions += positions
        self.slots += [slot] * len(cells)
        self.cells += cells


class TorchRows:
    """`RunningRows` of one model.

    keys_values: computes the cross-attention keys and values of windows, per layer (B, H, n_frames,
    d_head). memory: of the rows' text.
    """

    def __init__(
        self,
        model: Whisper,
        keys_values: Callable[[EncoderOutput], Sequence[KeysValues]],
        memory: RowMemory,
        name: str,
    ) -> None:
        self._model = model
        self._keys_values = keys_values
        self._name = name
        self._dtype, self._device = memory.text.dtype, memory.text.device
        self._memory = memory
        self._recordings: list[RowAudio] = []
        """Of each row."""
        self._table: Table = np.zeros((0, self._memory.n_cells), np.int16)

    @property
    def n_rows(self) -> int:
        return len(self._recordings)

    @property
    def _lengths(self) -> list[int]:
        lengths: list[int] = self._table.max(axis=1, initial=0).tolist()
        return lengths

    def has_room(self, n_windows: int) -> bool:
        return True

    def _free_slots(self, n_windows: int) -> tuple[list[int], int]:
        """Return slots for so many new windows, and how many slots the memory must have."""
        taken = {recording.slot for recording in self._recordings}
        slots = list(islice((slot for slot in count() if slot not in taken), n_windows))
        return slots, max((*taken, *slots)) + 1

    @torch.no_grad()
    def admit(self, encoded: EncoderOutput, prefix: RowPrefix | None = None) -> None:
        cached = check_admitted(encoded, prefix, TorchPrefix, self._name)
        n_cached = 0 if cached is None else cached.n_tokens
        keys_values = self._keys_values(encoded)
        slots, n_slots = self._free_slots(encoded.batch_size)
        self._reserve(n_slots, n_cached)
        for index, slot in enumerate(slots):
            self._memory.clear(slot, None if cached is None else cached.keys_values)
            weights = None if encoded.log_weights is None else encoded.log_weights[index]
            recording = RowAudio(slot, keys_values, index, encoded.n_frames, weights)
            self._recordings.append(self._placed(recording))
        rows = np.zeros((len(slots), self._memory.n_cells), np.int16)
        rows[:, :n_cached] = range(1, n_cached + 1)
        self._table = np.concatenate((self._table, rows))

    def _placed(self, recording: RowAudio) -> RowAudio:
        """Return a new recording with its keys and values as the steps read them: where they are."""
        return recording

    def _reserve(self, n_recordings: int, n_cells: int) -> None:
        self._memory.grow(n_recordings, n_cells)
        more = self._memory.n_cells - self._table.shape[1]
        if more:
            self._table = np.pad(self._table, ((0, 0), (0, more)))

    def _by_slot(self) -> dict[int, list[int]]:
        """Return the rows of each recording, by its slot."""
        found: dict[int, list[int]] = {}
        for row, recording in enumerate(self._recordings):
            found.setdefault(recording.slot, []).append(row)
        return found

    def _free_cells(self, n_new: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return free cells (n,) of the arenas for so many new tokens of each row, row by row."""
        slots = np.asarray([one.slot for one in self._recordings])
        order = np.argsort(slots, kind="stable")
        starts = np.flatnonzero(np.diff(slots[order], prepend=-1))
        n_of_slot = np.add.reduceat(np.asarray(n_new)[order], starts)
        n_held = (np.maximum.reduceat(self._table[order], starts, axis=0) > 0).sum(axis=1)
        self._reserve(0, int((n_held + n_of_slot).max()))
        is_free = np.maximum.reduceat(self._table[order], starts, axis=0) == 0
        first = is_free & (is_free.cumsum(axis=1) <= n_of_slot[:, None])
        cells = np.empty(sum(n_new), np.int64)
        cells[np.argsort(np.repeat(slots, n_new), kind="stable")] = np.nonzero(first)[1]
        return cells

    def select(self, rows: Sequence[int]) -> None:
        check_selected(rows, self.n_rows)
        self._recordings = [self._recordings[row] for row in rows]
        self._table = self._table[list(rows)]

    def cut(self, row: int, n_tokens: int) -> None:
        held = self._table[row]
        held[held > held.max() - n_tokens] = 0

    def prefix_of(self, row: int, n_tokens: int) -> TorchPrefix:
        held = self._table[row]
        cells = np.flatnonzero((held > 0) & (held <= n_tokens))
        index = torch.from_numpy(1 + cells[held[cells].argsort()]).to(self._device)
        return TorchPrefix(self._memory.text[:, :, self._recordings[row].slot].index_select(3, index))

    @torch.no_grad()
    def step(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        *,
        vocabulary: Tensor | None = None,
        capture: AlignmentHeads = (),
        spans: Sequence[Span] | None = None,
    ) -> RowsOutput:
        dims, decoder = self._model.dims, self._model.decoder
        check_step(tokens, wanted, self._lengths, longest=dims.n_text_ctx, name=self._name)
        check_heads(capture, dims)
        check_spans(spans, [one.n_frames for one in self._recordings])
        batch = self._batch(tokens, spans)
        attention = self._attention(batch, capture, spans)
        flat = [token for row in batch.rows for token in tokens[row]]
        hidden = decoder(torch.tensor(flat, device=self._device), attention)
        if spans is None:
            self._table = batch.table
        places = [batch.starts[row] + one for row, own in enumerate(wanted) for one in own]
        logits = decoder.logits(
            _rows_of(hidden, places), None if vocabulary is None else vocabulary.to(self._device)
        )
        return RowsOutput(logits, self._captured(batch, attention, [len(new) for new in tokens]))

    def _batch(self, tokens: Sequence[Sequence[int]], spans: Sequence[Span] | None) -> _Batch:
        """Give each new token a free cell of its recording's arena, and join the rows to pieces."""
        counts = list(map(len, tokens))
        cells = np.split(self._free_cells(counts), np.cumsum(counts)[:-1])
        batch = _Batch(self._table.copy(), [0] * self.n_rows)
        for slot, rows in sorted(self._by_slot().items()):
            pieces: list[_Piece] = []
            for row in rows:
                if tokens[row]:
                    batch.add(row, slot, cells[row].tolist())
                    recording = self._recordings[row]
                    frames = (0, recording.n_frames) if spans is None else spans[row]
                    _join(pieces, _Piece([recording], [row], len(tokens[row]), frames))
            for piece in pieces:
                _join(batch.pieces, piece)
        return batch

    def _attention(
        self, batch: _Batch, capture: AlignmentHeads, spans: Sequence[Span] | None
    ) -> RowsAttention:
        at, runs = 0, []
        for piece in batch.pieces:
            end = at + len(piece.rows) * piece.n_new
            runs.append(self._run(batch, piece, slice(at, end)))
            at = end
        n_head = self._model.dims.n_text_head
        slots, cells = np.asarray(batch.slots), np.asarray(batch.cells)
        heads = slots[:, None] * n_head + np.arange(n_head)
        entries = heads * (1 + self._memory.n_cells) + 1 + cells[:, None]
        return RowsAttention(
            self._memory,
            runs,
            positions=torch.tensor(batch.positions, device=self._device),
            entries=torch.from_numpy(entries.ravel()).to(self._device),
            capture=capture,
            reads_itself=spans is not None and max(batch.positions) == 0,
        )

    def _run(self, batch: _Batch, piece: _Piece, tokens: slice) -> Run:
        first, n = piece.recordings[0], len(piece.recordings)
        table = batch.table[piece.rows]
        n_cells = int(np.flatnonzero(table.any(axis=0))[-1]) + 1
        places = np.asarray(batch.positions[tokens]).reshape(len(piece.rows), piece.n_new, 1)
        own = table[:, None, :n_cells]
        hidden = (own == 0) | (own > 1 + places)
        mask = bias = None
        if hidden.any():
            mask = torch.zeros(n, 1, hidden.shape[0] * hidden.shape[1] // n, n_cells, dtype=self._dtype)
            mask = mask.masked_fill_(torch.from_numpy(hidden).view(mask.shape), -torch.inf).to(self._device)
        given = [one.log_weights for one in piece.recordings if one.log_weights is not None]  # all or none
        if given:
            bias = torch.stack(given)[:, None, None, slice(*piece.frames)]
        return Run(
            slots=slice(first.slot, first.slot + n),
            windows=slice(first.index, first.index + n),
            keys_values=first.keys_values,
            tokens=tokens,
            cells=slice(1, 1 + n_cells),
            frames=slice(*piece.frames),
            mask=mask,
            bias=bias,
            audio_mask=None if bias is None else bias.to(self._dtype),
        )

    def _captured(self, batch: _Batch, attention: RowsAttention, n_new: Sequence[int]) -> list[Tensor]:
        """Return the captured attention of each row, as in `RowsOutput`."""
        n_heads = len(attention.capture)
        found: dict[int, Tensor] = {}
        for place, piece in enumerate(batch.pieces if n_heads else ()):
            first, last = piece.frames
            own = F.pad(attention.captured(place), (first, piece.recordings[0].n_frames - last))
            found |= zip(piece.rows, torch.split(own, piece.n_new, dim=1), strict=True)
        return [
            found[row] if row in found else torch.zeros(n_heads, n, recording.n_frames, device=self._device)
            for row, (n, recording) in enumerate(zip(n_new, self._recordings, strict=True))
        ]


def _join(pieces: list[_Piece], piece: _Piece) -> None:
    """Add a piece to the last one, or after it."""
    if pieces and pieces[-1].takes(piece):
        pieces[-1].add(piece)
    else:
        pieces.append(piece)


@dataclass(frozen=True, slots=True, eq=False)
class _NewTokens:
    """The new tokens of a step, row by row: ids, rows, positions in them, cells, slots of recordings, places
    among the new tokens of the recording: (n,) int64; visible: (n, n_cells) bool.
    """

    tokens: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    cells: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]
    visible: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tokens)


class StaticRows(TorchRows):
    """Rows on an accelerator, whose steps are static: they are `ChoosingRows` too."""

    _memory: StaticMemory

    def __init__(
        self,
        model: Whisper,
        keys_values: Callable[[EncoderOutput], Sequence[KeysValues]],
        pool: RowPool,
        name: str,
    ) -> None:
        super().__init__(model, keys_values, pool.nothing, name)
        self._pool = pool
        self._borrowed: list[StaticMemory] = []
        weakref.finalize(self, _give_back, pool, self._borrowed)

    def has_room(self, n_windows: int) -> bool:
        _, n_slots = self._free_slots(n_windows)
        return n_slots <= max(self._memory.n_recordings, self._pool.room)

    def _reserve(self, n_recordings: int, n_cells: int) -> None:
        if n_recordings > self._memory.n_recordings:
            larger = self._pool.borrow(n_recordings)
            larger.take_over(self._memory)
            _give_back(self._pool, self._borrowed)
            self._borrowed.append(larger)
            self._memory = larger
            self._recordings = [larger.recording(one.slot, one.n_frames) for one in self._recordings]
        super()._reserve(self._memory.n_recordings, n_cells)

    def _placed(self, recording: RowAudio) -> RowAudio:
        return self._memory.placed(recording)

    @torch.no_grad()
    def step(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        *,
        vocabulary: Tensor | None = None,
        capture: AlignmentHeads = (),
        spans: Sequence[Span] | None = None,
    ) -> RowsOutput:
        check_step(tokens, wanted, self._lengths, longest=self._model.dims.n_text_ctx, name=self._name)
        check_heads(capture, self._model.dims)
        check_spans(spans, [one.n_frames for one in self._recordings])
        new, table = self._new_tokens(tokens)
        starts = np.concatenate(([0], np.cumsum([len(own) for own in tokens])))
        asked = np.asarray([starts[row] + one for row, own in enumerate(wanted) for one in own], np.int64)
        parts: list[tuple[npt.NDArray[np.int64], Tensor, npt.NDArray[np.int64], list[Tensor]]] = []
        for first, n_recordings, chosen in self._parts(new):
            own = np.flatnonzero(np.isin(asked, chosen))
            step, places, outputs = self._static_step(
                new, chosen, first, n_recordings, tuple(capture), spans, asked=asked[own]
            )
            logits, *captured = step.run()
            logits = logits.index_select(0, _index(outputs, self._device))
            if vocabulary is not None:
                logits = logits.index_select(1, vocabulary.to(self._device))
            attention = [one.index_select(1, _index(places, self._device)) for one in captured]
            parts.append((own, logits, chosen, attention))
        if spans is None:
            self._table = table
        logits = _in_order([one[0] for one in parts], [one[1] for one in parts], 0)
        if not capture:
            joined = logits.new_zeros(0, len(new), max(one.n_frames for one in self._recordings))
        else:
            joined = _in_order([one[2] for one in parts], [one[3][0] for one in parts], 1)
        each = torch.split(joined, [len(own) for own in tokens], dim=1)
        cut = [one[..., : recording.n_frames] for one, recording in zip(each, self._recordings, strict=True)]
        return RowsOutput(logits, cut, joined)

    @torch.no_grad()
    def step_best(self, tokens: Sequence[int], choice: TokenChoice) -> BestTokens:
        """See `ChoosingRows.step_best`; the host reads one tensor."""
        given = [[token] for token in tokens]
        check_step(
            given, [(0,)] * len(given), self._lengths, longest=self._model.dims.n_text_ctx, name=self._name
        )
        new, table = self._new_tokens(given)
        best = torch.empty(len(new), 2 * choice.n_best)
        for first, n_recordings, chosen in self._parts(new):
            step, places, _ = self._static_step(new, chosen, first, n_recordings, (), None, choice=choice)
            (found,) = step.run()
            best[chosen] = found.cpu()[places]
        self._table = table
        return BestTokens(best[:, choice.n_best :].long(), best[:, : choice.n_best])

    def _new_tokens(self, tokens: Sequence[Sequence[int]]) -> tuple[_NewTokens, Table]:
        """Give each new token a free cell; return them, and the table of the rows after them."""
        counts = [len(own) for own in tokens]
        rows = np.repeat(np.arange(self.n_rows), counts)
        cells = self._free_cells(counts)
        before = np.cumsum([0, *counts[:-1]])
        positions = self._table.max(axis=1, initial=0)[rows] + np.arange(len(rows)) - before[rows]
        table = self._table.copy()
        table[rows, cells] = 1 + positions
        slots = np.asarray([one.slot for one in self._recordings])[rows]
        order = np.argsort(slots, kind="stable")
        ranks = np.empty_like(order)
        ranks[order] = np.arange(len(order)) - np.searchsorted(slots[order], slots[order])
        held = table[rows]
        visible = (held > 0) & (held <= 1 + positions[:, None])
        ids = np.asarray([token for own in tokens for token in own], np.int64)
        return _NewTokens(ids, rows, positions, cells, slots, ranks, visible), table

    def _parts(self, new: _NewTokens) -> Iterator[tuple[int, int, npt.NDArray[np.int64]]]:
        """Divide new tokens into steps: the first slot, the number of recordings, and the tokens of each.

        Recordings with few new tokens take a step together, which is recorded; those with many, as of
        prompts, share others.
        """
        n_of = np.bincount(new.slots)
        few = (n_of > 0) & (n_of <= FEW_QUERIES[-1])
        if few.any():
            n = min(step_sizes(1 + int(np.flatnonzero(few)[-1]))[-1], self._memory.n_recordings)
            yield 0, n, np.flatnonzero(few[new.slots])
        many = np.flatnonzero(n_of > FEW_QUERIES[-1])
        while len(many):
            first, longest = int(many[0]), aligned(int(n_of[many].max()))
            n = min(max(1, MOST_QUERIES // longest), 1 + int(many[-1]) - first)
            taken = many[many < first + n]
            yield first, 1 + int(taken[-1]) - first, np.flatnonzero(np.isin(new.slots, taken))
            many = many[len(taken) :]

    def _static_step(
        self,
        new: _NewTokens,
        chosen: npt.NDArray[np.int64],
        first: int,
        n_recordings: int,
        capture: AlignmentHeads,
        spans: Sequence[Span] | None,
        *,
        asked: npt.NDArray[np.int64] | None = None,
        choice: TokenChoice | None = None,
    ) -> tuple[StaticStep, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return a step with the chosen new tokens, their places in it, and the rows of its logits for
        the tokens that are asked for (None: for all).
        """
        memory, n_longest = self._memory, 1 + int(new.ranks[chosen].max())
        is_recorded = n_longest <= FEW_QUERIES[-1]
        if len(chosen) == len(np.unique(new.rows[chosen])) and spans is None and is_recorded:
            n_queries = n_longest  # a token a row: beams that end give no new shapes
            if n_longest > 1:
                n_queries = memory.most_rows = max(n_longest, memory.most_rows)
        else:
            n_queries = next((n for n in FEW_QUERIES if n >= n_longest), aligned(n_longest))
        places = (new.slots[chosen] - first) * n_queries + new.ranks[chosen]
        wanted = places if asked is None else places[np.searchsorted(chosen, asked)]
        n_wanted = next((n for n in FEW_WANTED if n * n_recordings >= len(wanted)), n_queries)
        if n_wanted >= n_queries:
            n_wanted, outputs = n_queries, wanted
        else:
            outputs = np.arange(len(wanted))
        shape = StepShape(
            n_recordings=n_recordings,
            n_queries=n_queries,
            n_wanted=n_wanted,
            n_frames=self._n_frames(max(one.n_frames for one in self._recordings)),
            first=first,
            capture=capture,
            has_spans=spans is not None,
            n_best=None if choice is None else choice.n_best,
            time_begin=0 if choice is None else choice.time_begin,
        )
        if is_recorded:
            step = self._step_of(shape)
        else:
            step = StaticStep(self._model.decoder, memory, shape, eagerly)
        step.clear()
        step.tokens[places], step.positions[places] = new.tokens[chosen], new.positions[chosen]
        step.entries[places] += 1 + new.cells[chosen, None]
        step.visible[places, 0], step.visible[places, 1:] = False, new.visible[chosen]
        if n_wanted < n_queries:
            step.wanted[: len(wanted)] = wanted
        if spans is not None:
            step.spans[places] = np.asarray(spans)[new.rows[chosen]]
        if choice is not None:
            step.allowed[places] = np.asarray(choice.allowed)[new.rows[chosen]]
            step.forbid(choice.forbidden)
        return step, places, outputs

    def _n_frames(self, longest: int) -> int:
        n_full = self._model.dims.n_audio_ctx
        parts = (aligned(-(-n_full * part // FRAME_PARTS)) for part in range(1, FRAME_PARTS + 1))
        return next(n_frames for n_frames in parts if n_frames >= longest)

    def _step_of(self, shape: StepShape) -> StaticStep:
        """Return the step of a shape, which is recorded at its first use."""
        steps = self._memory.steps
        if shape not in steps:
            steps[shape] = StaticStep(self._model.decoder, self._memory, shape, self._pool.record)
        return steps[shape]


def _index(places: npt.NDArray[np.int64], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(places)).to(device)


def _in_order(places: Sequence[npt.NDArray[np.int64]], parts: Sequence[Tensor], dim: int) -> Tensor:
    """Join parts along a dimension, each with the places of its entries in the whole."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate(places))
    return torch.cat(list(parts), dim=dim).index_select(dim, _index(order, parts[0].device))


def _give_back(pool: RowPool, borrowed: list[StaticMemory]) -> None:
    while borrowed:
        pool.give_back(borrowed.pop())


def _rows_of(rows: Tensor, order: Sequence[int]) -> Tensor:
    """Select rows of a tensor in an order."""
    if list(order) == list(range(len(order))):
        return rows[: len(order)]
    return rows[torch.tensor(order, dtype=torch.int64, device=rows.device)]


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class TorchBackend:
    def __init__(
        self,
        model: Whisper,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        int8: bool = False,
        most_recordings: int = MOST_RECORDINGS,
    ) -> None:
        """model: the network of the checkpoint. dtype: of the activations. int8: large tables are int8.
        most_recordings: decoded at a time on an accelerator.

        Logits and attention are always float32.
        """
        self._model = model
        self.name, self.dims, self.tail_s = checkpoint.name, checkpoint.dims, checkpoint.tail_s
        self.alignment_heads = checkpoint.alignment_heads or upper_half_heads(self.dims)
        self.encoder_mode = checkpoint.encoder_mode or default_encoder_mode(self.dims)
        self.device, self.dtype = model.encoder.positional_embedding.device, dtype
        self.runtime = f"torch, {'int8 weights, ' * int8}{str(dtype).removeprefix('torch.')}"
        self.own_threads = self.device.type != "cpu"
        self.pool: RowPool | None = None
        """Static memory of rows; None: rows grow, as on a CPU, where a launch costs nothing."""
        if self.device.type == "cuda":
            torch.backends.cuda.enable_cudnn_sdp(False)  # see `planned_attention`
        if self.device.type != "cpu":
            self.pool = RowPool(self.dims, dtype, self.device, recorder_of(self.device), most_recordings)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *,
        device: torch.device,
        dtype: torch.dtype,
        int8: bool = False,
        most_bytes: float | None = None,
    ) -> TorchBackend:
        """Load a checkpoint's weights onto a device.

        dtype: of activations and weights, except large tables if `int8`. most_bytes: of an accelerator's
        memory, for weights and rows; None: what is free.

        Raises:
            OptionError: a dtype without kernels, or a model that does not fit into the memory.
        """
        if dtype not in DTYPES:
            raise OptionError(f"dtype {dtype} given, expected one of {', '.join(map(str, DTYPES))}")
        most_recordings = MOST_RECORDINGS
        if device.type != "cpu":
            most = min(free_bytes(device), math.inf if most_bytes is None else most_bytes)
            plan = plan_memory(checkpoint.dims, NumberFormat(dtype, int8), most, checkpoint.name)
            logger.info("%s on %s: %s", checkpoint.name, device, plan)
            most_recordings = plan.n_recordings
        tensors = checkpoint.tensors
        model = whisper_from_tensors(checkpoint.dims, tensors, device=device, dtype=dtype, int8=int8)
        return cls(model, checkpoint, dtype=dtype, int8=int8, most_recordings=most_recordings)

    @torch.no_grad()
    def encode(self, features: Features) -> EncoderOutput:
        n_content = content_frames(features, self.dims, self.name)
        mel = features.mel.to(self.device, self.dtype)
        is_full = self.device.type == "cuda" and mel.shape[2] == 2 * self.dims.n_audio_ctx
        with planned_attention() if is_full else nullcontext():
            return EncoderOutput(self._model.encoder(mel), n_content)

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        planned = plan_updates(windows, TorchEncoderState, dims=self.dims, name=self.name)
        results: dict[int, IncrementalResult] = {}
        for kind in {plan.kind for plan, _ in planned}:
            places = [at for at, (plan, _) in enumerate(planned) if plan.kind == kind]
            computed = encode_incremental(self._model, [planned[at][1] for at in places])
            for at, frames in zip(places, computed, strict=True):
                plan, update = planned[at]
                state = TorchEncoderState(plan.cache, frames)
                results[at] = result_of(plan, update, state, frames.states, frames.cross_layers)
        return [results[at] for at in range(len(windows))]

    def rows(self) -> TorchRows:
        if self.pool is not None:
            return StaticRows(self._model, self.keys_values, self.pool, self.name)
        return TorchRows(
            self._model, self.keys_values, RowMemory(self.dims, self.dtype, self.device), self.name
        )

    def keys_values(self, encoded: EncoderOutput) -> list[KeysValues]:
        """Return cross-attention keys and values, per layer (B, H, n_frames, d_head), computed at the
        first use.
        """
        if encoded.cross_kv is None:
            encoded.cross_kv = self._model.decoder.cross_keys_values(encoded.states)
        return encoded.cross_kv
