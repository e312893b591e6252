"""Speech in pieces of one language each, and packed into windows."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sottovoce.audio.io import Recording, load_audio
from sottovoce.audio.mel import RecordingFeatures
from sottovoce.audio.vad import SpeechFinder, SpeechSegment, speech_segments
from sottovoce.offline.windows import (
    LEAST_S,
    LONGEST_S,
    PIECE_VAD,
    SpeechSpan,
    Window,
    energy_minima,
    energy_minimum,
    pack_speech,
    pieces_between,
    speech_pieces,
)
from sottovoce.types import SAMPLE_RATE, Samples

WINDOW = 3000


def speech(*spans: tuple[float, float]) -> list[SpeechSegment]:
    return [SpeechSegment(round(start * 16000), round(end * 16000)) for start, end in spans]


def test_speech_fills_windows_in_order() -> None:
    first, second = pack_speech(speech((1, 11), (12, 30), (40, 45)), WINDOW)
    assert first.pieces == (SpeechSpan(100, 1100), SpeechSpan(1200, 3000))
    assert second.pieces == (SpeechSpan(4000, 4500),)


def test_long_speech_is_cut_at_the_window() -> None:
    assert [window.n_frames for window in pack_speech(speech((0, 70)), WINDOW)] == [3000, 3000, 1000]


def test_no_window_reaches_across_a_break() -> None:
    windows = pack_speech(speech((1, 3), (4, 6), (14, 16), (17, 19)), WINDOW, breaks=[1000])
    assert [window.pieces for window in windows] == [
        (SpeechSpan(100, 300), SpeechSpan(400, 600)),
        (SpeechSpan(1400, 1600), SpeechSpan(1700, 1900)),
    ]


def test_times_are_found_again_across_pauses() -> None:
    window = Window((SpeechSpan(100, 300), SpeechSpan(1000, 1100)))
    assert window.recording_s(0.5) == 1.5
    assert window.recording_s(2.0, is_end=True) == 3.0  # the first piece ends here
    assert window.recording_s(2.0) == 10.0  # and the second begins
    assert window.recording_s(2.5) == 10.5
    assert window.recording_s(9.0, is_end=True) == 11.0  # never beyond the speech


spans = st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 8000)), max_size=12)


@given(spans)
def test_every_frame_of_speech_is_read_once(gaps: list[tuple[int, int]]) -> None:
    segments, now = [], 0
    for gap, length in gaps:
        segments.append(SpeechSegment((now + gap) * 160, (now + gap + length) * 160))
        now += gap + length
    windows = list(pack_speech(segments, WINDOW))
    read = [frame for w in windows for piece in w.pieces for frame in range(piece.start, piece.end)]
    expected = [f for s in segments for f in range(s.start_sample // 160, s.end_sample // 160)]
    assert read == expected
    assert all(0 < window.n_frames <= WINDOW for window in windows)


def packed(gaps: list[tuple[int, int]]) -> Window:
    pieces, now = [], 0
    for gap, length in gaps:
        pieces.append(SpeechSpan(now + gap, now + gap + length))
        now += gap + length
    return Window(tuple(pieces))


WINDOWS = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=1, max_size=6).map(packed)


@given(WINDOWS, st.data())
def test_later_in_the_window_is_later_in_the_recording(window: Window, data: st.DataObject) -> None:
    seconds = st.floats(0, window.n_frames / 100)
    early, late = sorted((data.draw(seconds), data.draw(seconds)))
    assert window.recording_s(early) <= window.recording_s(late)
    assert window.recording_s(early, is_end=True) <= window.recording_s(early)


@given(WINDOWS, st.data())
def test_a_split_window_is_read_as_before(window: Window, data: st.DataObject) -> None:
    assume(window.n_frames > 1)
    at = data.draw(st.integers(1, window.n_frames - 1))
    parts = window.split(at)

    def frames(part: Window) -> list[int]:
        return [frame for piece in part.pieces for frame in range(piece.start, piece.end)]

    assert parts[0].n_frames == at
    assert frames(parts[0]) + frames(parts[1]) == frames(window)


CLIPS = Path(__file__).parents[2] / "examples" / "clips"
MIXED = CLIPS / "mixed.flac"


def noise(seconds: float, quiet: tuple[float, ...] = ()) -> Samples:
    """Noise that is quieter for a twentieth of a second at some times."""
    samples = np.random.default_rng(0).standard_normal(round(seconds * SAMPLE_RATE)).astype(np.float32) * 0.01
    for at in quiet:
        samples[round(at * SAMPLE_RATE) : round((at + 0.05) * SAMPLE_RATE)] *= 1e-3
    return samples


def without_pauses() -> Samples:
    """The parts of the mixed clip one right after the other."""
    samples = load_audio(MIXED)
    parts = [np.zeros(SAMPLE_RATE // 2, np.float32)]
    for item in json.loads((CLIPS / "manifest.jsonl").read_text("utf-8").splitlines()[-1])["segments"]:
        start, end = round(item["start"] * SAMPLE_RATE), round(item["end"] * SAMPLE_RATE)
        inside = speech_segments(samples[start:end], PIECE_VAD)
        parts.append(samples[start + inside[0].start_sample : start + inside[-1].end_sample])
    return np.concatenate([*parts, np.zeros(SAMPLE_RATE, np.float32)])


def test_a_language_ends_at_the_quietest_moment_of_the_pause() -> None:
    samples = noise(3)
    samples[round(1.4 * SAMPLE_RATE) : round(1.5 * SAMPLE_RATE)] *= 1e-3
    with Recording(samples) as recording, RecordingFeatures(recording) as features:
        assert energy_minimum(features, SpeechSpan(0, 100), SpeechSpan(200, 300)) == pytest.approx(145, abs=5)


def test_without_a_pause_it_may_end_where_pieces_were_cut_apart_and_at_quiet_moments() -> None:
    with Recording(noise(6, (2.0, 3.6))) as recording, RecordingFeatures(recording) as features:
        first, *others = energy_minima(features, SpeechSpan(0, 300), SpeechSpan(300, 600))
        assert first == 300
        assert others[:2] == [pytest.approx(202, abs=3), pytest.approx(362, abs=3)]
        assert len(set(others)) == len(others) <= 5
        assert energy_minima(features, SpeechSpan(0, 50), SpeechSpan(50, 100)) == [50], (
            "nothing would be left beside it"
        )


def test_long_speech_is_cut_at_quiet_moments_without_losing_a_frame() -> None:
    samples = without_pauses()
    speech = SpeechFinder(PIECE_VAD)
    with Recording(samples) as recording, RecordingFeatures(recording, observer=speech) as features:
        end = len(samples) // 160
        features.has(end + 100)
        whole, parts = pieces_between(speech, 0, end), speech_pieces(features, speech, 0, end)
        assert max(item.n_frames for item in whole) > 100 * LONGEST_S, "or this test shows nothing"
        assert max(item.n_frames for item in parts) <= 100 * LONGEST_S
        for item in whole:
            inside = [part for part in parts if item.start <= part.start and part.end <= item.end]
            assert (inside[0].start, inside[-1].end) == (item.start, item.end)
            assert all(part.end == following.start for part, following in pairwise(inside))
            assert len(inside) == 1 or min(part.n_frames for part in inside) >= 100 * LEAST_S


def test_where_speech_is_cut_does_not_hang_on_what_follows() -> None:
    """So that a window that reaches farther knows the pieces of the one before."""
    samples = without_pauses()
    speech = SpeechFinder(PIECE_VAD)
    with Recording(samples) as recording, RecordingFeatures(recording, observer=speech) as features:
        end = len(samples) // 160
        features.has(end + 100)
        parts = speech_pieces(features, speech, 0, end)
        for until in range(600, end, 150):
            shorter = speech_pieces(features, speech, 0, until)
            assert [part for part in shorter if part.end < until - 100 * LONGEST_S - 100 * LEAST_S] == [
                part for part in parts if part.end < until - 100 * LONGEST_S - 100 * LEAST_S
            ]


class Found(SpeechFinder):
    """Finds the given speech, of which no pause separates the parts."""

    def __init__(self, result: list[SpeechSegment]) -> None:
        self.result = result

    def segments(self, start_sample: int = 0, end_sample: int | None = None) -> list[SpeechSegment]:
        return self.result


def test_pieces_do_not_overlap_where_speech_is_cut_within_a_frame() -> None:
    """Two pieces that begin at the same frame have nothing between them that a probe could encode."""
    finder = Found([SpeechSegment(16000, 16100), SpeechSegment(16100, 32000)])
    assert pieces_between(finder, 0, 300) == [SpeechSpan(100, 101), SpeechSpan(101, 200)]
    finder = Found([SpeechSegment(16000, 16020), SpeechSegment(16020, 16040), SpeechSegment(16040, 32000)])
    assert pieces_between(finder, 0, 150) == [SpeechSpan(100, 101), SpeechSpan(101, 150)]
