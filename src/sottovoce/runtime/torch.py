"""Whisper on PyTorch: CPU, CUDA or MPS, in floats or with int8 weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.errors import OptionError
from sottovoce.models.backend import (
    AlignmentHeads,
    IncrementalResult,
    IncrementalWindow,
    RowPrefix,
    RowsOutput,
    Span,
    check_admitted,
    check_heads,
    check_selected,
    check_spans,
    check_step,
)
from sottovoce.models.checkpoint.base import Checkpoint
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
from sottovoce.runtime.rows import Recording, RowMemory, RowsAttention, Run
from sottovoce.types import EncoderOutput, Features


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

    recordings: neighbours, with equally many of the rows each. n_new: tokens of each row. frames: attended to.
    spans: within the frames, of each row; or None.
    """

    recordings: list[Recording]
    rows: list[int]
    n_new: int
    frames: Span
    spans: list[Span] | None

    def takes(self, other: _Piece) -> bool:
        """Return whether another piece, of one recording, may be added."""
        if (self.n_new, self.frames, self.spans is None) != (other.n_new, other.frames, other.spans is None):
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
        if self.spans is not None:
            self.spans += other.spans or []


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


def slices_spans(device: torch.device) -> bool:
    """Return whether each span gets its own call; elsewhere a kernel launch costs more than masked frames."""
    return device.type == "cpu"


