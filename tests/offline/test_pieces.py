"""Speech in pieces of one language each: cut at pauses, and where there are none at quiet moments."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sottovoce.audio.features import RecordingFeatures
from sottovoce.audio.io import load_audio
from sottovoce.audio.recording import Recording
from sottovoce.audio.vad import SpeechFinder, speech_segments
from sottovoce.offline.pieces import (
    LEAST_S,
    LONGEST_S,
    PIECE_VAD,
    Piece,
    pieces_between,
    quiet_moments,
    quietest_moment,
    speech_pieces,
)
from sottovoce.types import SAMPLE_RATE, Samples

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
    for one in json.loads((CLIPS / "manifest.jsonl").read_text("utf-8").splitlines()[-1])["segments"]:
        start, end = round(one["start"] * SAMPLE_RATE), round(one["end"] * SAMPLE_RATE)
        inside = speech_segments(samples[start:end], PIECE_VAD)
        parts.append(samples[start + inside[0].start_sample : start + inside[-1].end_sample])
    return np.concatenate([*parts, np.zeros(SAMPLE_RATE, np.float32)])


def test_a_language_ends_at_the_quietest_moment_of_the_pause() -> None:
    samples = noise(3)
    samples[round(1.4 * SAMPLE_RATE) : round(1.5 * SAMPLE_RATE)] *= 1e-3
    with Recording(samples) as recording, RecordingFeatures(recording) as features:
        assert quietest_moment(features, Piece(0, 100), Piece(200, 300)) == pytest.approx(145, abs=5)


def test_without_a_pause_it_may_end_where_pieces_were_cut_apart_and_at_quiet_moments() -> None:
    with Recording(noise(6, (2.0, 3.6))) as recording, RecordingFeatures(recording) as features:
        first, *others = quiet_moments(features, Piece(0, 300), Piece(300, 600))
        assert first == 300
        assert others[:2] == [pytest.approx(202, abs=3), pytest.approx(362, abs=3)]
        assert len(set(others)) == len(others) <= 5
        assert quiet_moments(features, Piece(0, 50), Piece(50, 100)) == [50], (
            "nothing would be left beside it"
        )


def test_long_speech_is_cut_at_quiet_moments_without_losing_a_frame() -> None:
    samples = without_pauses()
    speech = SpeechFinder(PIECE_VAD)
    with Recording(samples) as recording, RecordingFeatures(recording, observer=speech) as features:
        end = len(samples) // 160
        features.has(end + 100)
        whole, parts = pieces_between(speech, 0, end), speech_pieces(features, speech, 0, end)
        assert max(one.n_frames for one in whole) > 100 * LONGEST_S, "or this test shows nothing"
        assert max(one.n_frames for one in parts) <= 100 * LONGEST_S
        for one in whole:
            inside = [part for part in parts if one.start <= part.start and part.end <= one.end]
            assert (inside[0].start, inside[-1].end) == (one.start, one.end)
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
            assert [one for one in shorter if one.end < until - 100 * LONGEST_S - 100 * LEAST_S] == [
                one for one in parts if one.end < until - 100 * LONGEST_S - 100 * LEAST_S
            ]
