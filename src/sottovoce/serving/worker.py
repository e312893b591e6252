"""One thread that does the work of one model, the most urgent first; nobody else touches the model.

Live work is steps of a generator, which the engine does in rounds together with those of others; all other
work is a function without arguments. Knows neither sessions nor recordings.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sottovoce.engine.live import LiveEngine
from sottovoce.engine.pace import Pace
from sottovoce.engine.tasks import Task
from sottovoce.serving.faults import leaving
from sottovoce.streaming.work import Steps

log = logging.getLogger(__name__)
T = TypeVar("T")

LIVE, FILE = 0, 1
"""Urgency: work of a live session goes before that of recordings, which take turns."""
_FORGET = 0.9
"""Of the mean waiting time, at each new one."""
_HALF_LIFE_S = 5.0
"""Of a waiting time after which nothing came: an idle model is not busy."""
PATIENCE_S = 10.0
"""So long a recording waits while live work goes first; then a piece of it has its turn."""


@dataclass(order=True, slots=True)
class _Work:
    urgency: int
    number: int
    since: float = field(compare=False)
    do: Callable[[], Any] | Steps[Any] = field(compare=False)
    done: Future[Any] = field(compare=False)
    task: Task[Any] | None = field(default=None, compare=False)

    @property
    def has_begun(self) -> bool:
        """Whether the model is at it, or has been."""
        return self.task is not None and not math.isnan(self.task.began_s)


class Worker:
    """Does work in its own thread until it is closed.

    on_done: told urgency, seconds waited and seconds worked, in that thread. engine: does live work in
    rounds.
    """

    def __init__(
        self, on_done: Callable[[int, float, float], None] | None = None, engine: LiveEngine | None = None
    ) -> None:
        self._on_done = on_done
        self._engine = engine
        self.pace = Pace(time.monotonic())
        """How often live sessions are brought up to date."""
        self._under_way: tuple[_Work, ...] = ()
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
        return len(self._waiting) + sum(not work.has_begun for work in self._under_way)

    @property
    def live_wait_s(self) -> float:
        """How long live work waits: of late, and what waits now."""
        with self._condition:
            now = time.monotonic()
            waiting = [work for work in self._waiting if work.urgency == LIVE]
            waiting += [work for work in self._under_way if not work.has_begun]
            oldest = min((work.since for work in waiting), default=now)
            lately = self._wait_s * math.pow(0.5, (now - self._noted_s) / _HALF_LIFE_S)
            return max(lately, now - oldest)

    def submit(self, do: Callable[[], T], urgency: int) -> Future[T]:
        """Have work done; cancelling the future before it begins takes it out.

        Raises: ApiError after `close`.
        """
        return self._submitted(do, urgency)

    def submit_steps(self, steps: Steps[T]) -> Future[T]:
        """Have live work done, put together with that of others; cancelling as with `submit`.

        Raises: ApiError after `close`.
        """
        assert self._engine is not None
        return self._submitted(steps, LIVE)

    def _submitted(self, do: Callable[[], T] | Steps[T], urgency: int) -> Future[T]:
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
        while self._wait():
            work = self._next()
            if work is None:
                self._round()
            elif work.done.set_running_or_notify_cancel():
                if callable(work.do):
                    self._do(work)
                else:
                    self._begin(work, work.do)
            del work  # and what it holds
        for work in self._under_way:
            work.done.set_exception(leaving())

    def _wait(self) -> bool:
        """Wait until there is something to do; False at the end."""
        with self._condition:
            while not (self._waiting or self._under_way or self._is_closed):
                self._condition.wait()
            return not self._is_closed

    def _next(self) -> _Work | None:
        """What is to be done before the next round; None: nothing is."""
        with self._condition:
            if not self._waiting:
                return None
            first = self._waiting[0]
            is_patient = first.urgency != LIVE and time.monotonic() - first.since < PATIENCE_S
            return None if self._under_way and is_patient else heapq.heappop(self._waiting)

    def _do(self, work: _Work) -> None:
        began = time.monotonic()
        try:
            assert callable(work.do)
            result = work.do()
        except BaseException as error:  # whatever it is, it belongs to who asked
            work.done.set_exception(error)
        else:
            work.done.set_result(result)
        self._note(work, began)

    def _begin(self, work: _Work, steps: Steps[Any]) -> None:
        """Hand steps to the engine."""
        assert self._engine is not None
        work.task = self._engine.begin(steps, work.since, lambda task: self._end(work, task))
        with self._condition:
            self._under_way = (*self._under_way, work)

    def _round(self) -> None:
        assert self._engine is not None
        began = time.monotonic()
        try:
            self._engine.round()
        except Exception as error:  # not of one session: the engine itself; the thread goes on
            log.exception("a round failed")
            self._engine.forget()
            with self._condition:
                lost, self._under_way = self._under_way, ()
            for work in lost:
                work.done.set_exception(error)
        now = time.monotonic()
        self.pace.worked(now - began, now)

    def _end(self, work: _Work, task: Task[Any]) -> None:
        """A task is done: tell who waits for it."""
        with self._condition:
            self._under_way = tuple(other for other in self._under_way if other is not work)
        if task.error is not None:
            work.done.set_exception(task.error)
        else:
            work.done.set_result(task.result)
        if math.isnan(task.began_s):  # there was nothing for the model in it
            return
        self.pace.waited(task.began_s - work.since)
        self._note(work, task.began_s)

    def _note(self, work: _Work, began: float) -> None:
        waited_s = began - work.since
        if work.urgency == LIVE:
            with self._condition:
                self._wait_s = _FORGET * self._wait_s + (1 - _FORGET) * waited_s
                self._noted_s = began
        if self._on_done is not None:
            self._on_done(work.urgency, waited_s, time.monotonic() - began)
