"""A channel for each speaker: by level, and each transcribed by itself."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sottovoce import FallbackOptions, Model, TranscribeOptions
from sottovoce.audio.io import Recording, load_audio
from sottovoce.errors import AudioError
from sottovoce.speakers.diarize import ChannelDiarizer, leaks, levels_db
from sottovoce.types import SAMPLE_RATE, Samples, Turn
from tests.audio.media import wav_bytes

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
ONCE = FallbackOptions(temperatures=(0.0,))


def noise(start: float, end: float, seconds: float, seed: int = 0) -> Samples:
    samples = np.zeros(int(seconds * SAMPLE_RATE), np.float32)
    span = slice(int(start * SAMPLE_RATE), int(end * SAMPLE_RATE))
    size = span.stop - span.start
    samples[span] = 0.1 * np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    return samples


def near(turns: list[Turn], expected: list[Turn]) -> bool:
    times = [np.array([(turn.start, turn.end) for turn in each]) for each in (turns, expected)]
    speakers = [[turn.speaker for turn in each] for each in (turns, expected)]
    return speakers[0] == speakers[1] and bool(np.abs(times[0] - times[1]).max() < 0.2)


@pytest.mark.parametrize("leak", [0.0, 0.2])
def test_the_loudest_channel_speaks(leak: float) -> None:
    left = noise(0.0, 2.0, 8.0, seed=1) + noise(4.0, 6.0, 8.0, seed=2)
    right = noise(2.0, 3.0, 8.0, seed=3) + noise(5.0, 7.0, 8.0, seed=4)
    heard = np.stack([left + leak * right, right + leak * left])
    detected = ChannelDiarizer().turns(Recording(heard))
    expected = [Turn(0.0, 2.0, "A"), Turn(2.0, 3.0, "B"), Turn(4.0, 6.0, "A"), Turn(5.0, 7.0, "B")]
    assert near(detected, expected)


def test_names_are_those_of_channels_whoever_begins() -> None:
    silent = np.zeros(4 * SAMPLE_RATE, np.float32)
    heard = np.stack([silent, noise(0.5, 2.0, 4.0), silent])
    assert {turn.speaker for turn in ChannelDiarizer().turns(Recording(heard))} == {"B"}
    hiss = 1e-6 * np.random.default_rng(0).standard_normal((2, 100)).astype(np.float32)
    assert ChannelDiarizer().turns(Recording(hiss)) == []


@pytest.mark.parametrize(
    ("channels", "message"), [(1, "got 1 channel"), (2, "got the same sound in all")], ids=["mono", "same"]
)
def test_channels_that_say_nothing_of_speakers(channels: int, message: str) -> None:
    heard = np.stack([noise(0.5, 2.0, 4.0)] * channels)
    with pytest.raises(AudioError, match=message):
        ChannelDiarizer().turns(Recording(heard))


def test_levels_do_not_depend_on_blocks() -> None:
    samples = np.random.default_rng(0).standard_normal((2, 5000)).astype(np.float32)
    whole = levels_db([samples])
    pieces = levels_db([samples[:, :37], samples[:, 37:3000], samples[:, 3000:]])
    np.testing.assert_allclose(whole, pieces, atol=1e-3)


def two_channels() -> Samples:
    """One clip on the left, and after it another on the right."""
    left, right = load_audio(CLIPS / "de.flac"), load_audio(CLIPS / "en.flac")
    gap = np.zeros(SAMPLE_RATE, np.float32)
    return np.stack(
        [
            np.concatenate([left, gap, np.zeros_like(right)]),
            np.concatenate([np.zeros_like(left), gap, right]),
        ]
    )


def test_channels_apart_are_those_of_each_by_itself(model: Model) -> None:
    both = two_channels()
    options = TranscribeOptions(mode="vad", fallback=ONCE)
    alone = [model.transcribe(channel, options=options, language="de").collect() for channel in both]
    apart = replace(options, channels="apart")
    transcript = model.transcribe(both, options=apart, language="de").collect()
    for speaker, expected in zip("AB", alone, strict=True):
        segments_of_speaker = [segment for segment in transcript.segments if segment.speaker == speaker]
        assert [segment.text for segment in segments_of_speaker] == [
            segment.text for segment in expected.segments
        ]
    assert transcript.segments
    assert [segment.start for segment in transcript.segments] == sorted(s.start for s in transcript.segments)
    assert [segment.id for segment in transcript.segments] == list(range(len(transcript.segments)))
    assert transcript.duration == pytest.approx(both.shape[1] / SAMPLE_RATE, abs=0.01)
    assert {turn.speaker for turn in transcript.turns} == {"A", "B"}
    crosstalk = model.transcribe(both + 0.1 * both[::-1], options=apart, language="de").collect()
    said = [(segment.speaker, segment.text) for segment in crosstalk.segments]
    assert said == [(segment.speaker, segment.text) for segment in transcript.segments]


def test_crosstalk_is_silenced_and_speech_of_the_channel_is_kept() -> None:
    left = noise(1.0, 3.0, 10.0, seed=1) + 0.4 * noise(6.0, 8.0, 10.0, seed=2)  # there it is 8 dB quieter
    right = noise(4.0, 8.0, 10.0, seed=3)
    with Recording(np.stack([left + 0.1 * right, right + 0.1 * left])) as recording:
        spans = leaks(recording)
        ((first_span,), (second_span,)) = spans
        assert np.array(first_span) / SAMPLE_RATE == pytest.approx([4.0, 6.0], abs=0.2)
        assert np.array(second_span) / SAMPLE_RATE == pytest.approx([1.0, 3.0], abs=0.2)
        left_part, right_part = recording.channels(spans)
        first, second = (np.concatenate([c.samples for c in each.open()]) for each in (left_part, right_part))
    assert not first[round(4.3 * SAMPLE_RATE) : round(5.7 * SAMPLE_RATE)].any()
    assert not second[round(1.3 * SAMPLE_RATE) : round(2.7 * SAMPLE_RATE)].any()
    np.testing.assert_array_equal(first[6 * SAMPLE_RATE :], (left + 0.1 * right)[6 * SAMPLE_RATE :])
    assert leaks(Recording(np.zeros((2, 16_000), np.float32))) == [[], []]


def test_no_line_of_a_call_is_silenced_where_levels_differ() -> None:
    """Two ends recorded 20 dB apart, and nothing comes through a room."""
    loud, quiet = noise(0.0, 4.0, 8.0, seed=1), 0.1 * noise(2.0, 6.0, 8.0, seed=2)
    _, (silent,) = leaks(Recording(np.stack([loud, quiet])))
    assert silent[1] <= 2.0 * SAMPLE_RATE


def test_a_file_object_serves_two_readers(model: Model) -> None:
    both = np.stack([noise(0.0, 1.0, 3.0, seed=1), noise(1.0, 2.0, 3.0, seed=2)])
    file = io.BytesIO(b"xx" + wav_bytes(both))
    file.seek(2)  # it is read from where it stands
    with Recording(file) as recording:
        left_part, right_part = recording.channels()
        with left_part.open() as first, right_part.open() as second:
            pairs = [(a.samples, b.samples) for a, b in zip(first, second, strict=True)]
    left, right = (np.concatenate(side) for side in zip(*pairs, strict=True))
    np.testing.assert_allclose(left, both[0], atol=1e-3)
    np.testing.assert_allclose(right, both[1], atol=1e-3)
