"""`Backend.first_step` by way of the general `step`: for any backend that knows no shorter way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sottovoce.backends.base import Backend
from sottovoce.errors import OptionError
from sottovoce.types import EncoderOutput


def first_step_by_bias(
    backend: Backend,
    encoded: EncoderOutput,
    spans: Sequence[tuple[int, int]],
    *,
    token: int,
    vocabulary: Tensor,
) -> Tensor:
    """One token a row, with a bias of -inf outside of each span; see `Backend.first_step`."""
    check_spans(encoded, spans)
    bias = torch.full((len(spans), encoded.n_frames), -torch.inf, device=backend.device)
    for row, (start, end) in enumerate(spans):
        bias[row, start:end] = 0.0
    tokens = torch.full((len(spans), 1), token, device=backend.device)
    state = backend.start(encoded, len(spans))
    return backend.step(tokens, state, vocabulary=vocabulary, bias=bias).logits[:, 0]


def check_spans(encoded: EncoderOutput, spans: Sequence[tuple[int, int]]) -> None:
    """Raises: OptionError for no span, one that is empty or outside of the window, or several windows."""
    if encoded.batch_size != 1:
        raise OptionError(f"first step: expected one window, got {encoded.batch_size}")
    if not spans:
        raise OptionError("first step: expected at least one span of frames, got none")
    for start, end in spans:
        if not 0 <= start < end <= encoded.n_frames:
            raise OptionError(
                f"first step: expected frames within [0, {encoded.n_frames}), got [{start}, {end})"
            )
