"""Updates come less often under load, and more often again behind it."""

from __future__ import annotations

from sottovoce.engine.pace import INTERVALS_S, JUDGED_EVERY_S, Pace


def live(pace: Pace, now_s: float, seconds: float, *, busy: float, wait_s: float) -> float:
    """So many seconds in which the model is at work for a part of the time."""
    end_s = now_s + seconds
    while now_s < end_s:
        now_s += 0.1
        pace.waited(wait_s)
        pace.worked(0.1 * busy, now_s)
    return now_s


def test_it_stretches_under_load_and_comes_back() -> None:
    pace = Pace()
    assert pace.interval_s == 0.5
    now_s = live(pace, 0.0, 10.0, busy=0.7, wait_s=0.05)
    assert pace.interval_s == 0.5
    now_s = live(pace, now_s, JUDGED_EVERY_S + 0.3, busy=1.0, wait_s=0.4)
    assert pace.interval_s == 1.0
    now_s = live(pace, now_s, JUDGED_EVERY_S, busy=1.0, wait_s=3.0)
    assert pace.interval_s == 1.0, "what piled up before is worked off first"
    now_s = live(pace, now_s, 20.0, busy=1.0, wait_s=3.0)
    assert pace.interval_s == INTERVALS_S[-1]
    now_s = live(pace, now_s, 20.0, busy=0.6, wait_s=0.05)
    assert pace.interval_s == INTERVALS_S[-1], "twice as often would be too much again"
    live(pace, now_s, 20.0, busy=0.1, wait_s=0.0)
    assert pace.interval_s == 0.5


def test_busy_without_a_queue_is_no_reason() -> None:
    pace = Pace()
    live(pace, 0.0, 20.0, busy=1.0, wait_s=0.05)
    assert pace.interval_s == 0.5


def test_it_stays_within_its_bounds() -> None:
    pace = Pace(longest_s=1.5, shortest_s=1.0)
    assert pace.interval_s == 1.0
    now_s = live(pace, 0.0, 30.0, busy=1.0, wait_s=3.0)
    assert pace.interval_s == 1.5
    live(pace, now_s, 30.0, busy=0.0, wait_s=0.0)
    assert pace.interval_s == 1.0
