"""Checks of arguments that all backends share, and `Backend.first_step` made of `start` and `step`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sottovoce.backends.base import Backend, DecoderState
from sottovoce.errors import OptionError
from sottovoce.types import EncoderOutput


def check_start(encoded: EncoderOutput, n_hypotheses: int, left_padding: Tensor | None) -> int:
    """Check the arguments of `Backend.start`; return the number of rows, B * n_hypotheses.

    Raises: OptionError for no hypothesis, or a left_padding of another shape than (B * n_hypotheses,).
    """
    if n_hypotheses < 1:
        raise OptionError(f"start: {n_hypotheses} hypotheses given, expected at least 1")
    n_rows = encoded.batch_size * n_hypotheses
    if left_padding is not None and tuple(left_padding.shape) != (n_rows,):
        raise OptionError(f"start: left_padding {tuple(left_padding.shape)} given, expected ({n_rows},)")
    return n_rows


def check_tokens(tokens: Tensor, state: DecoderState, n_least_padding: int, backend: Backend) -> None:
    """Check the tokens of `Backend.step`. n_least_padding: of the row of the state that has least.

    Raises: OptionError unless they are (R, n_new) and the text context holds them.
    """
    if tokens.ndim != 2 or tokens.shape[0] != state.n_rows or tokens.shape[1] < 1:
        raise OptionError(f"step: tokens {tuple(tokens.shape)} given, expected ({state.n_rows}, n_new)")
    n_read = state.n_tokens + tokens.shape[1] - n_least_padding
    if n_read > backend.dims.n_text_ctx:
        raise OptionError(f"step: {n_read} tokens in all, {backend.name} reads {backend.dims.n_text_ctx}")


def check_admitted(encoded: EncoderOutput) -> None:
    """Check a row's window.

    Raises: OptionError for several windows.
    """
    if encoded.batch_size != 1:
        raise OptionError(f"rows: expected a window of one row, got {encoded.batch_size}")


def check_selected(rows: Sequence[int], n_rows: int) -> None:
    """Check indices of rows.

    Raises: OptionError for a row that does not exist.
    """
    if any(not 0 <= row < n_rows for row in rows):
        raise OptionError(f"rows: {list(rows)} given, expected indices below {n_rows}")


def check_step(tokens: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]], n_rows: int) -> None:
    """Check the tokens and wanted positions of a step.

    Raises: OptionError unless both have an entry for each row, and some row has tokens.
    """
    if len(tokens) != n_rows or len(wanted) != n_rows:
        raise OptionError(f"rows: tokens for {len(tokens)} and positions for {len(wanted)} of {n_rows} rows")
    if not any(tokens):
        raise OptionError("rows: expected tokens for at least one row, got none")


def first_step_by_bias(
    backend: Backend,
    encoded: EncoderOutput,
    spans: Sequence[tuple[int, int]],
    *,
    token: int,
    vocabulary: Tensor,
) -> Tensor:
    """Step one token a row, with a bias of -inf outside each span; see `Backend.first_step`.

    Returns logits (n_spans, n_rows) float32. vocabulary: (n_rows,) int64.
    Raises: OptionError as `check_spans`.
    """
    check_spans(encoded, spans)
    bias = torch.full((len(spans), encoded.n_frames), -torch.inf, device=backend.device)
    for row, (start, end) in enumerate(spans):
        bias[row, start:end] = 0.0
    tokens = torch.full((len(spans), 1), token, device=backend.device)
    state = backend.start(encoded, len(spans))
    return backend.step(tokens, state, vocabulary=vocabulary, bias=bias).logits[:, 0]


def check_spans(encoded: EncoderOutput, spans: Sequence[tuple[int, int]]) -> None:
    """Check spans [start, end) of encoder frames of one window.

    Raises: OptionError for no span, one that is empty or outside the window, or several windows.
    """
    if encoded.batch_size != 1:
        raise OptionError(f"first step: expected one window, got {encoded.batch_size}")
    if not spans:
        raise OptionError("first step: expected at least one span of frames, got none")
    for start, end in spans:
        if not 0 <= start < end <= encoded.n_frames:
            raise OptionError(
                f"first step: expected frames within [0, {encoded.n_frames}), got [{start}, {end})"
            )
