"""What found nothing is looked for less, and what is clear always."""

from __future__ import annotations

from sottovoce.language.follow import (
    CLEAR,
    LEAST_CLEAR,
    LEAST_HINT_NATS,
    LEAST_SURPRISAL,
    MOST_HINT_NATS,
    MOST_SURPRISAL,
    AskingLimits,
)


def test_pieces_are_detected_less_after_windows_in_one_language_and_as_before_after_another() -> None:
    limits = AskingLimits()
    found = [limits.clear]
    for _ in range(20):
        limits = limits.after_pieces(finds_another=False)
        found.append(limits.clear)
    assert found == sorted(found, reverse=True)
    assert (found[0], found[-1]) == (CLEAR, LEAST_CLEAR)
    assert limits.after_pieces(finds_another=True).clear == CLEAR


def test_limits_stay_between_their_bounds_and_come_back() -> None:
    limits = AskingLimits()
    for _ in range(50):
        limits = limits.after_hints().after_text()
    assert (limits.hint_nats, limits.surprisal) == (MOST_HINT_NATS, MOST_SURPRISAL)
    for _ in range(50):
        limits = limits.in_next_window().rested()
    assert (limits.hint_nats, limits.surprisal) == (LEAST_HINT_NATS, LEAST_SURPRISAL)
