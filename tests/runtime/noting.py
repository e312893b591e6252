"""A runtime that notes the calls of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from sottovoce.language.probe import ProbedLanguage
from sottovoce.models.backend import Backend
from sottovoce.runtime.calls import (
    DirectRuntime,
    LanguageProbeCall,
    ModelCall,
    Request,
    Result,
    RunningRequest,
    Runtime,
    Steps,
)


class ExhaustedError(RuntimeError):
    """As when memory runs out."""


class Noting(Runtime):
    """Keeps the calls that it runs, and fails at chosen ones, counted from 0.

    probed: of every stretch; None: detected.
    """

    def __init__(
        self, backend: Backend, failing: Sequence[int] = (), *, probed: ProbedLanguage | None = None
    ) -> None:
        self.backend = backend
        self.done: list[ModelCall[object]] = []
        self.failing, self.probed = failing, probed
        self.n_requests = 0
        self._direct = DirectRuntime(backend)

    def run(self, request: Request[Result]) -> Result:
        self.n_requests += 1
        return self._direct.run(self._noted(request))

    def _noted(self, request: Request[Result]) -> Steps[Result]:
        running = RunningRequest(request).begin()
        while running.call is not None:
            self.done.append(running.call)
            if len(self.done) - 1 in self.failing:
                running.fail(ExhaustedError("no memory is left"))
                continue
            if self.probed is not None and isinstance(running.call, LanguageProbeCall):
                running.answer([self.probed] * len(running.call.log_mels))
                continue
            try:
                result = yield running.call
            except Exception as error:
                running.fail(error)
            else:
                running.answer(result)
        return running.result()

    def torch_threads(self) -> AbstractContextManager[None]:
        return self._direct.torch_threads()
