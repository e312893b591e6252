"""Functions over static tensors, recorded as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from sottovoce.models.whisper import attention_plans

Outputs: TypeAlias = tuple[Tensor, ...]
Record = Callable[[Callable[[], Outputs]], Callable[[], Outputs]]
"""Records a function over static tensors; the result computes it again, into the same outputs."""


class CudaGraphs:
    """Records functions as CUDA graphs that share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._first: torch.cuda.CUDAGraph | None = None
        """Owns the pool."""

    def __call__(self, function: Callable[[], Outputs]) -> Callable[[], Outputs]:
        with torch.cuda.device(self._device), attention_plans(self._device, True):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            current = torch.cuda.current_stream()
            stream.wait_stream(current)
            graph = torch.cuda.CUDAGraph()
            pool = None if self._first is None else self._first.pool()
            with torch.cuda.stream(stream):
                function()  # libraries allocate at their first use, which cannot be recorded
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    outputs = function()
                finally:
                    graph.capture_end()
            current.wait_stream(stream)
            self._first = self._first or graph

        def replay() -> Outputs:
            graph.replay()
            return outputs

        return replay


def eagerly(function: Callable[[], Outputs]) -> Callable[[], Outputs]:
    return function


def recorder_of(device: torch.device) -> Record:
    return CudaGraphs(device) if device.type == "cuda" else eagerly
