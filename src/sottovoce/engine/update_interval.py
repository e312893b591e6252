"""The interval between updates of live sessions: longer under load, before any session is refused.

Twice the interval is 0.7 of the work, and words come a little later; a queue would let them come
ever later. Not known here: sessions, models, and whose clock it is.
"""

from __future__ import annotations

INTERVALS_S = (0.5, 1.0, 1.5, 2.0)
JUDGED_EVERY_S = 2.0
BUSY, IDLE = 0.85, 0.42
"""Utilisation (0 to 1) above which the interval is raised, and below which it is lowered: IDLE is less than
half of BUSY, so that halving the interval cannot overshoot."""
LATE = 0.25
"""Of the interval: so long a wait is a queue, and not the work of others that happened to come at once."""


class UpdateIntervalController:
    """The interval between two updates of a session, from how busy the model is and how long updates wait.

    shortest_s, longest_s: that it becomes, each one of `INTERVALS_S`; it begins with the shortest.
    """

    def __init__(
        self, now_s: float = 0.0, longest_s: float = INTERVALS_S[-1], *, shortest_s: float = INTERVALS_S[0]
    ) -> None:
        self._least = INTERVALS_S.index(shortest_s)
        self._most = INTERVALS_S.index(longest_s)
        self._level = self._least
        self._since_s = now_s
        self._busy_s = 0.0
        self._waits_s: list[float] = []
        self._was_just_changed = False

    @property
    def interval_s(self) -> float:
        """Audio between two updates of a session."""
        return INTERVALS_S[self._level]

    def note_wait(self, seconds: float) -> None:
        """Take how long an update waited until it began."""
        self._waits_s.append(seconds)

    def note_work(self, seconds: float, now_s: float) -> None:
        """Take how long the model was at work, until now; adapt the interval."""
        self._busy_s += seconds
        passed_s = now_s - self._since_s
        if passed_s < JUDGED_EVERY_S:
            return
        before = self._level
        if not self._was_just_changed:
            self._level = self._judged(self._busy_s / passed_s)
        # What piled up before a change is worked off after it, and is no evidence about the new interval.
        self._was_just_changed = self._level != before
        self._since_s, self._busy_s, self._waits_s = now_s, 0.0, []

    def _judged(self, busy: float) -> int:
        wait_s = sum(self._waits_s) / max(1, len(self._waits_s))
        is_late = wait_s > LATE * self.interval_s
        if busy > BUSY and is_late:
            return min(self._level + 1, self._most)
        if busy < IDLE and not is_late:
            return max(self._level - 1, self._least)
        return self._level
