"""Continuous batching: requests join a running decode before any step, and leave it once they are done.

Source of the idea: Yu et al., Orca (OSDI 2022), iteration-level scheduling.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from sottovoce.engine.calls import AlignAttCall, ContinuousBatch
from sottovoce.engine.tasks import Task

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _PendingCall:
    """A call whose requests are being decoded; results: those so far, by the place of their requests."""

    task: Task[Any]
    call: AlignAttCall
    results: dict[int, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether the call has failed or was answered."""
        return self.task.call is not self.call


@dataclass(slots=True, eq=False)
class _Running:
    """A running batch. owners: by ticket, the call of a request and the request's place in it."""

    batch: ContinuousBatch
    owners: dict[int, tuple[_PendingCall, int]] = field(default_factory=dict)


class ContinuousDecoding:
    """The running batches, one for each `batch_key`, and whose requests are in them."""

    def __init__(self) -> None:
        self._running: dict[Hashable, _Running] = {}
        self._under_way: set[int] = set()  # numbers of tasks

    @property
    def n_requests(self) -> int:
        """Requests that are not done."""
        return sum(one.batch.n_requests for one in self._running.values())

    def has(self, task: Task[Any]) -> bool:
        """Return whether the call of a task is being decoded."""
        return task.number in self._under_way

    def admit(self, task: Task[Any], call: AlignAttCall) -> None:
        """Let the requests of a task's call join."""
        running = self._running.get(call.decoder.batch_key)
        if running is None:
            running = self._running[call.decoder.batch_key] = _Running(call.decoder.new_batch())
        decoding = _PendingCall(task, call)
        self._under_way.add(task.number)
        for place, (encoded, request) in enumerate(zip(call.encoded, call.requests, strict=True)):
            try:
                ticket = running.batch.admit(call.decoder, encoded, request)
            except Exception as error:
                self._leave(decoding)
                task.fail(error)
                return
            running.owners[ticket] = (decoding, place)

    def step(self) -> None:
        """Decode on by a step, and answer the calls that are done with it.

        What can no longer go on together is decoded again from its beginning, call by call.
        """
        for key, running in list(self._running.items()):
            try:
                finished = running.batch.step()
            except Exception as error:
                del self._running[key]
                self._decode_alone(running, error)
                continue
            for ticket, result in finished:
                self._note(*running.owners.pop(ticket), result)
            if not running.batch.n_requests:
                del self._running[key]

    def forget(self) -> None:
        """Let go of everything, and answer nobody."""
        self._running, self._under_way = {}, set()

    def _note(self, decoding: _PendingCall, place: int, result: Any) -> None:
        decoding.results[place] = result
        if len(decoding.results) == len(decoding.call.requests) and not decoding.is_over:
            self._leave(decoding)
            decoding.task.answer([decoding.results[i] for i in range(len(decoding.results))])

    def _leave(self, decoding: _PendingCall) -> None:
        self._under_way.discard(decoding.task.number)

    def _decode_alone(self, running: _Running, error: Exception) -> None:
        log.warning("decoding %d requests together failed: %s", len(running.owners), type(error).__name__)
        for decoding in dict.fromkeys(owner for owner, _ in running.owners.values()):
            if decoding.is_over:
                continue
            call = decoding.call
            self._leave(decoding)
            try:
                results = call.decoder.decode(call.encoded, call.requests)
            except Exception as failure:
                decoding.task.fail(failure)
            else:
                decoding.task.answer(results)
