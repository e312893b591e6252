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


def heard(one: UpdateSchedule, audio: Samples, cuts: Sequence[int] = ()) -> list[tuple[SchedulePoint, int]]:
    """Moments of a recording that comes in pieces, and the sample that time has come to at each."""
    found = []
    for piece in np.split(audio, sorted(cuts)):
        one.append(piece)
        DirectRuntime(backend()).run(one.detect_speech())
        found += [(point, one.now) for point in one.points()]
    one.stop()
    return found + [(point, one.now) for point in one.points()]


@given(st.lists(st.integers(0, len(AUDIO)), max_size=6))
def test_points_do_not_depend_on_how_audio_is_cut(cuts: Sequence[int]) -> None:
    assert heard(clock(), AUDIO, cuts) == heard(clock(), AUDIO)


def test_updates_are_due_at_fixed_samples_and_edges_where_they_were_found() -> None:
    found = heard(clock(), AUDIO)
    updates = [point.sample for point, _ in found if point.kind == "update"]
    assert updates == list(range(CHUNK, len(AUDIO) + 1, CHUNK))
    edges = [point for point, _ in found if point.kind != "update"]
    assert [edge.kind for edge in edges] == ["start", "end", "start", "end"]
    assert [now for _, now in found] == sorted(now for _, now in found)
    assert all(now > point.sample for point, now in found if point.kind != "update")


def test_without_a_detector_all_is_speech() -> None:
    one = clock(vad=False)
    found = heard(one, AUDIO)
    assert found[0] == (SchedulePoint("start", 0), 0)
    assert found[-1] == (SchedulePoint("end", len(AUDIO)), len(AUDIO))
    assert not one.has_vad
    assert heard(clock(vad=False), silence(0.0)) == [], "no speech without a sample"


def test_who_is_late_gets_the_newest_update_alone() -> None:
    one = clock(vad=False)
    one.append(silence(2.3))
    kinds = [(point.kind, point.sample) for point in one.points(newest_only=True)]
    assert kinds == [("start", 0), ("update", 4 * CHUNK)]
    assert one.now == one.buffer.end


@pytest.mark.parametrize("max_pause_s", [0.0, 3.0, 8.0])
def test_a_pause_is_held_as_long_as_an_utterance_may_be_held_over(max_pause_s: float) -> None:
    one = clock(max_pause_s=max_pause_s)
    one.append(silence(20.0))
    one.discard(None)
    assert (one.buffer.end - one.buffer.start) / SAMPLE_RATE == ONSET_S
    held_over = round(max_pause_s * SAMPLE_RATE)
    assert one.resumes(0, held_over)
    assert not one.resumes(0, held_over + 1)


def test_what_an_utterance_has_taken_is_let_go() -> None:
    one = clock()
    one.append(silence(4.0))
    one.discard(SAMPLE_RATE)
    assert one.buffer.start == SAMPLE_RATE, "what it has not taken stays"
