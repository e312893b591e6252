"""One thread that does the work of one model, the most urgent first; nobody else touches the model.

Knows neither sessions nor recordings: work is a function without arguments.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sottovoce.serving.faults import leaving

T = TypeVar("T")

LIVE, FILE = 0, 1
"""Urgency: work of a live session goes before that of recordings, which take turns."""
_FORGET = 0.9
"""Of the mean waiting time, at each new one."""
_HALF_LIFE_S = 5.0
"""Of a waiting time after which nothing came: an idle model is not busy."""


@dataclass(order=True, slots=True)
class _Work:
    urgency: int
    number: int
    since: float = field(compare=False)
    do: Callable[[], Any] = field(compare=False)
    done: Future[Any] = field(compare=False)


class Worker:
    """Does work in its own thread until it is closed.

    on_done: told urgency, seconds waited and seconds worked, in that thread.
    """

    def __init__(self, on_done: Callable[[int, float, float], None] | None = None) -> None:
        self._on_done = on_done
        self._waiting: list[_Work] = []
        self._numbers = itertools.count()
        self._condition = threading.Condition()
        self._is_closed = False
        self._wait_s = 0.0
        self._noted_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="sottovoce-model", daemon=True)
        self._thread.start()

    @property
    def n_waiting(self) -> int:
        """Pieces of work that have not begun."""
        return len(self._waiting)

    @property
    def live_wait_s(self) -> float:
        """How long live work waits: of late, and what waits now."""
        with self._condition:
            now = time.monotonic()
            oldest = min((work.since for work in self._waiting if work.urgency == LIVE), default=now)
            lately = self._wait_s * math.pow(0.5, (now - self._noted_s) / _HALF_LIFE_S)
            return max(lately, now - oldest)

    def submit(self, do: Callable[[], T], urgency: int) -> Future[T]:
        """Have work done; cancelling the future before it begins takes it out.

        Raises: ApiError after `close`.
        """
        done: Future[T] = Future()
        work = _Work(urgency, next(self._numbers), time.monotonic(), do, done)
        with self._condition:
            if self._is_closed:
                raise leaving()
            heapq.heappush(self._waiting, work)
            self._condition.notify()
        return done

    def close(self) -> None:
        """End after the work at hand; what waits is cancelled."""
        with self._condition:
            self._is_closed = True
            for work in self._waiting:
                work.done.cancel()
            self._waiting.clear()
            self._condition.notify()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            if not work.done.set_running_or_notify_cancel():
                continue
            began = time.monotonic()
            try:
                result = work.do()
            except BaseException as error:  # whatever it is, it belongs to who asked
                work.done.set_exception(error)
            else:
                work.done.set_result(result)
            self._note(work, began)
            del work  # and what it holds

    def _next(self) -> _Work | None:
        with self._condition:
            while not self._waiting and not self._is_closed:
                self._condition.wait()
            return heapq.heappop(self._waiting) if self._waiting else None

    def _note(self, work: _Work, began: float) -> None:
        waited_s = began - work.since
        if work.urgency == LIVE:
            with self._condition:
                self._wait_s = _FORGET * self._wait_s + (1 - _FORGET) * waited_s
                self._noted_s = began
        if self._on_done is not None:
            self._on_done(work.urgency, waited_s, time.monotonic() - began)
