"""Memory of decoder rows, and the decoder's attention to it.

The text of all rows of one recording shares an arena of cells: a token's keys and values are written once,
to a free cell, and stay there. A table on the host says which cells a row holds, so that branching,
reordering and dropping beams changes the table and copies no cache. All new tokens of the rows of a recording
are queries of one attention over its arena, with a mask made from the table, and of one over its audio, whose
keys and values are thus read once however many beams there are.

On an accelerator the memory is static and every step of single tokens has one of few shapes (`StepShape`):
no shape depends on the text, so the operators of a step can be recorded as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.models.dims import AlignmentHeads, ModelDims
from sottovoce.models.layers import KeysValues, MultiHeadAttention, attend, head_weights

FIRST_CELLS = 64
"""Cells of an arena at first; a full one doubles."""
ALIGNED = 16
"""Rows of masks begin at multiples of so many numbers, as fused kernels require."""


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
        more_cells = _doubled(self.n_cells, n_cells) - self.n_cells
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
class Recording:
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
    """Attention of the new tokens of some rows, as one call a layer.

    The rows are those of neighbouring recordings (slots and windows), with n_queries new tokens for each
    recording, at `tokens` of the batch. cells, frames: those attended to. mask: (n_recordings, 1, n_queries,
    n_cells), added to the attention logits, or None. bias: (n_recordings, 1, 1 or n_queries, n_frames), the
    same for the audio, or None.
    """

    slots: slice
    windows: slice
    keys_values: Sequence[KeysValues]
    tokens: slice
    cells: slice
    frames: slice
    mask: Tensor | None
    bias: Tensor | None

    @property
    def n_recordings(self) -> int:
        return self.slots.stop - self.slots.start


@dataclass(frozen=True, slots=True, eq=False)
class RowsAttention:
    """`DecoderAttention` of the new tokens (n, d) of rows, run by run.

    positions: (n,) int64 of the tokens in their rows. entries: (n * H,) int64, where the keys and values of
    each token and head are written in a layer's memory. capture: (layer, head) pairs; found: of each run,
    their attention by layer, (n_heads, n_tokens, n_frames) float32. reads_itself: the rows have no other
    token, and keep none.
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
            held = (each[run.slots, :, run.cells] for each in (keys, values))
            parts.append(attend(own, *held, run.mask).transpose(1, 2).reshape(-1, x.shape[1]))
        merged: Tensor = attention.out(_joined(parts))
        return merged

    def over_audio(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        queries = attention.query(x)
        heads = [head for at, head in self.capture if at == layer]
        parts = []
        for place, run in enumerate(self.runs):
            own = self._of_run(queries, run, attention.n_head)
            keys, values = (each[run.windows, :, run.frames] for each in run.keys_values[layer])
            mask = None if run.bias is None else run.bias.to(own.dtype)
            parts.append(attend(own, keys, values, mask).transpose(1, 2).reshape(-1, x.shape[1]))
            if heads:
                self.found[place, layer] = head_weights(own, keys, heads, run.bias).flatten(1, 2)
        merged: Tensor = attention.out(_joined(parts))
        return merged

    def _of_run(self, queries: Tensor, run: Run, n_head: int) -> Tensor:
        own = queries if len(self.runs) == 1 else queries[run.tokens]
        return own.view(run.n_recordings, -1, n_head, own.shape[1] // n_head).transpose(1, 2)

    def captured(self, place: int) -> Tensor:
        """Return the attention (n_captured, n_tokens, n_frames) float32 of a run, in the order of `capture`."""
        layers = sorted({layer for layer, _ in self.capture})
        stacked = torch.cat([self.found[place, layer] for layer in layers])
        by_layer = sorted(range(len(self.capture)), key=lambda at: self.capture[at][0])
        if by_layer == list(range(len(self.capture))):
            return stacked
        order = sorted(range(len(by_layer)), key=lambda at: by_layer[at])
        return torch.stack([stacked[at] for at in order])


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
