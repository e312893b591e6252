"""A runtime that notes its calls."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from sottovoce.backends.base import Backend
from sottovoce.engine.runtime import Call, DirectRuntime, Result, Runtime


class ExhaustedError(RuntimeError):
    """As when memory runs out."""


class Noting(Runtime):
    """Keeps the calls that it runs, and fails at chosen ones, counted from 0."""

    def __init__(self, backend: Backend, failing: Sequence[int] = ()) -> None:
        self.backend = backend
        self.done: list[Call[object]] = []
        self.failing = failing
        self._direct = DirectRuntime(backend)

    def execute(self, call: Call[Result]) -> Result:
        self.done.append(call)
        if len(self.done) - 1 in self.failing:
            raise ExhaustedError("no memory is left")
        return self._direct.execute(call)

    def torch_threads(self) -> AbstractContextManager[None]:
        return self._direct.torch_threads()
