"""Frames that were attended to, as times of words: in order, and a stray one moves no other."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sottovoce.streaming.words import in_order

frames = st.lists(st.integers(0, 6), max_size=5)


@given(st.lists(st.integers(0, 1500), max_size=60))
def test_frames_rise_and_rising_frames_stay(found: list[int]) -> None:
    rising = in_order(found)
    assert len(rising) == len(found)
    assert rising == sorted(rising)
    assert in_order(rising) == rising


@given(frames)
def test_no_rising_sequence_is_nearer(found: list[int]) -> None:
    """Against every rising sequence over the same range."""
    nearest = min(
        sum(abs(a - b) for a, b in zip(found, other, strict=True))
        for other in itertools.combinations_with_replacement(range(7), len(found))
    )
    assert sum(abs(a - b) for a, b in zip(found, in_order(found), strict=True)) == nearest


def test_a_stray_frame_moves_no_other() -> None:
    assert in_order([134, 36, 49, 59]) == [36, 36, 49, 59]  # a first word heard at the end of the audio
    assert in_order([60, 80, 100, 40]) == [60, 80, 80, 80]
    assert in_order([10, 90, 30, 40, 50]) == [10, 30, 30, 40, 50]
