"""Whisper on PyTorch: CPU, CUDA or MPS, in floats or with int8 weights."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
    FRAME_PARTS,
    RowAudio,
    RowMemory,
    RowPool,
    RowsAttention,
    Run,
    StaticMemory,
    StaticStep,
    StepShape,
    recorder_of,
    step_sizes,
)
from sottovoce.types import EncoderOutput, Features

logger = logging.getLogger(__name__)


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

    table: npt.NDArray[np.int16]
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
        self._table = np.zeros((0, self._memory.n_cells), np.int16)
        """(n_rows, n_cells): 1 + the position of the row's token in each cell; 0: not one of its own."""

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

    def _free_cells(self, n_new: Sequence[int]) -> list[list[int]]:
        """Return free cells of its recording's arena for so many new tokens of each row."""
        by_slot = self._by_slot()
        needed = [self._n_held(rows) + sum(n_new[row] for row in rows) for rows in by_slot.values()]
        self._reserve(0, max(needed))
        cells: list[list[int]] = [[] for _ in n_new]
        for rows in by_slot.values():
            n = sum(n_new[row] for row in rows)
            free = iter(np.flatnonzero(~self._table[rows].any(axis=0))[:n].tolist())
            for row in rows:
                cells[row] = list(islice(free, n_new[row]))
        return cells

    def _n_held(self, rows: Sequence[int]) -> int:
        return int(self._table[rows].any(axis=0).sum())

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
        cells = self._free_cells(list(map(len, tokens)))
        batch = _Batch(self._table.copy(), [0] * self.n_rows)
        for slot, rows in sorted(self._by_slot().items()):
            pieces: list[_Piece] = []
            for row in rows:
                if tokens[row]:
                    batch.add(row, slot, cells[row])
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


class StaticRows(TorchRows):
    """Rows on an accelerator, whose steps of single tokens are static: they are `ChoosingRows` too.

    Other steps, of prefixes and within spans, run as on a CPU, over the same memory.
    """

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
        """See `RunningRows.step`; the output is valid until the next step."""
        single = [row for row, new in enumerate(tokens) if len(new) == 1]
        if spans is not None or not single:
            return super().step(tokens, wanted, vocabulary=vocabulary, capture=capture, spans=spans)
        check_step(tokens, wanted, self._lengths, longest=self._model.dims.n_text_ctx, name=self._name)
        check_heads(capture, self._model.dims)
        before = self._table
        step, found = self._static_step(single, [tokens[row][0] for row in single], tuple(capture))
        logits, *captured = step.run()
        if vocabulary is not None:
            logits = logits.index_select(1, vocabulary.to(self._device))
        places = dict(zip(single, found, strict=True))
        others: Iterator[Tensor] = iter(())
        following = len(logits)
        if any(len(new) > 1 for new in tokens):
            longer = [[] if len(new) == 1 else new for new in tokens]
            asked = [() if len(new) == 1 else own for new, own in zip(tokens, wanted, strict=True)]
            try:
                rest = super().step(longer, asked, vocabulary=vocabulary, capture=capture)
            except Exception:
                self._table = before
                raise
            logits, others = torch.cat((logits, rest.logits)), iter(rest.attention)
        order: list[int] = []
        attention = []
        for row, (own, recording) in enumerate(zip(wanted, self._recordings, strict=True)):
            place = places.get(row)
            given = next(others, None)
            if place is None:
                order += range(following, following + len(own))
                following += len(own)
                attention.append(
                    logits.new_zeros(len(capture), 0, recording.n_frames) if given is None else given
                )
            else:
                order += [place] * len(own)
                whole = captured[0] if captured else logits.new_zeros(0, place + 1, recording.n_frames)
                attention.append(whole[:, place : place + 1, : recording.n_frames])
        return RowsOutput(_rows_of(logits, order), attention)

    @torch.no_grad()
    def step_best(self, tokens: Sequence[int], choice: TokenChoice) -> BestTokens:
        """See `ChoosingRows.step_best`; the host reads one tensor."""
        new = [[token] for token in tokens]
        check_step(
            new, [(0,)] * len(new), self._lengths, longest=self._model.dims.n_text_ctx, name=self._name
        )
        step, places = self._static_step(range(self.n_rows), tokens, (), choice)
        (found,) = step.run()
        best = found.cpu()[places]
        return BestTokens(best[:, choice.n_best :].long(), best[:, : choice.n_best])

    def _static_step(
        self,
        rows: Sequence[int],
        tokens: Sequence[int],
        capture: AlignmentHeads,
        choice: TokenChoice | None = None,
    ) -> tuple[StaticStep, list[int]]:
        """Return a step with one token of each of these rows, and their places in it."""
        stepping = set(rows)
        free = self._free_cells([int(row in stepping) for row in range(self.n_rows)])
        by_slot = self._by_slot()
        n_rows = max(map(len, by_slot.values()))
        if n_rows > 1:
            n_rows = self._memory.most_rows = max(n_rows, self._memory.most_rows)
        places = {row: slot * n_rows + k for slot, own in by_slot.items() for k, row in enumerate(own)}
        found, chosen = [places[row] for row in rows], list(rows)
        cells = np.asarray([free[row][0] for row in rows])
        table, lengths = self._table.copy(), self._table.max(axis=1)
        table[chosen, cells] = 1 + lengths[chosen]
        step = self._step_of(
            StepShape(
                n_recordings=min(step_sizes(1 + max(by_slot))[-1], self._memory.n_recordings),
                n_rows=n_rows,
                n_frames=self._n_frames(max(one.n_frames for one in self._recordings)),
                capture=capture,
                n_best=None if choice is None else choice.n_best,
                time_begin=0 if choice is None else choice.time_begin,
            )
        )
        step.clear()
        step.tokens[found], step.positions[found] = tokens, lengths[chosen]
        step.entries[found] += 1 + cells[:, None]
        step.visible[found, 0], step.visible[found, 1:] = False, table[chosen] > 0
        if choice is not None:
            step.allowed[found] = choice.allowed
            step.forbid(choice.forbidden)
        self._table = table
        return step, found

    def _n_frames(self, longest: int) -> int:
        n_full = self._model.dims.n_audio_ctx
        parts = (aligned(-(-n_full * part // FRAME_PARTS)) for part in range(1, FRAME_PARTS + 1))
        return next(n_frames for n_frames in parts if n_frames >= longest)

    def _step_of(self, shape: StepShape) -> StaticStep:
        """Return the step of a shape; at its first use, those of all sizes are recorded, largest first."""
        memory = self._memory
        if shape not in memory.steps:
            for size in reversed(step_sizes(memory.n_recordings)):
                one = replace(shape, n_recordings=min(size, memory.n_recordings))
                memory.steps[one] = StaticStep(self._model.decoder, memory, one, self._pool.record)
        return memory.steps[shape]


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
        self.own_threads = False
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
        return EncoderOutput(self._model.encoder(features.mel.to(self.device, self.dtype)), n_content)

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        planned = plan_updates(windows, TorchEncoderState, dims=self.dims, device=self.device, name=self.name)
        results: dict[int, IncrementalResult] = {}
        for kind in {plan.kind for plan, _ in planned}:
            places = [at for at, (plan, _) in enumerate(planned) if plan.kind == kind]
            computed = encode_incremental(self._model, [planned[at][1] for at in places])
            for at, frames in zip(places, computed, strict=True):
                plan, update = planned[at]
                state = TorchEncoderState(plan.cache, frames)
                results[at] = result_of(plan, update, state, frames.states, list(frames.cross))
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
