"""Continuous batching in the kernels: rows with a common prefix share its KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sottovoce_kernels as kernels
import torch
from torch import Tensor

from sottovoce.backends.base import AlignmentHeads, RowPrefix, RowsOutput
from sottovoce.backends.by_step import check_admitted, check_selected, check_step
from sottovoce.backends.native_decoder import NativeDecoder, RowInput, WindowKv
from sottovoce.backends.torch_rows import check_heads
from sottovoce.errors import OptionError
from sottovoce.types import EncoderOutput


@dataclass(frozen=True, slots=True, eq=False)
class _NativeRow:
    row: kernels.Row
    window: WindowKv


class NativeRows:
    """`RunningRows` of one model."""

    def __init__(self, decoder: NativeDecoder, name: str) -> None:
        self._decoder = decoder
        self._name = name
        self._rows: list[_NativeRow] = []

    @property
    def n_rows(self) -> int:
        return len(self._rows)

    def admit(self, encoded: EncoderOutput, prefix: RowPrefix | None = None) -> None:
        """Append a row; see `RunningRows.admit`.

        Raises: OptionError for several windows, or a prefix of another backend.
        """
        check_admitted(encoded)
        if prefix is not None and not isinstance(prefix, kernels.Row):
            raise OptionError(
                f"rows: expected the state of a row of {self._name}, got {type(prefix).__name__}"
            )
        (window,) = self._decoder.windows(encoded)
        row = kernels.Row() if prefix is None else prefix.first(prefix.n_tokens)
        self._rows.append(_NativeRow(row, window))

    def select(self, rows: Sequence[int]) -> None:
        """Replace the rows; see `RunningRows.select`."""
        check_selected(rows, self.n_rows)
        branches = branched([one.row for one in self._rows], rows)
        self._rows = [
            _NativeRow(row, self._rows[index].window) for row, index in zip(branches, rows, strict=True)
        ]

    def cut(self, row: int, n_tokens: int) -> None:
        """Drop the newest tokens of a row."""
        state = self._rows[row].row
        state.truncate(state.n_tokens - n_tokens)

    def prefix_of(self, row: int, n_tokens: int) -> RowPrefix:
        """Return the cache of a row's first tokens; see `RunningRows.prefix_of`."""
        prefix: RowPrefix = self._rows[row].row.first(n_tokens)
        return prefix

    def step(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        *,
        vocabulary: Tensor | None = None,
        capture: AlignmentHeads = (),
    ) -> RowsOutput:
        """Append tokens to every row; see `RunningRows.step`."""
        check_step(tokens, wanted, self.n_rows)
        check_heads(capture, self._decoder.dims)
        self._check_room(tokens)
        batch = [
            RowInput(one.row, one.window, new, positions)
            for one, new, positions in zip(self._rows, tokens, wanted, strict=True)
        ]
        logits, attention = self._decoder.step(batch, vocabulary=vocabulary, capture=capture)
        parts = torch.split(attention, [len(new) for new in tokens], dim=1)
        return RowsOutput(
            logits, [part[..., : one.window.n_frames] for part, one in zip(parts, self._rows, strict=True)]
        )

    def _check_room(self, tokens: Sequence[Sequence[int]]) -> None:
        longest = self._decoder.dims.n_text_ctx
        for one, new in zip(self._rows, tokens, strict=True):
            n_total = one.row.n_tokens + len(new)
            if n_total > longest:
                raise OptionError(f"rows: {n_total} tokens in a row, {self._name} reads {longest}")


def branched(rows: Sequence[kernels.Row], chosen: Sequence[int]) -> list[kernels.Row]:
    """Choose rows; one that is chosen again is forked, sharing its cache."""
    taken: set[int] = set()
    branches = []
    for index in chosen:
        row = rows[index]
        branches.append(row.first(row.n_tokens) if index in taken else row)
        taken.add(index)
    return branches


def total_bias(bias: Tensor | None, window: WindowKv) -> Tensor | None:
    """Sum of the given bias and the frames' log weights: (n_frames,) float32; None: neither."""
    if bias is None:
        return window.log_weights
    given = bias.to("cpu", torch.float32)
    return (given if window.log_weights is None else given + window.log_weights).contiguous()
