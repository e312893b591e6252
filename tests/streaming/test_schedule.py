"""The schedule: updates at fixed samples, edges where they were found, and how much audio is held."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.audio.vad import VadStream
from sottovoce.runtime.calls import DirectRuntime
from sottovoce.streaming.live_session import ONSET_S, SchedulePoint, UpdateSchedule
from sottovoce.types import SAMPLE_RATE, Samples
from tests.streaming.speech import ToneDetector, backend, say, silence

CHUNK = SAMPLE_RATE // 2
AUDIO = np.concatenate([silence(0.7), say(["time", "year"]), silence(1.5), say(["people"]), silence(1.2)])


def clock(*, vad: bool = True, max_pause_s: float = 3.0) -> UpdateSchedule:
    return UpdateSchedule(VadStream(model=ToneDetector()) if vad else None, CHUNK / SAMPLE_RATE, max_pause_s)


def heard(
    schedule: UpdateSchedule, audio: Samples, cuts: Sequence[int] = ()
) -> list[tuple[SchedulePoint, int]]:
    """Moments of a recording that comes in pieces, and the sample that time has come to at each."""
    points = []
    for piece in np.split(audio, sorted(cuts)):
        schedule.append(piece)
        DirectRuntime(backend()).run(schedule.detect_speech())
        points += [(point, schedule.now) for point in schedule.points()]
    schedule.stop()
    return points + [(point, schedule.now) for point in schedule.points()]


@given(st.lists(st.integers(0, len(AUDIO)), max_size=6))
def test_points_do_not_depend_on_how_audio_is_cut(cuts: Sequence[int]) -> None:
    assert heard(clock(), AUDIO, cuts) == heard(clock(), AUDIO)


def test_updates_are_due_at_fixed_samples_and_edges_where_they_were_found() -> None:
    points = heard(clock(), AUDIO)
    updates = [point.sample for point, _ in points if point.kind == "update"]
    assert updates == list(range(CHUNK, len(AUDIO) + 1, CHUNK))
    edges = [point for point, _ in points if point.kind != "update"]
    assert [edge.kind for edge in edges] == ["start", "end", "start", "end"]
    assert [now for _, now in points] == sorted(now for _, now in points)
    assert all(now > point.sample for point, now in points if point.kind != "update")


def test_without_a_detector_all_is_speech() -> None:
    schedule = clock(vad=False)
    points = heard(schedule, AUDIO)
    assert points[0] == (SchedulePoint("start", 0), 0)
    assert points[-1] == (SchedulePoint("end", len(AUDIO)), len(AUDIO))
    assert not schedule.has_vad
    assert heard(clock(vad=False), silence(0.0)) == [], "no speech without a sample"


def test_who_is_late_gets_the_newest_update_alone() -> None:
    schedule = clock(vad=False)
    schedule.append(silence(2.3))
    kinds = [(point.kind, point.sample) for point in schedule.points(newest_only=True)]
    assert kinds == [("start", 0), ("update", 4 * CHUNK)]
    assert schedule.now == schedule.buffer.end


@pytest.mark.parametrize("max_pause_s", [0.0, 3.0, 8.0])
def test_a_pause_is_held_as_long_as_an_utterance_may_be_held_over(max_pause_s: float) -> None:
    schedule = clock(max_pause_s=max_pause_s)
    schedule.append(silence(20.0))
    schedule.discard(None)
    assert (schedule.buffer.end - schedule.buffer.start) / SAMPLE_RATE == ONSET_S
    held_over = round(max_pause_s * SAMPLE_RATE)
    assert schedule.resumes(0, held_over)
    assert not schedule.resumes(0, held_over + 1)


def test_what_an_utterance_has_taken_is_let_go() -> None:
    schedule = clock()
    schedule.append(silence(4.0))
    schedule.discard(SAMPLE_RATE)
    assert schedule.buffer.start == SAMPLE_RATE, "what it has not taken stays"
