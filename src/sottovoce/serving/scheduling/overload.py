"""Who has to go where a model falls behind after all, as when other programs take its processors.

Nobody is helped by sessions that are all late: where half of those that speak are, the newest of the late
ones is asked to come again, one after the other, until the others are in time. One alone stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sottovoce.serving.scheduling.model_work import LiveWork

LASTS_S = 3.0
"""So long half of the sessions have to be late before somebody goes, and until the next one does."""
EARLY = 0.5
"""Of what sessions may be late, from which on they are: until one is sent away and it helps takes a while."""


@dataclass(eq=False, frozen=True, slots=True)
class PlacedSession:
    """A session that is open.

    began_s: when it was opened. behind_s: seconds of its audio that no event accounts for. send_away: has
    its client come again.
    """

    work: LiveWork
    began_s: float
    behind_s: Callable[[], float]
    send_away: Callable[[], None]

    def late_s(self, now_s: float) -> float:
        """Return how late it is for somebody who speaks: what is ahead of the time is late for nobody."""
        behind_s = self.behind_s()
        worked_s = self.work.received_s - self.work.behind_s
        return min(behind_s, max(0.0, now_s - self.began_s - worked_s))


class OverloadWatch:
    """Looks after the sessions of all models. most_s: that they may be late. clock: seconds that go on."""

    def __init__(self, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_s = most_s
        self._clock = clock
        self._placed: list[PlacedSession] = []
        self._late_since_s: dict[object, float] = {}

    @contextmanager
    def placed(
        self, work: LiveWork, behind_s: Callable[[], float], send_away: Callable[[], None]
    ) -> Iterator[None]:
        """Look after a session as long as it is open."""
        one = PlacedSession(work, self._clock(), behind_s, send_away)
        self._placed.append(one)
        try:
            yield
        finally:
            self._placed.remove(one)

    def look(self) -> None:
        """Send the newest late one away where half of the sessions are late for long; called every second."""
        now_s = self._clock()
        since_s = self._late_since_s
        self._late_since_s = {}
        for place in {one.work.place for one in self._placed}:
            speaking = [one for one in self._placed if one.work.place is place and one.behind_s() > 0]
            late = [one for one in speaking if one.late_s(now_s) > EARLY * self._most_s]
            if len(late) < 2 or 2 * len(late) < len(speaking):
                continue
            self._late_since_s[place] = since_s.get(place, now_s)
            if now_s - self._late_since_s[place] >= LASTS_S:
                self._late_since_s[place] = now_s
                late[-1].send_away()
