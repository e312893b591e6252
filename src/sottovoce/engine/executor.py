"""Who does the calls of a generator: here one after the other; in `batching`, together with others."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from sottovoce.backends.base import Backend
from sottovoce.decoding.decode import finish
from sottovoce.engine.batches import run_batch
from sottovoce.engine.calls import CallGenerator, ModelCall, Result
from sottovoce.threads import all_torch_threads, one_torch_thread


class CallExecutor(Protocol):
    """Does the calls of generators."""

    def run(self, calls: CallGenerator[Result]) -> Result:
        """Do the calls of a generator until its end; return what it returns.

        Raises: what the generator ends with. A call that fails is thrown into it, where it may be caught.
        """
        ...


def threads_of(backend: Backend) -> AbstractContextManager[None]:
    """Return the context for work with a backend: how many threads PyTorch's operators have."""
    return one_torch_thread() if backend.capabilities.own_threads else all_torch_threads()


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Does each call by itself, on one backend."""

    backend: Backend

    def run(self, calls: CallGenerator[Result]) -> Result:
        """Do the calls of a generator, see `CallExecutor`."""
        with threads_of(self.backend):
            return self._run(calls)

    def _run(self, calls: CallGenerator[Result]) -> Result:
        try:
            call = next(calls)
            while True:
                try:
                    result = self.execute(call)
                except Exception as error:
                    call = calls.throw(error)
                else:
                    call = calls.send(result)
                    del result
        except StopIteration as end:
            returned: Result = end.value
            return returned
        finally:
            calls.close()

    def execute(self, call: ModelCall) -> Any:
        """Do one call; return its result.

        Raises: what the model raises.
        """
        (result,) = finish(run_batch(self.backend, [call]))
        return result
