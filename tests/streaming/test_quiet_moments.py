"""Quiet moments: where a stretch begins, and where a language may end."""

from __future__ import annotations

import numpy as np

from sottovoce.audio.mel import quiet_frames, quietest_frame, smoothed
from sottovoce.types import SAMPLE_RATE
from tests.streaming.sessions import changes_of, listen, session, spoken, words_of
from tests.streaming.speech import say, silence


def test_the_quietest_frame_is_the_middle_of_a_pause_and_not_a_single_frame() -> None:
    loud = np.full(40, 3.0)
    loud[10] = 0.0
    loud[20:23] = 0.5
    assert quietest_frame(smoothed(loud, 3), 0) == 21
    assert [quietest_frame(np.full(5, 1.0), near) for near in (0, 2, 4)] == [0, 2, 4]
    assert quietest_frame(np.zeros(0), 0) == 0


def test_quiet_frames_are_quieter_than_those_beside_them() -> None:
    loud = np.full(60, 3.0)
    for at, level in ((10, 1.0), (25, 0.5), (40, 2.0)):
        loud[at - 1 : at + 2] = level
    assert quiet_frames(smoothed(loud, 3), 30) == [25, 10, 40]
    loud[24:27] = 1.0
    assert quiet_frames(smoothed(loud, 3), 30) == [25, 10, 40], "of equals the nearest first"
    assert quiet_frames(smoothed(np.full(2, 1.0), 3), 0) == []


def test_a_change_without_a_pause_lies_between_the_words() -> None:
    """No word is lost and none said twice. The first of the new language may be said before it is known."""
    for n_before in (9, 12, 14):
        first, second = spoken("en", n_before), spoken("de", 14)
        audio = np.concatenate([silence(0.5), say(first), say(second), silence(1.0)])
        events = listen(session(("en", "de")), audio)
        assert words_of(events) == first + second
        (change,) = [event for event in changes_of(events) if event.previous is not None]
        boundary_s = (0.5 * SAMPLE_RATE + len(say(first))) / SAMPLE_RATE
        assert -0.13 <= change.at - boundary_s <= 0.37
