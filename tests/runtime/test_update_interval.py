"""Updates come less often under load, and more often again behind it."""

from __future__ import annotations

from sottovoce.runtime.update_interval import INTERVALS_S, JUDGED_EVERY_S, UpdateIntervalController


def live(
    controller: UpdateIntervalController, now_s: float, seconds: float, *, busy: float, wait_s: float
) -> float:
    """So many seconds in which the model is at work for a part of the time."""
    end_s = now_s + seconds
    while now_s < end_s:
        now_s += 0.1
        controller.note_wait(wait_s)
        controller.note_work(0.1 * busy, now_s)
    return now_s


def test_it_stretches_under_load_and_comes_back() -> None:
    controller = UpdateIntervalController()
    assert controller.interval_s == 0.25
    now_s = live(controller, 0.0, 10.0, busy=0.7, wait_s=0.05)
    assert controller.interval_s == 0.25
    assert not controller.is_greedy
    now_s = live(controller, now_s, JUDGED_EVERY_S + 0.3, busy=1.0, wait_s=0.4)
    assert controller.interval_s == 0.25
    assert controller.is_greedy, "a smaller beam comes before a longer interval"
    assert not controller.is_stretched
    now_s = live(controller, now_s, 2 * JUDGED_EVERY_S, busy=1.0, wait_s=0.4)
    assert controller.interval_s == 0.5
    assert controller.is_stretched
    now_s = live(controller, now_s, JUDGED_EVERY_S, busy=1.0, wait_s=3.0)
    assert controller.interval_s == 0.5, "what piled up before is worked off first"
    now_s = live(controller, now_s, 20.0, busy=1.0, wait_s=3.0)
    assert controller.interval_s == INTERVALS_S[-1]
    now_s = live(controller, now_s, 20.0, busy=0.6, wait_s=0.05)
    assert controller.interval_s == INTERVALS_S[-1], "twice as often would be too much again"
    live(controller, now_s, 30.0, busy=0.1, wait_s=0.0)
    assert controller.interval_s == 0.25
    assert not controller.is_greedy


def test_busy_without_a_queue_is_no_reason() -> None:
    controller = UpdateIntervalController()
    live(controller, 0.0, 20.0, busy=1.0, wait_s=0.05)
    assert controller.interval_s == 0.25


def test_it_stays_within_its_bounds() -> None:
    controller = UpdateIntervalController(longest_s=1.5)
    now_s = live(controller, 0.0, 30.0, busy=1.0, wait_s=3.0)
    assert controller.interval_s == 1.5
    live(controller, now_s, 30.0, busy=0.0, wait_s=0.0)
    assert controller.interval_s == 0.25
    fixed = UpdateIntervalController(longest_s=0.25)
    live(fixed, 0.0, 30.0, busy=1.0, wait_s=3.0)
    assert not fixed.is_greedy, "words are those of the library at any load"
