"""Beam and interval of live updates, which adapt to load.

A beam of one takes 0.9 of the work of a beam of five, twice the interval 0.6.
"""

from __future__ import annotations

INTERVALS_S = (0.25, 0.5, 1.0, 1.5, 2.0)
JUDGED_EVERY_S = 2.0
BUSY, IDLE = 0.85, 0.42
"""Utilisation above which the interval is raised, and below which it is lowered (less than half of BUSY)."""
LATE = 0.25
"""Mean waits longer than this fraction of the interval are a queue."""


class UpdateIntervalController:
    """Adapts to utilisation and waits: first by greedy decoding, then by longer intervals.

    longest_s: one of `INTERVALS_S`; with the shortest, nothing adapts.
    """

    def __init__(self, now_s: float = 0.0, longest_s: float = INTERVALS_S[-1]) -> None:
        longest = INTERVALS_S.index(longest_s)
        self._most = longest + 1 if longest else 0
        self._level = 0
        self._since_s = now_s
        self._busy_s = 0.0
        self._waits_s: list[float] = []
        self._was_just_changed = False
        self.has_spare_time = True
        """Whether updates come at the shortest interval and did not wait, when that was last judged."""

    @property
    def interval_s(self) -> float:
        """Seconds between two updates of a session."""
        return INTERVALS_S[max(0, self._level - 1)]

    @property
    def is_greedy(self) -> bool:
        return self._level > 0

    @property
    def is_stretched(self) -> bool:
        """Whether updates come at longer intervals."""
        return self._level > 1

    def note_wait(self, seconds: float) -> None:
        self._waits_s.append(seconds)

    def note_work(self, seconds: float, now_s: float) -> None:
        """Add the model's working time (s) until now, and adapt."""
        self._busy_s += seconds
        passed_s = now_s - self._since_s
        if passed_s < JUDGED_EVERY_S:
            return
        before = self._level
        if not self._was_just_changed:
            self._level = self._judged(self._busy_s / passed_s)
        # The backlog before a change is worked off after it, and is no evidence about the new interval.
        self._was_just_changed = self._level != before
        self.has_spare_time = not (self._is_late or self.is_stretched)
        self._since_s, self._busy_s, self._waits_s = now_s, 0.0, []

    @property
    def _is_late(self) -> bool:
        wait_s = sum(self._waits_s) / max(1, len(self._waits_s))
        return wait_s > LATE * self.interval_s

    def _judged(self, busy: float) -> int:
        if busy > BUSY and self._is_late:
            return min(self._level + 1, self._most)
        if busy < IDLE and not self._is_late:
            return max(self._level - 1, 0)
        return self._level
