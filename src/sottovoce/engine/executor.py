"""Who does the calls of a generator: here one after the other; in `batching`, together with others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from sottovoce.backends.base import Backend
from sottovoce.decoding.stepwise import finish
from sottovoce.engine.batches import run_batch
from sottovoce.engine.calls import CallGenerator, ModelCall, Result


class CallExecutor(Protocol):
    """Does the calls of generators."""

    def run(self, calls: CallGenerator[Result]) -> Result:
        """Do the calls of a generator until its end; return what it returns.

        Raises: what the generator ends with. A call that fails is thrown into it, where it may be caught.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Does each call by itself, on one backend."""

    backend: Backend

    def run(self, calls: CallGenerator[Result]) -> Result:
        """Do the calls of a generator, see `CallExecutor`."""
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
