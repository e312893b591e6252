"""What a live run would cost with a larger model: its calls, done beside by one with random weights.

A random model says nothing that can be streamed, so the schedule and the words stay those of the model at
hand. Every call of its backend is repeated, with the same shapes and the whole vocabulary, on the random one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from probe import random_backend
from torch import Tensor

from sottovoce.backends.base import AlignmentHeads, Backend, DecoderState
from sottovoce.types import EncoderOutput, Features, StepOutput

T = TypeVar("T")
N_KEPT = 4
"""Windows whose states are kept; a session holds one or two."""


@dataclass(slots=True)
class TwinState:
    """The states of both models; see `DecoderState`."""

    own: DecoderState
    other: DecoderState

    @property
    def n_rows(self) -> int:
        return self.own.n_rows

    @property
    def n_tokens(self) -> int:
        return self.own.n_tokens

    def reorder(self, rows: Tensor) -> None:
        self.own.reorder(rows)
        self.other.reorder(rows)

    def truncate(self, n_tokens: int) -> None:
        self.own.truncate(n_tokens)
        self.other.truncate(n_tokens)

    def fork(self) -> TwinState:
        return TwinState(self.own.fork(), self.other.fork())


class ShadowedBackend:
    """A backend whose calls are repeated on a random model; `own_s` is the processor time of its own calls,
    to be taken off the whole. The rest is seen through it."""

    def __init__(self, own: Backend, size: str) -> None:
        self._own = own
        self._other: Backend = random_backend(size, torch.float32)
        self._encoded: dict[int, EncoderOutput] = {}
        self.own_s = 0.0
        self.name, self.dims, self.capabilities = own.name, own.dims, own.capabilities
        self.device, self.alignment_heads = own.device, own.alignment_heads

    def encode(self, features: Features) -> EncoderOutput:
        encoded = self._timed(lambda: self._own.encode(features))
        self._encoded.pop(id(encoded.states), None)
        self._encoded[id(encoded.states)] = self._other.encode(features)
        if len(self._encoded) > N_KEPT:
            del self._encoded[next(iter(self._encoded))]
        return encoded

    def start(
        self, encoded: EncoderOutput, n_hypotheses: int = 1, *, left_padding: Tensor | None = None
    ) -> TwinState:
        own = self._timed(lambda: self._own.start(encoded, n_hypotheses, left_padding=left_padding))
        other = self._encoded[id(encoded.states)]
        return TwinState(own, self._other.start(other, n_hypotheses, left_padding=left_padding))

    def step(
        self,
        tokens: Tensor,
        state: DecoderState,
        *,
        positions: Sequence[int] | None = (-1,),
        vocabulary: Tensor | None = None,
        capture: AlignmentHeads = (),
        bias: Tensor | None = None,
    ) -> StepOutput:
        assert isinstance(state, TwinState)
        heads = self._other.alignment_heads
        self._other.step(tokens, state.other, positions=positions, capture=heads, bias=bias)
        return self._timed(
            lambda: self._own.step(
                tokens, state.own, positions=positions, vocabulary=vocabulary, capture=capture, bias=bias
            )
        )

    def first_step(
        self, encoded: EncoderOutput, spans: Sequence[tuple[int, int]], *, token: int, vocabulary: Tensor
    ) -> Tensor:
        other = self._encoded[id(encoded.states)]
        self._other.first_step(other, spans, token=token, vocabulary=vocabulary)
        return self._timed(lambda: self._own.first_step(encoded, spans, token=token, vocabulary=vocabulary))

    def _timed(self, call: Callable[[], T]) -> T:
        began = time.process_time()
        result = call()
        self.own_s += time.process_time() - began
        return result
