"""Calls of one model with some of another between them, which are done where that model is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from sottovoce.engine.calls import CallGenerator, OtherModelCall, Result


class CallRelay(Generic[Result]):
    """Drives a generator up to each call of another model, in whichever executor is at it.

    is_over: asked before every call; once nobody waits for the result, the rest is not done.
    """

    def __init__(self, calls: CallGenerator[Result], is_over: Callable[[], bool]) -> None:
        self._calls = calls
        self._is_over = is_over
        self._result: Any = None
        self._failure: Exception | None = None

    def until_other(self) -> CallGenerator[Result | OtherModelCall | None]:
        """Yield the calls up to one of another model, and return that; at the end, what the calls return.

        None: it is over. Raises: what the calls end with.
        """
        while not self._is_over():
            try:
                call = self._go_on()
            except StopIteration as end:
                result: Result = end.value
                return result
            if isinstance(call, OtherModelCall):
                return call
            try:
                self._result = yield call
            except Exception as error:
                self._failure = error
        self._calls.close()
        return None

    def answer(self, result: object) -> None:
        """Take the result of the other model's call."""
        self._result = result

    def fail(self, error: Exception) -> None:
        """Take what the other model's call failed with."""
        self._failure = error

    def _go_on(self) -> Any:
        result, failure = self._result, self._failure
        self._result = self._failure = None
        return self._calls.send(result) if failure is None else self._calls.throw(failure)
