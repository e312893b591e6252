"""Memory of decoder rows, and the decoder's attention to it.

The rows of a recording share an arena of cells: a token's keys and values are written once, to a free cell. A
table on the host lists the cells of each row, so branching, reordering and dropping beams copies no cache.
All new tokens of a recording are queries of one attention over its arena, masked by the table, and of one
over its audio, whose keys and values are read once for all beams.

On an accelerator the memory is static and steps of few tokens have few shapes (`StepShape`): no shape depends
on the text, so the operators of a step can be recorded as a CUDA graph.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.errors import OptionError
from sottovoce.models.backend import Outputs, StepEnd
from sottovoce.models.devices import MOST_RECORDINGS, aligned
from sottovoce.models.dims import AlignmentHeads, ModelDims
from sottovoce.models.layers import KeysValues, MultiHeadAttention, attend, head_weights
from sottovoce.models.whisper import TextDecoder
from sottovoce.runtime.graphs import Record, attention_plans
from sottovoce.runtime.incremental_encoder import StaticEncoder

FIRST_CELLS = 63
"""Cells of a new arena, which makes 64 with the unused first one; a full arena doubles."""


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
        n_cells: int = FIRST_CELLS,
    ) -> None:
        self.dims = dims
        d_head = dims.n_text_state // dims.n_text_head
        size = (dims.n_text_layer, 2, n_recordings, dims.n_text_head, 1 + n_cells, d_head)
        with torch.inference_mode(False):
            self._set(torch.zeros(size, dtype=dtype, device=device))

    def _set(self, text: Tensor) -> None:
        self.text = text
        self.layers = [(pair[0], pair[1]) for pair in text]

    @property
    def n_recordings(self) -> int:
        return self.text.shape[2]

    @property
    def n_cells(self) -> int:
        return self.text.shape[4] - 1

    def grow(self, n_recordings: int, n_cells: int) -> None:
        """Make room for recordings and cells; doubles what is full."""
        more_recordings = _doubled(self.n_recordings, n_recordings) - self.n_recordings
        more_cells = _doubled(1 + self.n_cells, aligned(1 + n_cells)) - (1 + self.n_cells)
        if more_recordings or more_cells:
            with torch.inference_mode(False):
                self._set(F.pad(self.text, (0, 0, 0, more_cells, 0, 0, 0, more_recordings)))

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
class Run:
    """Attention of the new tokens of neighbouring recordings, n_queries each, as one call a layer.

    tokens: of the batch. cells, frames: attended to. mask: (n_recordings, 1, n_queries, n_cells), added to
    the attention logits, or None. bias: (n_recordings, 1, 1 or n_queries, n_frames) float32, the same for
    the audio, or None; audio_mask: the bias in the dtype of the queries.
    """

    slots: slice
    windows: slice
    keys_values: Sequence[KeysValues]
    tokens: slice
    cells: slice
    frames: slice
    mask: Tensor | None
    bias: Tensor | None
    audio_mask: Tensor | None

    @property
    def n_recordings(self) -> int:
        n: int = self.slots.stop - self.slots.start
        return n


@dataclass(frozen=True, slots=True, eq=False)
class RowsAttention:
    """`DecoderAttention` of the new tokens (n, d) of rows, run by run.

    positions: (n,) int64 of the tokens in their rows. entries: (n * H,) int64, where keys and values are
    written. found: of each run and layer, the attention (n_heads, n_tokens, n_frames) float32 of captured
    heads. reads_itself: the rows have no other token, and keep none.
    """

    memory: RowMemory
    runs: Sequence[Run]
    positions: Tensor
    entries: Tensor
    capture: AlignmentHeads = ()
    reads_itself: bool = False
    found: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def over_text(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        if self.reads_itself:
            only_value: Tensor = attention.out(attention.value(x))
            return only_value
        queries = attention.query(x)
        keys, values = self.memory.layers[layer]
        d_head = keys.shape[-1]
        keys.view(-1, d_head).index_copy_(0, self.entries, attention.key(x).view(-1, d_head))
        values.view(-1, d_head).index_copy_(0, self.entries, attention.value(x).view(-1, d_head))
        parts = []
        for run in self.runs:
            own = self._of_run(queries, run, attention.n_head)
            held_keys, held_values = (each[run.slots, :, run.cells] for each in (keys, values))
            attended = attend(own, held_keys, held_values, run.mask)
            parts.append(attended.transpose(1, 2).reshape(-1, x.shape[1]))
        merged: Tensor = attention.out(_joined(parts))
        return merged

    def over_audio(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        queries = attention.query(x)
        heads = [head for at, head in self.capture if at == layer]
        parts = []
        for place, run in enumerate(self.runs):
            own = self._of_run(queries, run, attention.n_head)
            keys, values = (each[run.windows, :, run.frames] for each in run.keys_values[layer])
            parts.append(attend(own, keys, values, run.audio_mask).transpose(1, 2).reshape(-1, x.shape[1]))
            if heads:
                self.found[place, layer] = head_weights(own, keys, heads, run.bias).flatten(1, 2)
        merged: Tensor = attention.out(_joined(parts))
        return merged

    def _of_run(self, queries: Tensor, run: Run, n_head: int) -> Tensor:
        own = queries if len(self.runs) == 1 else queries[run.tokens]
        return own.view(run.n_recordings, -1, n_head, own.shape[1] // n_head).transpose(1, 2)

    def captured(self, place: int) -> Tensor:
        """Return a run's attention (n_captured, n_tokens, n_frames) float32, in the order of `capture`."""
        layers = sorted({layer for layer, _ in self.capture})
        stacked = torch.cat([self.found[place, layer] for layer in layers])
        by_layer = sorted(range(len(self.capture)), key=lambda at: self.capture[at][0])
        if by_layer == list(range(len(self.capture))):
            return stacked
        order = sorted(range(len(by_layer)), key=lambda at: by_layer[at])
        return torch.stack([stacked[at] for at in order])


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class StaticMemory(RowMemory):
    """The memory of rows on an accelerator, with their audio; steps are computed in place.

    audio: (n_layers, 2, n_recordings, H, n_frames, d_head), of an aligned full window. frame_bias:
    (n_recordings, n_frames) float32, added to the attention logits, -inf beyond a window. most_rows: of a
    recording in any step so far, so that beams that end give no new shapes.
    """

    def __init__(self, dims: ModelDims, dtype: torch.dtype, device: torch.device, n_recordings: int) -> None:
        super().__init__(dims, dtype, device, n_recordings, aligned(1 + dims.n_text_ctx) - 1)
        *size, _, d_head = self.text.shape
        n_frames = aligned(dims.n_audio_ctx)
        with torch.inference_mode(False):
            self.audio = torch.zeros((*size, n_frames, d_head), dtype=dtype, device=device)
            self.frame_bias = torch.zeros(n_recordings, n_frames, device=device)
        self.windows = [(pair[0], pair[1]) for pair in self.audio]
        self.steps: dict[StepShape, StaticStep] = {}
        self.most_rows = 1
        self._states: dict[type[StepEnd], tuple[StepEnd, Sequence[Tensor]]] = {}
        self._forbidden_ids: Tensor | None = None

    def grow(self, n_recordings: int, n_cells: int) -> None:
        assert n_recordings <= self.n_recordings, "a larger memory is another one"
        before = self.n_cells
        super().grow(n_recordings, n_cells)
        if self.n_cells != before:
            self.steps.clear()

    def grow_rows(self, most_rows: int) -> None:
        """Make room for the states of so many rows of each recording."""
        if most_rows > self.most_rows:
            self.most_rows = most_rows
            before, self._states = self._states, {}
            self._copy_states(before)
            self.steps = {shape: step for shape, step in self.steps.items() if shape.end is None}

    def state(self, end: StepEnd) -> Sequence[Tensor]:
        """Return what the ends of this class keep from step to step, zeros at first."""
        kind = type(end)
        if kind not in self._states:
            n_rows = 1 + self.n_recordings * (1 + self.most_rows)  # old rows, and those that join in a step
            with torch.inference_mode(False):
                self._states[kind] = end, end.state(n_rows, self.audio.shape[4], self.text.device)
        return self._states[kind][1]

    def forbid(self, end: BestTokensEnd, ids: Tensor) -> None:
        """Set the forbidden tokens (n,) of the next choices; the same tensor as before changes nothing."""
        (forbidden,) = self.state(end)
        if ids is not self._forbidden_ids:
            self._forbidden_ids = ids
            forbidden.zero_().index_fill_(0, ids.to(forbidden.device, torch.int64), -torch.inf)

    def _copy_states(self, states: Mapping[type[StepEnd], tuple[StepEnd, Sequence[Tensor]]]) -> None:
        for end, tensors in states.values():
            for mine, theirs in zip(self.state(end), tensors, strict=True):
                mine[: len(theirs)] = theirs

    def take_over(self, other: StaticMemory) -> None:
        """Copy what a smaller memory holds."""
        n = other.n_recordings
        if n:
            self.grow(n, other.n_cells)
            self.grow_rows(other.most_rows)
            self._copy_states(other._states)
            if other._forbidden_ids is not None:
                self._forbidden_ids = other._forbidden_ids
            self.text[:, :, :n, :, : 1 + other.n_cells] = other.text
            self.audio[:, :, :n], self.frame_bias[:n] = other.audio, other.frame_bias

    def place(self, recordings: Sequence[tuple[RowAudio, Tensor | None]]) -> None:
        """Begin recordings, each with the keys and values of its window and of a prefix, or None."""
        slots = [one.slot for one, _ in recordings]
        # A masked key must be finite.
        torch._foreach_zero_([each[:, :, slot] for slot in slots for each in (self.text, self.audio)])
        bias = torch.full((len(recordings), self.frame_bias.shape[1]), -torch.inf)
        into: list[Tensor] = []
        given: list[Tensor] = []
        for row, (one, prefix) in zip(bias, recordings, strict=True):
            row[: one.n_frames] = 0.0 if one.log_weights is None else one.log_weights
            for own, pair in zip(self.windows, one.keys_values, strict=True):
                into += [each[one.slot, :, : one.n_frames] for each in own]
                given += [each[one.index] for each in pair]
            if prefix is not None:
                into.append(self.text[:, :, one.slot, :, 1 : 1 + prefix.shape[3]])
                given.append(prefix)
        torch._foreach_copy_(into, given)
        device = self.text.device
        self.frame_bias.index_copy_(0, torch.tensor(slots, device=device), bias.to(device))


