"""The first decoder step of many stretches of one audio, from the general `step`: for any backend."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sottovoce.backends.base import Backend
from sottovoce.errors import OptionError
from sottovoce.types import EncoderOutput


class StepwiseFirstStep:
    """`FirstStep` by way of `Backend.step`, with a bias of -inf outside of each stretch."""

    def __init__(self, backend: Backend, token: int, vocabulary: Tensor) -> None:
        self._backend = backend
        self._token = token
        self._vocabulary = vocabulary

    def __call__(self, encoded: EncoderOutput, spans: Sequence[tuple[int, int]]) -> Tensor:
        """See `FirstStep`."""
        check_spans(encoded, spans)
        bias = torch.full((len(spans), encoded.n_frames), -torch.inf, device=self._backend.device)
        for row, (start, end) in enumerate(spans):
            bias[row, start:end] = 0.0
        tokens = torch.full((len(spans), 1), self._token, device=self._backend.device)
        state = self._backend.start(encoded, len(spans))
        return self._backend.step(tokens, state, vocabulary=self._vocabulary, bias=bias).logits[:, 0]


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
