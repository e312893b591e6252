"""Batches of calls that are done a step at a time: between two passes of the decoder, others may go first."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.backends.base import Backend
from sottovoce.decoding.decode import Stepwise
from sottovoce.engine.batches import run_batch
from sottovoce.engine.tasks import Task

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Batch:
    """Tasks whose calls make one batch; steps: once it was begun."""

    tasks: Sequence[Task[Any]]
    steps: Stepwise[Sequence[Any]] | None = None


class SteppedBatches:
    """Batches in the order in which they were added, each done to its end before the next.

    A batch that fails is done again call by call; only what fails by itself has failed.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._batches: deque[_Batch] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether all batches are done."""
        return not self._batches

    def add(self, tasks: Sequence[Task[Any]]) -> None:
        """Add a batch of calls of one kind, those that the tasks wait for."""
        self._batches.append(_Batch(tasks))

    def step(self) -> None:
        """Go on with the first batch up to its next pass of the decoder, or to its end."""
        batch = self._batches[0]
        if batch.steps is None:
            batch.steps = run_batch(self._backend, [one.call for one in batch.tasks if one.call is not None])
        try:
            next(batch.steps)
        except StopIteration as end:
            self._batches.popleft()
            for task, result in zip(batch.tasks, end.value, strict=True):
                task.answer(result)
        except Exception as error:
            self._batches.popleft()
            self._retry_alone(batch, error)

    def finish(self) -> None:
        """Do all batches to their end."""
        while self._batches:
            self.step()

    def forget(self) -> None:
        """Let go of all batches, and answer nobody."""
        self._batches.clear()

    def _retry_alone(self, batch: _Batch, error: Exception) -> None:
        if len(batch.tasks) == 1:
            batch.tasks[0].fail(error)
            return
        log.warning("a batch of %d failed: %s", len(batch.tasks), type(error).__name__)
        self._batches.extendleft(_Batch([task]) for task in reversed(batch.tasks))
