"""A generator of calls under way, and what became of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Generic, TypeVar

from sottovoce.engine.calls import CallGenerator, ModelCall

Result = TypeVar("Result")
_numbers = itertools.count()


class Priority(IntEnum):
    """Whose calls go first: those of live sessions before those of recordings."""

    LIVE = 0
    FILE = 1


class Task(Generic[Result]):
    """Drives one generator.

    deadline_s: on any clock; what is due first goes first. began_s: on the executor's clock, when its first
    call was begun; nan before.
    """

    def __init__(
        self,
        calls: CallGenerator[Result],
        deadline_s: float,
        on_end: Callable[[Task[Result]], None] | None,
        priority: Priority = Priority.LIVE,
    ) -> None:
        self.priority = priority
        self.deadline_s = deadline_s
        self.number = next(_numbers)
        self.began_s = math.nan
        self.call: ModelCall | None = None
        """To be done before it goes on; None before the first and after the last."""
        self.n_passed = 0
        """Batches of others that were done since it has waited for this call."""
        self.is_done = False
        self.error: Exception | None = None
        self._calls = calls
        self._on_end = on_end
        self._result: Result | None = None

    @property
    def result(self) -> Result:
        """What the generator returned.

        Raises: what it ended with.
        """
        assert self.is_done
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]

    @property
    def order(self) -> tuple[float, int]:
        """What is due first goes first; of equals, what came first."""
        return self.deadline_s, self.number

    def begin(self) -> None:
        """Go on to the first call, or to the end."""
        self.answer(None)

    def answer(self, result: Any) -> None:
        """Send the result of the call, and go on to the next one or to the end."""
        self._go_on(lambda: self._calls.send(result))

    def fail(self, error: Exception) -> None:
        """Throw what the call failed with, and go on to the next one or to the end."""
        self._go_on(lambda: self._calls.throw(error))

    def close(self) -> None:
        """Let go of the generator, which gets no further."""
        self._calls.close()

    def _go_on(self, resume: Callable[[], ModelCall]) -> None:
        self.call = None
        try:
            self.call = resume()
        except StopIteration as end:
            self._result = end.value
            self._end()
        except Exception as failure:  # whatever it is, it belongs to this task alone
            self.error = failure
            self._end()

    def _end(self) -> None:
        self.is_done = True
        if self._on_end is not None:
            self._on_end(self)
