"""Text around missing sound has times at which there is sound."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.audio.io import Recording
from sottovoce.offline.pipeline import outside_silences
from sottovoce.types import SAMPLE_RATE, Segment, Word
from tests.audio.stamped import stamped_bytes

NOISE = (0.2 * np.random.default_rng(3).standard_normal(9 * SAMPLE_RATE)).astype(np.float32)
Times = tuple[float, float]


def mended(segment: Times, words: list[Times] | None = None) -> tuple[Times, list[Times]]:
    """Read a recording with sound from 0 to 3 and from 10 to 15 s, of which 4 to 9.5 s are missing."""
    sound = NOISE.copy()
    sound[3 * SAMPLE_RATE : round(4.5 * SAMPLE_RATE)] = 0.0
    data = stamped_bytes(
        sound, lambda t: t + 5.5 * (t > 4), container="matroska", codec="pcm_s16le", rate=16_000
    )

    timed = None if words is None else tuple(Word(" a", *times, 1.0) for times in words)
    with Recording(data) as recording:
        with recording.open() as reader:
            list(reader)
        result = outside_silences(Segment(0, *segment, " a", "en", words=timed), recording.silences())
    return (result.start, result.end), [(word.start, word.end) for word in result.words or ()]


@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        ((9.6, 12.0), (10.0, 12.0)),  # begins in the pause behind the missing sound
        ((5.0, 12.0), (10.0, 12.0)),
        ((1.0, 3.5), (1.0, 3.0)),
        ((1.0, 10.2), (1.0, 3.0)),
        ((2.9, 14.0), (10.0, 14.0)),
        ((1.0, 12.0), (1.0, 12.0)),  # text on both sides
        ((0.0, 2.5), (0.0, 2.5)),
        ((11.0, 12.0), (11.0, 12.0)),
    ],
)
def test_segments(segment: Times, expected: Times) -> None:
    assert mended(segment)[0] == pytest.approx(expected, abs=0.01)


def test_words_are_on_one_side() -> None:
    words = [(1.0, 2.0), (2.0, 10.5), (2.8, 11.0), (11.0, 12.0)]
    expected = [(1.0, 2.0), (2.0, 3.0), (10.0, 11.0), (11.0, 12.0)]
    np.testing.assert_allclose(mended((1.0, 12.0), words)[1], expected, atol=0.01)
