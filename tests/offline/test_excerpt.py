"""A part of a recording is transcribed as the samples that are cut out, with the times of the whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.audio.container import ContainerDecoder
from sottovoce.audio.io import load_audio
from sottovoce.options.decoding import DecodingOptions, FallbackOptions, VadOptions
from sottovoce.options.transcribe import Mode, TranscribeOptions
from sottovoce.types import SAMPLE_RATE, Segment
from tests.audio.media import encoded_bytes

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
MODES: tuple[Mode, ...] = ("seek", "vad")
GREEDY = TranscribeOptions(
    decoding=DecodingOptions(language="de"),
    fallback=FallbackOptions((0.0,)),
    word_timestamps=True,
    audio_ctx=500,
)
"""Windows of ten seconds, each decoded once."""


@pytest.fixture(scope="module")
def long() -> bytes:
    """Minutes of silence around two clips, as flac; a noise that is louder than they are at the end."""
    samples = np.zeros(200 * SAMPLE_RATE, np.float32)
    clip = 0.1 * load_audio(CLIPS / "de.flac")
    for start_s in (100, 104):
        samples[start_s * SAMPLE_RATE : start_s * SAMPLE_RATE + len(clip)] = clip
    samples[-SAMPLE_RATE:] = np.random.default_rng(0).uniform(-1, 1, SAMPLE_RATE)
    return encoded_bytes(samples, rate=SAMPLE_RATE, container="flac", codec="flac")


def later(segments: tuple[Segment, ...], seconds: float) -> list[tuple[object, ...]]:
    """Texts, times and words of segments, moved."""
    return [
        (
            segment.text,
            pytest.approx(segment.start + seconds, abs=1e-3),
            pytest.approx(segment.end + seconds, abs=1e-3),
            [
                (
                    word.word,
                    pytest.approx(word.start + seconds, abs=1e-3),
                    word.probability,
                    [pytest.approx(token.end + seconds, abs=2e-3) for token in word.tokens],
                )
                for word in segment.words or ()
            ],
        )
        for segment in segments
    ]


@pytest.mark.parametrize("mode", MODES)
def test_a_part_is_read_as_if_it_were_all_there_is(model: Model, long: bytes, mode: Mode) -> None:
    vad = VadOptions(max_speech_s=30.0) if mode == "vad" else None
    plain = replace(GREEDY, mode=mode, vad=vad)
    cut = model.transcribe(load_audio(long, 99.5, 9.0), options=plain).collect()
    part = model.transcribe(long, options=replace(plain, offset_s=99.5, duration_s=9.0)).collect()
    assert len(cut.segments) >= 1
    assert later(part.segments, 0.0) == later(cut.segments, 99.5)
    assert part.duration == pytest.approx(200.0)  # of the recording
    rest = model.transcribe(long, options=replace(plain, offset_s=103.5)).collect()
    assert rest.text
    assert all(103.5 <= segment.start < segment.end <= 200.0 for segment in rest.segments)


def test_tokens_have_the_times_of_the_recording_in_packed_windows(model: Model, long: bytes) -> None:
    result = model.transcribe(long, options=replace(GREEDY, mode="vad")).collect()
    words = [word for segment in result.segments for word in segment.words or ()]
    assert words
    assert all(abs(token.start - word.start) < 2.0 for word in words for token in word.tokens)


@pytest.mark.parametrize("mode", MODES)
def test_a_part_costs_what_a_part_costs(
    model: Model, long: bytes, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in samples: one reading finds the loudest moment, another one speech."""
    seconds: list[float] = []
    decode = ContainerDecoder._decoded

    def counted(decoder: ContainerDecoder, packet: object) -> list[object]:
        frames = decode(decoder, packet)  # type: ignore[arg-type]
        seconds.extend(frame.samples / frame.sample_rate for frame in frames)
        return frames  # type: ignore[return-value]

    monkeypatch.setattr(ContainerDecoder, "_decoded", counted)
    options = replace(GREEDY, mode=mode, offset_s=100.0, duration_s=8.0)
    assert model.transcribe(long, options=options).text
    n_readings = 2 if mode == "vad" else 1
    assert sum(seconds) < n_readings * 12.0
    seconds.clear()
    clips = replace(GREEDY, clip_timestamps=(100.0, 108.0))
    assert model.transcribe(long, options=clips).collect()
    assert sum(seconds) >= 200.0  # the loudest moment of the whole recording


def test_progress_is_that_of_the_recording(model: Model, long: bytes) -> None:
    reported: list[tuple[float, float | None]] = []
    model.transcribe(
        long,
        options=replace(GREEDY, offset_s=100.0, duration_s=8.0),
        on_progress=lambda position, duration: reported.append((position, duration)),
    ).collect()
    assert reported
    assert all(
        100.0 <= position <= 108.0 and duration == pytest.approx(200.0) for position, duration in reported
    )


def test_a_part_of_channels(model: Model) -> None:
    left = right = load_audio(CLIPS / "de.flac")
    n = len(left) + len(right) + 13 * SAMPLE_RATE
    both = np.zeros((2, n), np.float32)
    both[0, 12 * SAMPLE_RATE : 12 * SAMPLE_RATE + len(left)] = left
    both[1, n - len(right) :] = right
    options = TranscribeOptions(decoding=DecodingOptions(language="de"), channels="energy", offset_s=11.5)
    result = model.transcribe(both, options=options).collect()
    assert result.turns
    assert all(turn.start >= 11.5 for turn in result.turns)
    assert {word.speaker for segment in result.segments for word in segment.words or ()} == {"A", "B"}
