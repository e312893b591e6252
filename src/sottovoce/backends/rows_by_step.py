"""`Backend.rows` by way of `start` and `step`, row by row: for any backend that knows no better way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sottovoce.backends.base import AlignmentHeads, Backend, DecoderState, RowsOutput, RowState
from sottovoce.errors import OptionError
from sottovoce.types import EncoderOutput


class RowsByStep:
    """Rows that come and go, each a state of its own."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._rows: list[tuple[DecoderState, int, Tensor | None]] = []  # state, frames, bias (1, n_frames)

    @property
    def n_rows(self) -> int:
        return len(self._rows)

    def admit(
        self, encoded: EncoderOutput, bias: Tensor | None = None, known: RowState | None = None
    ) -> None:
        """One more row; see `RunningRows.admit`."""
        assert known is None, "a state belongs to its audio: nothing is kept here"
        check_admitted(encoded, bias)
        added = None if bias is None else bias[None]
        self._rows.append((self._backend.start(encoded), encoded.n_frames, added))

    def select(self, rows: Sequence[int]) -> None:
        """Replace the rows; see `RunningRows.select`."""
        check_selected(rows, self.n_rows)
        taken: set[int] = set()
        chosen = []
        for row in rows:
            state, n_frames, bias = self._rows[row]
            chosen.append((state.fork() if row in taken else state, n_frames, bias))
            taken.add(row)
        self._rows = chosen

    def cut(self, row: int, n_tokens: int) -> None:
        """Let a row forget its newest tokens."""
        state = self._rows[row][0]
        state.truncate(state.n_tokens - n_tokens)

    def keep(self, row: int, n_tokens: int) -> None:
        """Nothing; see `RunningRows.keep`."""

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
        device = self._backend.device
        logits, attention = [], []
        for (state, n_frames, bias), new, positions in zip(self._rows, tokens, wanted, strict=True):
            if not new:
                attention.append(torch.zeros(len(capture), 0, n_frames, device=device))
                continue
            output = self._backend.step(
                torch.tensor([list(new)], device=device),
                state,
                positions=list(positions),
                vocabulary=vocabulary,
                capture=capture,
                bias=bias,
            )
            logits.append(output.logits[0])
            attention.append(torch.zeros(0) if output.attention is None else output.attention[0])
        return RowsOutput(torch.cat(logits), attention)


def check_admitted(encoded: EncoderOutput, bias: Tensor | None) -> None:
    """Raises: OptionError for several windows, or a bias for other frames."""
    if encoded.batch_size != 1:
        raise OptionError(f"rows: expected a window of one row, got {encoded.batch_size}")
    if bias is not None and tuple(bias.shape) != (encoded.n_frames,):
        raise OptionError(f"rows: bias of shape {tuple(bias.shape)} given, expected ({encoded.n_frames},)")


def check_selected(rows: Sequence[int], n_rows: int) -> None:
    """Raises: OptionError for a row that is not there."""
    if any(not 0 <= row < n_rows for row in rows):
        raise OptionError(f"rows: {list(rows)} given, expected indices below {n_rows}")


def check_step(tokens: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]], n_rows: int) -> None:
    """Raises: OptionError where there are not tokens and positions for each row, or none for any."""
    if len(tokens) != n_rows or len(wanted) != n_rows:
        raise OptionError(f"rows: tokens for {len(tokens)} and positions for {len(wanted)} of {n_rows} rows")
    if not any(tokens):
        raise OptionError("rows: expected tokens for at least one row, got none")
