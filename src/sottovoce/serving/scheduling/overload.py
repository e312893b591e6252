"""Who has to go where a model falls behind after all, as when other programs take its processors.

Nobody is helped by sessions that are all late: the newest of those that wait is asked to come again, one
after the other, until the others are in time. One alone stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sottovoce.serving.scheduling.model_work import LiveWork

LASTS_S = 5.0
"""So long live work has to wait for too long before somebody goes, and until the next one does."""
WAITING_S = 0.5
"""Of audio that no update has heard, from which on a session is one that waits."""


@dataclass(eq=False, frozen=True, slots=True)
class PlacedSession:
    """A session that is open. send_away: has its client come again."""

    work: LiveWork
    send_away: Callable[[], None]


class OverloadWatch:
    """Looks after the sessions of all models. most_s: that live work may wait. clock: seconds that go on."""

    def __init__(self, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_s = most_s
        self._clock = clock
        self._placed: list[PlacedSession] = []
        self._late_since_s: dict[object, float] = {}

    @contextmanager
    def placed(self, work: LiveWork, send_away: Callable[[], None]) -> Iterator[None]:
        """Look after a session as long as it is open."""
        one = PlacedSession(work, send_away)
        self._placed.append(one)
        try:
            yield
        finally:
            self._placed.remove(one)

    def look(self) -> None:
        """Send the newest session away wherever live work has waited for too long; called every second."""
        now_s = self._clock()
        since_s = self._late_since_s
        self._late_since_s = {}
        for place in {one.work.place for one in self._placed}:
            some = [one for one in self._placed if one.work.place is place]
            if some[0].work.live_wait_s <= self._most_s:
                continue
            self._late_since_s[place] = since_s.get(place, now_s)
            waiting = [one for one in some if one.work.behind_s > WAITING_S]
            if now_s - self._late_since_s[place] >= LASTS_S and len(waiting) > 1:
                self._late_since_s[place] = now_s
                waiting[-1].send_away()
