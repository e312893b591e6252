"""Whisper on PyTorch: CPU, CUDA or MPS, in floats or with int8 weights."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, pairwise
from typing import NamedTuple

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
    StepEnd,
    StepGroup,
    StepPart,
    TokenChoice,
    check_admitted,
    check_heads,
    check_selected,
    check_spans,
    check_step,
)
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.devices import (
    MOST_RECORDINGS,
    NumberFormat,
    aligned,
    encoder_work,
    free_bytes,
    plan_memory,
)
from sottovoce.models.dims import default_encoder_mode, upper_half_heads
from sottovoce.models.layers import KeysValues
from sottovoce.models.whisper import Whisper, whisper_from_tensors
from sottovoce.runtime.graphs import attention_plans, eagerly, recorder_of
from sottovoce.runtime.incremental_encoder import (
    CachedWindow,
    EncoderKvCache,
    StaticEncoder,
    UpdatePlan,
    WindowUpdate,
    content_frames,
    encode_incremental,
    plan_updates,
    result_of,
)
from sottovoce.runtime.rows import (
    FEW_QUERIES,
    FEW_WANTED,
    FRAME_PARTS,
    BestTokensEnd,
    RowAudio,
    RowMemory,
    RowPool,
    RowsAttention,
    Run,
    StaticMemory,
    StaticStep,
    StepShape,
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
    """The cache of a row's first tokens.

    keys_values: (n_layers, 2, H, n_tokens, d_head).
    """

    keys_values: Tensor

    @property
    def n_tokens(self) -> int:
        return self.keys_values.shape[3]


@dataclass(frozen=True, slots=True, eq=False)
class _NewTokens:
    """The new tokens of a step, row by row. ranks: among those of the recording. visible: (n, n_cells).
    counts: of each row.
    """

    tokens: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    cells: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]
    visible: npt.NDArray[np.bool_]
    counts: Sequence[int]

    def places_of(self, wanted: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
        starts = np.cumsum([0, *self.counts])
        return np.asarray([starts[row] + one for row, own in enumerate(wanted) for one in own], np.int64)


class TorchRows:
    """`RunningRows` of one model.

    keys_values: computes cross-attention keys and values, per layer (B, H, n_frames, d_head).
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
    def _n_frames(self) -> list[int]:
        return [one.n_frames for one in self._recordings]

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
            weights = None if encoded.log_weights is None else encoded.log_weights[index]
            recording = RowAudio(slot, keys_values, index, encoded.n_frames, weights)
            self._recordings.append(self._begin(recording, None if cached is None else cached.keys_values))
        rows = np.zeros((len(slots), self._memory.n_cells), np.int16)
        rows[:, :n_cached] = range(1, n_cached + 1)
        self._table = np.concatenate((self._table, rows))

    def _begin(self, recording: RowAudio, prefix: Tensor | None) -> RowAudio:
        """Begin a recording with a prefix; return it as the steps read it."""
        self._memory.clear(recording.slot, prefix)
        return recording

    def _reserve(self, n_recordings: int, n_cells: int) -> None:
        self._memory.grow(n_recordings, n_cells)
        more = self._memory.n_cells - self._table.shape[1]
        if more:
            self._table = np.pad(self._table, ((0, 0), (0, more)))

    def _free_cells(self, n_new: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return free cells (n,) for so many new tokens of each row, row by row."""
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

    def prefixes_of(self, rows: Sequence[tuple[int, int]]) -> list[TorchPrefix]:
        cells = []
        for row, n_tokens in rows:
            held = self._table[row]
            own = np.flatnonzero((held > 0) & (held <= n_tokens))
            cells.append(1 + own[held[own].argsort()])
        index = torch.split(_index(np.concatenate(cells), self._device), [len(one) for one in cells])
        slots = [self._recordings[row].slot for row, _ in rows]
        return [
            TorchPrefix(self._memory.text[:, :, slot].index_select(3, own))
            for slot, own in zip(slots, index, strict=True)
        ]

    def _new_tokens(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        capture: AlignmentHeads = (),
        spans: Sequence[Span] | None = None,
    ) -> tuple[_NewTokens, Table]:
        """Check a step, and give each new token a cell; return them, and the table after the step."""
        dims = self._model.dims
        check_step(tokens, wanted, self._lengths, longest=dims.n_text_ctx, name=self._name)
        check_heads(capture, dims)
        check_spans(spans, self._n_frames)
        counts = list(map(len, tokens))
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
        return _NewTokens(ids, rows, positions, cells, slots, ranks, visible, counts), table

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
        new, table = self._new_tokens(tokens, wanted, capture, spans)
        order = np.argsort(new.slots, kind="stable")
        places = np.argsort(order)
        n_head = self._model.dims.n_text_head
        heads = new.slots[order, None] * n_head + np.arange(n_head)
        entries = heads * (1 + self._memory.n_cells) + 1 + new.cells[order, None]
        attention = RowsAttention(
            self._memory,
            self._runs(new, order, spans),
            positions=_index(new.positions[order], self._device),
            entries=_index(entries.ravel(), self._device),
            capture=capture,
            reads_itself=spans is not None and not new.positions.any(),
        )
        hidden = self._model.decoder(_index(new.tokens[order], self._device), attention)
        if spans is None:
            self._table = table
        logits = self._model.decoder.logits(_selected(hidden, places[new.places_of(wanted)], 0), vocabulary)
        longest = max(self._n_frames)
        joined = logits.new_zeros(0, len(order), longest)
        if capture:
            captured = [
                F.pad(attention.captured(place), (run.frames.start, longest - run.frames.stop))
                for place, run in enumerate(attention.runs)
            ]
            joined = _selected(torch.cat(captured, dim=1), places, 1)
        return RowsOutput(logits, joined, new.counts, self._n_frames)

    def _runs(self, new: _NewTokens, order: npt.NDArray[np.int64], spans: Sequence[Span] | None) -> list[Run]:
        """Divide new tokens, in the order of their recordings, into calls of attention."""
        frames = np.asarray([(0, n) for n in self._n_frames] if spans is None else spans)[new.rows[order]]
        borders = np.diff(new.slots[order]).astype(bool) | np.diff(frames, axis=0).any(axis=1)
        runs: list[tuple[list[RowAudio], slice, Span]] = []
        for begin, end in pairwise([0, *(1 + np.flatnonzero(borders)), len(order)]):
            audio, span = (
                self._recordings[new.rows[order[begin]]],
                (int(frames[begin, 0]), int(frames[begin, 1])),
            )
            if runs:
                others, tokens, before = runs[-1]
                last, n_tokens = others[-1], (tokens.stop - tokens.start) // len(others)
                follows = audio.slot == last.slot + 1 and audio.index == last.index + 1
                is_like = audio.keys_values is last.keys_values and span == before
                if follows and is_like and end - begin == n_tokens:
                    runs[-1] = [*others, audio], slice(tokens.start, end), span
                    continue
            runs.append(([audio], slice(begin, end), span))
        visible = new.visible[order]
        return [self._run(visible[each[1]], *each) for each in runs]

    def _run(
        self, visible: npt.NDArray[np.bool_], recordings: Sequence[RowAudio], tokens: slice, span: Span
    ) -> Run:
        first, n = recordings[0], len(recordings)
        n_cells = int(np.flatnonzero(visible.any(axis=0))[-1]) + 1
        hidden = torch.from_numpy(~visible[:, :n_cells]).view(n, 1, -1, n_cells)
        mask = bias = None
        if hidden.any():
            mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, -torch.inf)
        given = [one.log_weights for one in recordings if one.log_weights is not None]  # all or none
        if given:
            bias = torch.stack(given)[:, None, None, slice(*span)]
        return Run(
            slots=slice(first.slot, first.slot + n),
            windows=slice(first.index, first.index + n),
            keys_values=first.keys_values,
            tokens=tokens,
            cells=slice(1, 1 + n_cells),
            frames=slice(*span),
            mask=mask,
            bias=bias,
            audio_mask=None if bias is None else bias.to(self._dtype),
        )


class _Part(NamedTuple):
    """A static step: its first slot, number of recordings, and which of the new tokens it takes."""

    first: int
    n_recordings: int
    tokens: npt.NDArray[np.int64]


class StaticRows(TorchRows):
    """Rows on an accelerator, whose steps are static: they are `ChoosingRows` and `EndingRows` too."""

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
        self._begun: list[tuple[RowAudio, Tensor | None]] = []
        """Recordings with prefixes that the next step places in the memory, all at once."""
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
        super()._reserve(self._memory.n_recordings, n_cells)

    def _begin(self, recording: RowAudio, prefix: Tensor | None) -> RowAudio:
        self._begun.append((recording, prefix))
        return replace(recording, keys_values=(), log_weights=None)

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
        new, table = self._new_tokens(tokens, wanted, capture, spans)
        asked = new.places_of(wanted)
        owners, found, logits, attention = [], [], [], []
        for part in self._parts(new, np.arange(len(new.tokens)), len(capture)):
            own = np.flatnonzero(np.isin(asked, part.tokens))
            step, places, outputs = self._static_step(
                new, part, asked[own], capture=tuple(capture), spans=spans
            )
            results = step.run()
            owners.append(own)
            logits.append(results[0].index_select(0, _index(outputs, self._device)))
            found.append(part.tokens)
            attention += [one.index_select(1, _index(places, self._device)) for one in results[1:]]
        if spans is None:
            self._table = table
        every = _in_order(owners, logits, 0)
        if vocabulary is not None:
            every = every.index_select(1, vocabulary.to(self._device))
        longest = max(self._n_frames)
        joined = _in_order(found, attention, 1) if capture else every.new_zeros(0, len(new.tokens), longest)
        return RowsOutput(every, joined, new.counts, self._n_frames)

    def step_best(self, tokens: Sequence[int], choice: TokenChoice) -> BestTokens:
        """See `ChoosingRows.step_best`; the host reads one tensor."""
        end = BestTokensEnd(choice.n_best, choice.time_begin, self._model.dims.n_vocab)
        group = StepGroup(end, range(self.n_rows), [(0,)] * self.n_rows, choice.allowed)
        best = torch.empty(self.n_rows, 2 * choice.n_best)
        for rows, places, outputs in self.step_groups(
            [[token] for token in tokens], [group], choice.forbidden
        ):
            best[rows] = outputs[0].cpu()[places]
        return BestTokens(best[:, choice.n_best :].long(), best[:, : choice.n_best])

    def state(self, end: StepEnd) -> Sequence[Tensor]:
        self._memory.grow_rows(int(np.bincount([one.slot for one in self._recordings]).max()))
        return self._memory.state(end)

    @torch.no_grad()
    def step_groups(
        self,
        tokens: Sequence[Sequence[int]],
        groups: Sequence[StepGroup],
        forbidden: Tensor | None = None,
    ) -> list[StepPart]:
        """See `EndingRows.step_groups`. forbidden: (n,) ids of a `BestTokensEnd`."""
        wanted: list[Sequence[int]] = [()] * self.n_rows
        for group in groups:
            for row, own in zip(group.rows, group.wanted, strict=True):
                wanted[row] = own
        new, table = self._new_tokens(tokens, wanted)
        asked, parts = new.places_of(wanted), []
        for group in groups:
            end, columns = group.end, np.zeros((self.n_rows, group.end.n_columns), np.int64)
            columns[list(group.rows)] = group.columns
            if forbidden is not None and isinstance(end, BestTokensEnd):
                self._memory.forbid(end, forbidden)
            chosen = np.flatnonzero(np.isin(new.rows, list(group.rows)))
            for part in self._parts(new, chosen, len(end.capture)):
                own_asked = asked[np.isin(asked, part.tokens)]
                step, places, _ = self._static_step(new, part, own_asked, capture=end.capture, end=end)
                rows, firsts = np.unique(new.rows[part.tokens], return_index=True)
                places = places[firsts] // (step.shape.n_queries if end.reads_prefixes else 1)
                step.columns[places] = columns[rows]
                parts.append(StepPart(rows.tolist(), places.tolist(), step.run()))
        self._table = table
        return parts

    def _parts(self, new: _NewTokens, chosen: npt.NDArray[np.int64], n_captured: int) -> Iterator[_Part]:
        """Divide the chosen new tokens into steps.

        Recordings with few new tokens take a step together, which is recorded; those with many, as of
        prompts, share others, whose captured attention takes no more memory than a batch of the encoder.
        """
        if self._begun:
            self._memory.place(self._begun)
            self._begun = []
        slots = new.slots[chosen]
        n_of = np.bincount(slots)
        few = (n_of > 0) & (n_of <= FEW_QUERIES[-1])
        if few.any():
            n = min(step_sizes(1 + int(np.flatnonzero(few)[-1]))[-1], self._memory.n_recordings)
            yield _Part(0, n, chosen[few[slots]])
        many = np.flatnonzero(n_of > FEW_QUERIES[-1])
        most = encoder_work(self._model.dims, self._dtype) // (4 * max(1, n_captured) * max(self._n_frames))
        while len(many):
            first, longest = int(many[0]), aligned(int(n_of[many].max()))
            n = min(max(1, most // longest), 1 + int(many[-1]) - first)
            taken = many[many < first + n]
            yield _Part(first, 1 + int(taken[-1]) - first, chosen[np.isin(slots, taken)])
            many = many[len(taken) :]

    def _static_step(
        self,
        new: _NewTokens,
        part: _Part,
        asked: npt.NDArray[np.int64],
        *,
        capture: AlignmentHeads,
        spans: Sequence[Span] | None = None,
        end: StepEnd | None = None,
    ) -> tuple[StaticStep, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return a step with a part of the new tokens, their places, and the rows of the asked logits."""
        memory, (first, n_recordings, chosen) = self._memory, part
        n_longest = 1 + int(new.ranks[chosen].max())
        is_recorded = n_longest <= FEW_QUERIES[-1]
        if len(chosen) == len(np.unique(new.rows[chosen])) and spans is None and is_recorded:
            n_queries = n_longest  # a token a row: beams that end give no new shapes
            if n_longest > 1:
                memory.grow_rows(n_longest)
                n_queries = memory.most_rows
        else:
            n_queries = next((n for n in FEW_QUERIES if n >= n_longest), aligned(n_longest))
        places = (new.slots[chosen] - first) * n_queries + new.ranks[chosen]
        wanted = places[np.searchsorted(chosen, asked)]
        if end is not None and end.reads_prefixes:
            n_wanted, outputs = 2, 2 * (wanted // n_queries) + np.arange(len(wanted)) % 2
        elif end is not None or len(wanted) > FEW_WANTED[-1] * n_recordings:
            n_wanted, outputs = n_queries, wanted
        else:
            n_wanted = next(n for n in FEW_WANTED if n * n_recordings >= len(wanted))
            n_wanted, outputs = min(n_wanted, n_queries), np.arange(len(wanted))
            if n_wanted == n_queries:
                outputs = wanted
        shape = StepShape(
            n_recordings=n_recordings,
            n_queries=n_queries,
            n_wanted=n_wanted,
            n_frames=self._frames_of_step(),
            first=first,
            capture=capture,
            has_spans=spans is not None,
            end=end,
        )
        record = self._pool.record if is_recorded else eagerly
        step = memory.steps.get(shape) or StaticStep(self._model.decoder, memory, shape, record)
        if is_recorded:
            memory.steps[shape] = step
        step.clear()
        step.tokens[places], step.positions[places] = new.tokens[chosen], new.positions[chosen]
        step.entries[places] += 1 + new.cells[chosen, None]
        step.visible[places, 0], step.visible[places, 1:] = False, new.visible[chosen]
        step.wanted[outputs] = wanted
        if spans is not None:
            step.spans[places] = np.asarray(spans)[new.rows[chosen]]
        return step, places, outputs

    def _frames_of_step(self) -> int:
        n_full, longest = self._model.dims.n_audio_ctx, max(self._n_frames)
        parts = (aligned(-(-n_full * part // FRAME_PARTS)) for part in range(1, FRAME_PARTS + 1))
        return next(n_frames for n_frames in parts if n_frames >= longest)


def _index(places: npt.NDArray[np.int64], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(places)).to(device)


def _selected(tensor: Tensor, places: npt.NDArray[np.int64], dim: int) -> Tensor:
    """Select along a dimension; without a copy, if these are the first."""
    if np.array_equal(places, np.arange(len(places))):
        return tensor.narrow(dim, 0, len(places))
    return tensor.index_select(dim, _index(places, tensor.device))


def _in_order(places: Sequence[npt.NDArray[np.int64]], parts: Sequence[Tensor], dim: int) -> Tensor:
    """Join parts along a dimension, each with the places of its entries in the whole."""
    if len(parts) == 1:
        return parts[0]
    return _selected(torch.cat(list(parts), dim=dim), np.argsort(np.concatenate(places)), dim)


def _give_back(pool: RowPool, borrowed: list[StaticMemory]) -> None:
    while borrowed:
        pool.give_back(borrowed.pop())


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
        """dtype: of the activations. int8: large tables are int8. most_recordings: decoded at a time on an
        accelerator. Logits and attention are always float32.
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

        most_bytes: of an accelerator's memory, for weights and rows; None: what is free.

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
        encoded = None if self.pool is None else self._static_encoder(self.pool).encode(features.mel)
        if encoded is not None:
            return EncoderOutput(encoded[0], n_content, [(pair[0], pair[1]) for pair in encoded[1]])
        mel = features.mel.to(self.device, self.dtype)
        with attention_plans(self.device, mel.shape[2] == 2 * self.dims.n_audio_ctx):
            return EncoderOutput(self._model.encoder(mel), n_content)

    def _static_encoder(self, pool: RowPool) -> StaticEncoder:
        if pool.encoder is None:
            pool.encoder = StaticEncoder(self._model, pool.record, encoder_work(self.dims, self.dtype))
        return pool.encoder

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        planned = plan_updates(windows, TorchEncoderState, dims=self.dims, name=self.name)
        updates = [update for _, update in planned]
        if self.pool is not None:
            with attention_plans(self.device, False):
                computed = dict(enumerate(self._static_encoder(self.pool).encode_incremental(updates)))
        else:
            computed = {}
            for kind in {plan.kind for plan, _ in planned}:
                places = [at for at, (plan, _) in enumerate(planned) if plan.kind == kind]
                computed |= zip(
                    places, encode_incremental(self._model, [updates[at] for at in places]), strict=True
                )
        return [self._result(*each, computed[at]) for at, each in enumerate(planned)]

    @staticmethod
    def _result(plan: UpdatePlan, update: WindowUpdate, frames: EncoderKvCache) -> IncrementalResult:
        state = TorchEncoderState(plan.cache, frames)
        return result_of(plan, update, state, frames.states, frames.cross_layers)

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