class TorchRows:
    """`RunningRows` of one model.

    keys_values: computes the cross-attention keys and values of windows, per layer (B, H, n_frames,
    d_head). dtype: of keys and values.
    """

    def __init__(
        self,
        model: Whisper,
        keys_values: Callable[[EncoderOutput], Sequence[KeysValues]],
        dtype: torch.dtype,
        name: str,
    ) -> None:
        self._model = model
        self._keys_values = keys_values
        self._name = name
        self._dtype = dtype
        self._device = model.decoder.positional_embedding.device
        self._memory = RowMemory(model.dims, dtype, self._device)
        self._recordings: list[Recording] = []
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

    @torch.no_grad()
    def admit(self, encoded: EncoderOutput, prefix: RowPrefix | None = None) -> None:
        cached = check_admitted(encoded, prefix, TorchPrefix, self._name)
        keys_values = self._keys_values(encoded)
        for index in range(encoded.batch_size):
            taken = {recording.slot for recording in self._recordings}
            slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
            n_cached = 0 if cached is None else cached.n_tokens
            self._reserve(slot + 1, n_cached)
            self._memory.clear(slot, None if cached is None else cached.keys_values)
            weights = None if encoded.log_weights is None else encoded.log_weights[index]
            self._recordings.append(Recording(slot, keys_values, index, encoded.n_frames, weights))
            row = np.zeros((1, self._memory.n_cells), np.int16)
            row[0, :n_cached] = range(1, n_cached + 1)
            self._table = np.concatenate((self._table, row))

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
        if places != list(range(len(hidden))):
            hidden = hidden[torch.tensor(places, dtype=torch.int64, device=self._device)]
        logits = decoder.logits(hidden, None if vocabulary is None else vocabulary.to(self._device))
        return RowsOutput(logits, self._captured(batch, attention, [len(new) for new in tokens]))

    def _batch(self, tokens: Sequence[Sequence[int]], spans: Sequence[Span] | None) -> _Batch:
        """Give each new token a free cell of its recording's arena, and join the rows to pieces."""
        by_slot: dict[int, list[int]] = {}
        for row, recording in enumerate(self._recordings):
            by_slot.setdefault(recording.slot, []).append(row)
        n_new = {slot: sum(len(tokens[row]) for row in rows) for slot, rows in by_slot.items()}
        held = {slot: (self._table[rows] > 0).any(axis=0) for slot, rows in by_slot.items()}
        self._reserve(0, max(int(held[slot].sum()) + n for slot, n in n_new.items()))
        batch = _Batch(self._table.copy(), [0] * self.n_rows)
        for slot in sorted(by_slot):
            is_held = np.pad(held[slot], (0, self._memory.n_cells - len(held[slot])))
            free = np.flatnonzero(~is_held)[: n_new[slot]].tolist()
            pieces: list[_Piece] = []
            for row in by_slot[slot]:
                if tokens[row]:
                    n = len(tokens[row])
                    batch.add(row, slot, free[:n])
                    del free[:n]
                    _join(pieces, self._piece(row, n, None if spans is None else spans[row]))
            for piece in pieces:
                _join(batch.pieces, piece)
        return batch

    def _piece(self, row: int, n_new: int, span: Span | None) -> _Piece:
        recording = self._recordings[row]
        whole = (0, recording.n_frames)
        if span is None or slices_spans(self._device):
            return _Piece([recording], [row], n_new, span or whole, None)
        return _Piece([recording], [row], n_new, whole, [span])

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
        mask = None
        if hidden.any():
            mask = self._minus_infinity(torch.from_numpy(hidden).view(n, 1, -1, n_cells))
        return Run(
            slots=slice(first.slot, first.slot + n),
            windows=slice(first.index, first.index + n),
            keys_values=first.keys_values,
            tokens=tokens,
            cells=slice(1, 1 + n_cells),
            frames=slice(*piece.frames),
            mask=None if mask is None else mask.to(self._dtype),
            bias=self._bias(piece),
        )

    def _minus_infinity(self, hidden: Tensor) -> Tensor:
        found = torch.zeros(hidden.shape, device=self._device)
        return found.masked_fill_(hidden.to(self._device), -torch.inf)

    def _bias(self, piece: _Piece) -> Tensor | None:
        """Return what is added to the attention of a piece to its frames: float32, as `Run.bias`; or None."""
        given = [one.log_weights for one in piece.recordings if one.log_weights is not None]  # all or none
        bias = torch.stack(given)[:, None, None, slice(*piece.frames)] if given else None
        if piece.spans is None:
            return bias
        starts, ends = (torch.tensor(each)[:, None] for each in zip(*piece.spans, strict=True))
        frames = torch.arange(*piece.frames)
        hidden = ((frames < starts) | (frames >= ends)).repeat_interleave(piece.n_new, 0)
        masked = self._minus_infinity(hidden.view(len(piece.recordings), 1, -1, len(frames)))
        return masked if bias is None else masked + bias

    def _captured(self, batch: _Batch, attention: RowsAttention, n_new: Sequence[int]) -> list[Tensor]:
        """Return the captured attention of each row, as in `RowsOutput`."""
        n_heads = len(attention.capture)
        found: dict[int, Tensor] = {}
        for place, piece in enumerate(batch.pieces if n_heads else ()):
            first, last = piece.frames
            own = F.pad(attention.captured(place), (first, piece.recordings[0].n_frames - last))
            found |= zip(piece.rows, own.split(piece.n_new, dim=1), strict=True)
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


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class TorchBackend:
    def __init__(
        self, model: Whisper, checkpoint: Checkpoint, *, dtype: torch.dtype, int8: bool = False
    ) -> None:
        """model: the network of the checkpoint. dtype: of the activations. int8: large tables are int8.

        Logits and attention are always float32.
        """
        self._model = model
        self.name, self.dims, self.tail_s = checkpoint.name, checkpoint.dims, checkpoint.tail_s
        self.alignment_heads = checkpoint.alignment_heads or upper_half_heads(self.dims)
        self.encoder_mode = checkpoint.encoder_mode or default_encoder_mode(self.dims)
        self.device, self.dtype = model.encoder.positional_embedding.device, dtype
        self.runtime = f"torch, {'int8 weights, ' * int8}{str(dtype).removeprefix('torch.')}"
        self.own_threads = False

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype, int8: bool = False
    ) -> TorchBackend:
        """Load a checkpoint's weights onto a device.

        dtype: of activations and weights, except large tables if `int8`.

        Raises:
            OptionError: a dtype without kernels.
        """
        if dtype not in DTYPES:
            raise OptionError(f"dtype {dtype} given, expected one of {', '.join(map(str, DTYPES))}")
        tensors = checkpoint.tensors
        model = whisper_from_tensors(checkpoint.dims, tensors, device=device, dtype=dtype, int8=int8)
        return cls(model, checkpoint, dtype=dtype, int8=int8)

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
        return TorchRows(self._model, self.keys_values, self.dtype, self.name)

    def keys_values(self, encoded: EncoderOutput) -> list[KeysValues]:
        """Return cross-attention keys and values, per layer (B, H, n_frames, d_head), computed at the
        first use.
        """
        if encoded.cross_kv is None:
            encoded.cross_kv = self._model.decoder.cross_keys_values(encoded.states)
        return encoded.cross_kv
