"""Admission of live sessions by a forecast of the load, and load shedding.

A session costs engine seconds per second of audio, measured when a model is loaded and while sessions run.
When half of the speaking sessions of a model are late, the newest late one is closed until the others are in
time, except while the event loop itself is late.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sottovoce.server.errors import RETRY_S, ApiError, too_many_requests

MAX_LOAD = 0.85
"""Part of the engines' time that sessions may take; the rest absorbs bursts."""
FORECAST_INTERVAL_S = 0.5
"""The update interval at which loads are counted."""
RELATIVE_COST = {0.25: 1.6, FORECAST_INTERVAL_S: 1.0, 1.0: 0.66, 1.5: 0.58, 2.0: 0.5}
"""Cost of a session by its update interval (docs/research/serving.md)."""
MEASURED_S = 4.0
"""Audio of a session between two measurements."""
DECAY = 0.8
"""Weight of earlier, higher measurements."""
SILENT_FRACTION = 0.25
"""Below this part of the typical cost, a measurement counts as silence and is not used."""
SILENT_WEIGHT = 0.5
MAX_GROWTH = 2.0
SILENT_DECAY = 0.99
IDLE_S = 10.0
IDLE_WEIGHT = 0.05
"""Part of its cost that a session without audio for `IDLE_S` counts for."""


def overloaded(n_sessions: int) -> ApiError:
    """Return an error with a random time until a retry, to spread refused clients."""
    message = f"{n_sessions} live sessions are as many as this model keeps up with: try again later"
    return too_many_requests(message, retry_s=RETRY_S * (1 + random.random()))


class SessionLoad:
    """Load of one session. cost: at `FORECAST_INTERVAL_S`."""

    def __init__(self, forecast: LoadForecast) -> None:
        self.cost = forecast.typical_cost
        self.worked_s = self.audio_s = 0.0
        self.is_processing = False
        self._forecast = forecast
        self._audio_at_s = forecast.clock()
        self._measured = (0.0, 0.0)

    @property
    def is_idle(self) -> bool:
        return not self.is_processing and self._forecast.clock() - self._audio_at_s > IDLE_S

    def add_work(self, seconds: float) -> None:
        self.worked_s += seconds

    def add_audio(self, seconds: float, interval_s: float) -> None:
        self._audio_at_s = self._forecast.clock()
        self.audio_s += seconds
        worked_s, audio_s = self.worked_s - self._measured[0], self.audio_s - self._measured[1]
        if audio_s < MEASURED_S:
            return
        cost = worked_s / audio_s / RELATIVE_COST[interval_s]
        self._measured = (self.worked_s, self.audio_s)
        lately = max(cost, DECAY * self.cost + (1 - DECAY) * cost)
        self.cost = max(lately, SILENT_WEIGHT * self._forecast.typical_cost)
        self._forecast.update_cost(cost)


class LoadForecast:
    """Admission of sessions to one model by the time of its engines.

    clock: monotonic seconds. typical_cost: of an unmeasured session; 0: unknown, and all are admitted.
    """

    def __init__(self, n_engines: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._share = 1 / n_engines
        self._loads: list[SessionLoad] = []
        self.typical_cost = 0.0
        self._calibrated = 0.0
        self._lock = threading.Lock()

    def set_cost(self, cost: float) -> None:
        self.typical_cost = self._calibrated = cost

    @property
    def load(self) -> float:
        """Part of the engines' time that the sessions take if all speak."""
        costs = (load.cost * (IDLE_WEIGHT if load.is_idle else 1.0) for load in self._loads)
        return sum(costs) * self._share

    @property
    def has_capacity(self) -> bool:
        """Whether another session can be admitted; the first one always can."""
        return (
            not self.typical_cost
            or all(load.is_idle for load in self._loads)
            or self.load + self.typical_cost * self._share <= MAX_LOAD
        )

    def check(self) -> None:
        if not self.has_capacity:
            raise overloaded(len(self._loads))

    def enter(self) -> SessionLoad:
        self.check()
        load = SessionLoad(self)
        self._loads.append(load)
        return load

    def leave(self, load: SessionLoad) -> None:
        if load in self._loads:
            self._loads.remove(load)

    def update_cost(self, cost: float) -> None:
        with self._lock:
            if cost > SILENT_FRACTION * self.typical_cost:
                self.typical_cost = DECAY * self.typical_cost + (1 - DECAY) * min(
                    cost, MAX_GROWTH * self.typical_cost
                )
            elif self.typical_cost > self._calibrated:
                self.typical_cost = max(SILENT_DECAY * self.typical_cost, self._calibrated)


OVERLOAD_S = 3.0
"""How long half of the sessions must be late before one is closed, and between two that are closed."""
POLL_EVERY_S = 1.0
MAX_LOOP_DELAY_S = 0.05
"""Delay of a check above which the event loop itself is overloaded."""
LATE_FRACTION = 0.5
"""Part of the largest delay above which a session is late."""


@dataclass(eq=False, frozen=True, slots=True)
class WatchedSession:
    """An open session. model: shared by sessions that wait for each other. shed: asks the client to
    reconnect.
    """

    model: object
    opened_s: float
    processed_s: Callable[[], float]
    behind_s: Callable[[], float]
    shed: Callable[[], None]

    def late_s(self, now_s: float) -> float:
        """Return the seconds by which events are late; audio sent ahead of time does not count."""
        return min(self.behind_s(), max(0.0, now_s - self.opened_s - self.processed_s()))


class LoadShedder:
    """Watches the sessions of all models. most_s: largest delay."""

    def __init__(self, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_s = most_s
        self._clock = clock
        self._watched: list[WatchedSession] = []
        self._late_since_s: dict[object, float] = {}
        self._looked_s = clock()
        self._paused_until_s = -math.inf

    @contextmanager
    def watch(self, session: WatchedSession) -> Iterator[None]:
        self._watched.append(session)
        try:
            yield
        finally:
            self._watched.remove(session)

    def check(self) -> None:
        """Close the newest late session if half of the sessions have been late for `OVERLOAD_S`.

        A late call means a late event loop: sessions then get as long to catch up as they are late.
        """
        now_s = self._clock()
        since_s, looked_s = self._late_since_s, self._looked_s
        self._late_since_s, self._looked_s = {}, now_s
        if now_s - looked_s > POLL_EVERY_S + MAX_LOOP_DELAY_S:
            self._paused_until_s = now_s + max((one.late_s(now_s) for one in self._watched), default=0.0)
        if now_s < self._paused_until_s:
            return
        for model in {one.model for one in self._watched}:
            speaking = [one for one in self._watched if one.model is model and one.behind_s() > 0]
            late = [one for one in speaking if one.late_s(now_s) > LATE_FRACTION * self._most_s]
            if len(late) < 2 or 2 * len(late) < len(speaking):
                continue
            self._late_since_s[model] = since_s.get(model, now_s)
            if now_s - self._late_since_s[model] >= OVERLOAD_S:
                self._late_since_s[model] = now_s
                late[-1].shed()
