"""Closing of sessions when a model falls behind, as when other programs take its processors.

If half of the speaking sessions are late, the newest late one is closed with a request to reconnect, one
after the other, until the others are in time. One session always stays. If the event loop itself is late, as
under a flood of refused handshakes, closing sessions would not help, and none is closed until they have
caught up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sottovoce.server.scheduling.session_handle import SessionHandle

OVERLOAD_S = 3.0
"""So long half of the sessions have to be late before somebody goes, and until the next one does."""
POLL_EVERY_S = 1.0
MAX_LOOP_DELAY_S = 0.05
"""Of a look, from which on the event loop is too busy to tell whether the model is."""
LATE_FRACTION = 0.5
"""Of what sessions may be late, from which on they are: until one is sent away and it helps takes a while."""


@dataclass(eq=False, frozen=True, slots=True)
class WatchedSession:
    """An open session.

    began_s: when it was opened. behind_s: seconds of its audio that no event covers. shed: asks its
    client to reconnect.
    """

    work: SessionHandle
    began_s: float
    behind_s: Callable[[], float]
    shed: Callable[[], None]

    def late_s(self, now_s: float) -> float:
        """Return the delay of its words in seconds; audio that was sent ahead of time is not late."""
        behind_s = self.behind_s()
        worked_s = self.work.received_s - self.work.behind_s
        return min(behind_s, max(0.0, now_s - self.began_s - worked_s))


class LoadShedder:
    """Watches the sessions of all models. most_s: largest delay. clock: monotonic seconds."""

    def __init__(self, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_s = most_s
        self._clock = clock
        self._watched: list[WatchedSession] = []
        self._late_since_s: dict[object, float] = {}
        self._looked_s = clock()
        self._paused_until_s = -math.inf

    @contextmanager
    def watch(
        self, work: SessionHandle, behind_s: Callable[[], float], shed: Callable[[], None]
    ) -> Iterator[None]:
        """Watch a session until the context ends."""
        one = WatchedSession(work, self._clock(), behind_s, shed)
        self._watched.append(one)
        try:
            yield
        finally:
            self._watched.remove(one)

    def check(self) -> None:
        """Close the newest late session if half of the sessions have been late for `OVERLOAD_S`.

        Called every `POLL_EVERY_S`. A late call means a late event loop: sessions then get as much time to
        catch up as they are late.
        """
        now_s = self._clock()
        since_s, looked_s = self._late_since_s, self._looked_s
        self._late_since_s, self._looked_s = {}, now_s
        if now_s - looked_s > POLL_EVERY_S + MAX_LOOP_DELAY_S:
            self._paused_until_s = now_s + max((one.late_s(now_s) for one in self._watched), default=0.0)
        if now_s < self._paused_until_s:
            return
        for worker in {one.work.worker for one in self._watched}:
            speaking = [one for one in self._watched if one.work.worker is worker and one.behind_s() > 0]
            late = [one for one in speaking if one.late_s(now_s) > LATE_FRACTION * self._most_s]
            if len(late) < 2 or 2 * len(late) < len(speaking):
                continue
            self._late_since_s[worker] = since_s.get(worker, now_s)
            if now_s - self._late_since_s[worker] >= OVERLOAD_S:
                self._late_since_s[worker] = now_s
                late[-1].shed()