STEP_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Recordings of a static step; more are multiples of the last."""
MEMORY_SIZES = (16, 64)
"""Recordings of a static memory; more are multiples of the last."""
FRAME_PARTS = 3
"""A static step attends to a third, two thirds or all frames of a full window."""
FEW_QUERIES = (1, 8, 16)
"""New tokens of a recording in a step that is recorded, if its rows read several."""
FEW_WANTED = (2, 6)
"""How many of them have logits, on average: of one beam and of five, and of <|startoftranscript|>."""


def step_sizes(n_recordings: int, sizes: Sequence[int] = STEP_SIZES) -> list[int]:
    """Return the sizes of static steps up to the smallest that has room for so many recordings."""
    largest = sizes[-1]
    all_sizes = [*sizes, *range(2 * largest, n_recordings + largest, largest)]
    return all_sizes[: 1 + next(place for place, size in enumerate(all_sizes) if size >= n_recordings)]


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the operators of a static step depend on.

    n_queries, n_wanted: new tokens of each recording, and those with logits. first: slot of the first
    recording. has_spans: each token attends to frames of its own. end: None: the step returns logits.
    """

    n_recordings: int
    n_queries: int
    n_wanted: int
    n_frames: int
    first: int = 0
    capture: AlignmentHeads = ()
    has_spans: bool = False
    end: StepEnd | None = None


