"""Admission of live sessions by a forecast of the load, so that sessions that begin together are not all
accepted and then all late.

A session costs seconds of an engine for a second of its audio. The cost is measured with a sound at the
start, and for every session while it runs; longer intervals between updates reduce it
(`engine.update_interval`).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from sottovoce.server.parsing.faults import ApiError, too_many_requests

ROOM = 0.85
"""Of the engines' time that sessions may take: what comes unevenly has to wait for what is under way."""
RELATIVE_COST = {0.5: 1.0, 1.0: 0.66, 1.5: 0.58, 2.0: 0.5}
"""Of the work at the shortest interval, by the interval (docs/figures/serving.md)."""
MEASURED_S = 4.0
"""Of a session's audio from one measurement to the next."""
DECAY = 0.8
"""Of what was measured before, where it was more."""
SILENT = 0.25
"""Of the usual cost, below which a session was silent and tells nothing of those who speak."""
SILENT_WEIGHT = 0.5
"""Of the usual cost that a silent session counts for: it may speak at any time."""
MAX_GROWTH = 2.0
"""Of the usual cost, that one measurement adds to it at most: the machine may have stood still."""
SILENT_DECAY = 0.99
"""Of the usual cost, after a silent measurement, where it is above what was measured at the start."""
IDLE_S = 10.0
"""Without audio, after which a session is not at work: its client is silent for good, or gone."""
IDLE_WEIGHT = 0.05
"""Of its cost that such a session counts for."""
RETRY_S = 10.0
"""Until the next try, at least; at most twice that, so that who was refused together comes back apart."""


def overloaded(n_sessions: int) -> ApiError:
    message = f"{n_sessions} live sessions are as many as this model keeps up with: try again later"
    return too_many_requests(message, retry_s=RETRY_S * (1 + random.random()))


class SessionLoad:
    """Load of one session on its model, made by `LoadForecast.enter`.

    cost: engine seconds per second of audio at the shortest interval. is_waiting: its work is under way.
    """

    def __init__(self, forecast: LoadForecast) -> None:
        self.cost = forecast.usual
        self.worked_s = 0.0
        self.taken_s = 0.0
        self.is_waiting = False
        self._forecast = forecast
        self._audio_at_s = forecast.clock()
        self._worked_s = 0.0
        self._taken_s = 0.0

    @property
    def is_idle(self) -> bool:
        return not self.is_waiting and self._forecast.clock() - self._audio_at_s > IDLE_S

    @property
    def counted(self) -> float:
        return self.cost * (IDLE_WEIGHT if self.is_idle else 1.0)

    def work(self, seconds: float) -> None:
        self.worked_s += seconds
        self._worked_s += seconds

    def take_audio(self, seconds: float, interval_s: float) -> None:
        """Count audio (seconds) of an update, at the current interval."""
        self._audio_at_s = self._forecast.clock()
        self.taken_s += seconds
        self._taken_s += seconds
        if self._taken_s < MEASURED_S:
            return
        cost = self._worked_s / self._taken_s / RELATIVE_COST[interval_s]
        self._worked_s = self._taken_s = 0.0
        lately = max(cost, DECAY * self.cost + (1 - DECAY) * cost)
        self.cost = max(lately, SILENT_WEIGHT * self._forecast.usual)
        self._forecast.learn(cost)


class LoadForecast:
    """The sessions of one model, and whether its engines have time for another one.

    Room is that at the shortest interval of updates: longer ones are for load that was not foreseen.
    n_engines: at work at a time. clock: monotonic seconds. usual: cost of a session that was not measured; 0:
    unknown, and all are accepted.
    """

    def __init__(self, n_engines: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._part = 1 / n_engines
        self._loads: list[SessionLoad] = []
        self.usual = 0.0
        self._calibrated = 0.0
        self._lock = threading.Lock()
        """Held while a thread of the model changes `usual`; sessions come and go on the event loop alone."""

    def begin(self, cost: float) -> None:
        """Set the cost of a session as measured at the start; 0: unknown."""
        self.usual = self._calibrated = cost

    @property
    def part(self) -> float:
        """The part of the engines' time that the sessions take if all speak (1: all of it)."""
        return sum(load.counted for load in self._loads) * self._part

    @property
    def cost(self) -> float:
        """The part of the engines' time that another session is expected to take."""
        return self.usual * self._part

    @property
    def has_capacity(self) -> bool:
        """Whether another session can be accepted; the first one always can, and any without measurements."""
        return not self.usual or all(load.is_idle for load in self._loads) or self.part + self.cost <= ROOM

    def check(self) -> None:
        if not self.has_capacity:
            raise overloaded(len(self._loads))

    def enter(self) -> SessionLoad:
        self.check()
        load = SessionLoad(self)
        self._loads.append(load)
        return load

    def leave(self, load: SessionLoad) -> None:
        """Remove a session, if it is still there."""
        if load in self._loads:
            self._loads.remove(load)

    def learn(self, cost: float) -> None:
        """Update the cost from a recent measurement of a session; from any thread."""
        with self._lock:
            if cost > SILENT * self.usual:
                self.usual = DECAY * self.usual + (1 - DECAY) * min(cost, MAX_GROWTH * self.usual)
            elif self.usual > self._calibrated:
                self.usual = max(SILENT_DECAY * self.usual, self._calibrated)
