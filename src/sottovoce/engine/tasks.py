"""One call of a session under way: a generator of work, and what became of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Generic, TypeVar

from sottovoce.streaming.work import Steps, Work

Result = TypeVar("Result")
_numbers = itertools.count()


class Task(Generic[Result]):
    """Drives one generator.

    deadline_s: on any clock; what is due first goes first. began_s: on the engine's clock, when its first
    work was begun; nan before.
    """

    def __init__(
        self,
        steps: Steps[Result],
        deadline_s: float,
        on_end: Callable[[Task[Result]], None] | None,
    ) -> None:
        self.deadline_s = deadline_s
        self.number = next(_numbers)
        self.began_s = math.nan
        self.work: Work | None = None
        """To be done before it goes on."""
        self.is_done = False
        self.error: Exception | None = None
        self._steps = steps
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

    def advance(self, error: Exception | None = None) -> None:
        """Go on to the next work, or to the end; error: what the last one failed with."""
        self.work = None
        try:
            self.work = next(self._steps) if error is None else self._steps.throw(error)
        except StopIteration as end:
            self._result = end.value
            self._end()
        except Exception as failure:  # whatever it is, it belongs to this session alone
            self.error = failure
            self._end()

    def _end(self) -> None:
        self.is_done = True
        if self._on_end is not None:
            self._on_end(self)