class StaticStep:
    """A decoder step over static memory: one upload, one replay.

    Token `k` of the recording in slot `first + s` is at `s * n_queries + k`. Arrays of the host: tokens,
    positions: (n,) int64. entries: (n, H) int64. spans: (n, 2) int64, if any. wanted: (n_recordings *
    n_wanted,) int64, tokens with logits. columns: (n_rows, n_columns) int64, of an end. visible: (n, 1 +
    n_cells) bool.
    """

    def __init__(self, decoder: TextDecoder, memory: StaticMemory, shape: StepShape, record: Record) -> None:
        self._decoder, self._memory, self.shape = decoder, memory, shape
        n, n_head, n_total = shape.n_recordings * shape.n_queries, memory.dims.n_text_head, 1 + memory.n_cells
        end, n_columns = shape.end, 0
        if end is not None:
            n_columns = (shape.n_recordings if end.reads_prefixes else n) * end.n_columns
        n_wanted = shape.n_recordings * shape.n_wanted
        self._sizes = [n, n, n * n_head, 2 * n * shape.has_spans, n_wanted, n_columns]
        n_bytes = 8 * sum(self._sizes) + n * n_total
        device, is_pinned = memory.text.device, memory.text.is_cuda
        with torch.inference_mode(False):
            self._host = torch.zeros(n_bytes, dtype=torch.uint8, pin_memory=is_pinned)
            self._device = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
            self._frames = torch.arange(shape.n_frames, device=device)
            self._hidden = torch.tensor([-torch.inf, 0.0], dtype=memory.text.dtype, device=device).unbind()
        numbers, visible = self._parts(self._host)
        self.tokens, self.positions, entries, spans, self.wanted, columns = (one.numpy() for one in numbers)
        self.entries, self.spans, self.visible = (
            entries.reshape(n, n_head),
            spans.reshape(-1, 2),
            visible.numpy(),
        )
        self.columns = columns.reshape(-1, 1 if end is None else end.n_columns)
        slots = shape.first + np.arange(n)[:, None] // shape.n_queries
        self.entries[:] = (slots * n_head + np.arange(n_head)) * n_total
        self.spans[:, 1] = shape.n_frames
        self.visible[:, 0] = True
        self._idle = self._host.numpy().copy()
        self._uploaded = torch.cuda.Event() if is_pinned else None  # type: ignore[no-untyped-call]
        self._device.copy_(self._host)
        with torch.inference_mode(False), torch.no_grad():
            self._replay = record(self._compute)

    def _parts(self, packed: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        n_bytes = 8 * sum(self._sizes)
        numbers = torch.split(packed[:n_bytes].view(torch.int64), self._sizes)
        return numbers, packed[n_bytes:].view(torch.bool).view(self._sizes[0], -1)

    def clear(self) -> None:
        """Reset the host's arrays to those of tokens that compute nothing."""
        if self._uploaded is not None:
            self._uploaded.synchronize()
        np.copyto(self._host.numpy(), self._idle)

    def run(self) -> Outputs:
        """Compute the step: the outputs of its end, or logits and captured attention.

        Logits: (n_recordings * n_wanted, n_vocab) float32. Attention: (n_captured, n, n_frames) float32. They
        are valid until the next run.
        """
        self._device.copy_(self._host, non_blocking=True)
        if self._uploaded is not None:
            self._uploaded.record()
        with attention_plans(self._device.device, False):
            return self._replay()

    def _compute(self) -> Outputs:
        shape, memory = self.shape, self._memory
        (tokens, positions, entries, spans, wanted, columns), visible = self._parts(self._device)
        floor, zero = self._hidden
        slots, frames = slice(shape.first, shape.first + shape.n_recordings), slice(0, shape.n_frames)
        bias = memory.frame_bias[slots, None, None, frames]
        if shape.has_spans:
            begin, end_frame = torch.split(spans.view(shape.n_recordings, 1, shape.n_queries, 2), 1, dim=3)
            outside = (self._frames < begin) | (self._frames >= end_frame)
            bias = bias.masked_fill(outside, -torch.inf)
        run = Run(
            slots=slots,
            windows=slots,
            keys_values=memory.windows,
            tokens=slice(0, len(tokens)),
            cells=slice(0, 1 + memory.n_cells),
            frames=frames,
            mask=torch.where(visible, zero, floor).view(shape.n_recordings, 1, shape.n_queries, -1),
            bias=bias,
            audio_mask=bias.to(memory.text.dtype),
        )
        attention = RowsAttention(memory, [run], positions, entries, shape.capture)
        hidden = self._decoder(tokens, attention)
        if shape.n_wanted < shape.n_queries:
            hidden = hidden.index_select(0, wanted)
        outputs = [self._decoder.logits(hidden), *([attention.captured(0)] if shape.capture else [])]
        if shape.end is None:
            return tuple(outputs)
        return shape.end(outputs, columns.view(-1, shape.end.n_columns), memory.state(shape.end))


@dataclass(frozen=True, slots=True)
class BestTokensEnd:
    """Chooses tokens by a `TokenChoice`: (n, 2 * n_best) float32, log-probabilities and then tokens.

    columns: `AllowedTokens`. Its state (n_vocab,) float32 is -inf for tokens that may follow no row.
    """

    n_best: int
    time_begin: int
    n_vocab: int
    n_columns = 3
    reads_prefixes = False
    capture: AlignmentHeads = ()

    def state(self, n_rows: int, n_frames: int, device: torch.device) -> Sequence[Tensor]:
        return (torch.zeros(self.n_vocab, device=device),)

    def __call__(self, outputs: Sequence[Tensor], columns: Tensor, state: Sequence[Tensor]) -> Outputs:
        logits, ids = outputs[0] + state[0], torch.arange(self.n_vocab, device=columns.device)
        begin = self.time_begin
        first_text, first_time, end_time = torch.split(columns, 1, dim=1)
        text = logits[:, :begin].masked_fill(ids[:begin] < first_text, -torch.inf)
        if begin < self.n_vocab:
            beyond = (ids[begin:] < first_time) | (ids[begin:] >= end_time)
            times = logits[:, begin:].masked_fill(beyond, -torch.inf)
            forced = times.logsumexp(dim=1, keepdim=True) > text.amax(dim=1, keepdim=True)
            text = torch.cat((text.masked_fill(forced, -torch.inf), times), dim=1)
        best, tokens = text.log_softmax(dim=1).topk(self.n_best, dim=1)
        return (torch.cat((best, tokens.to(best.dtype)), dim=1),)


class RowPool:
    """The static memories of a model, which rows borrow. most_recordings: in all of them together."""

    def __init__(
        self,
        dims: ModelDims,
        dtype: torch.dtype,
        device: torch.device,
        record: Record,
        most_recordings: int = MOST_RECORDINGS,
    ) -> None:
        self._dims, self.dtype, self.device = dims, dtype, device
        self.record = record
        self._most = most_recordings
        self.nothing = StaticMemory(dims, dtype, device, 0)
        self.encoder: StaticEncoder | None = None
        """Made by the first call of the encoder."""
        self.free: list[StaticMemory] = []
        self._n_lent = 0
        self._lock = threading.Lock()

    @property
    def room(self) -> int:
        """Recordings that a memory may be borrowed for now."""
        return self._most - self._n_lent

    def borrow(self, n_recordings: int) -> StaticMemory:
        """Return a memory with room for so many recordings.

        Raises:
            OptionError: there is no room.
        """
        with self._lock:
            memory = min(
                (one for one in self.free if one.n_recordings >= n_recordings),
                key=lambda one: one.n_recordings,
                default=None,
            )
            if memory is not None:
                self.free.remove(memory)
            else:
                size = min(step_sizes(n_recordings, MEMORY_SIZES)[-1], self._most - self._n_lent)
                if size < n_recordings:
                    raise OptionError(
                        f"decoder rows: {n_recordings} recordings given, expected at most {size}, which the "
                        "memory of the device has room for"
                    )
                while (
                    self.free
                    and self._n_lent + sum(one.n_recordings for one in self.free) + size > self._most
                ):
                    self.free.pop(0)
                memory = StaticMemory(self._dims, self.dtype, self.device, size)
            self._n_lent += memory.n_recordings
        return memory

    def give_back(self, memory: StaticMemory) -> None:
        with self._lock:
            self._n_lent -= memory.n_recordings
            self.free.append(memory)
