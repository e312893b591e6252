"""A window that is not full costs the frames of its audio, and is encoded once, whoever asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sottovoce.audio.io import Recording
from sottovoce.models.backend import EncoderOutput, IncrementalResult, IncrementalWindow
from sottovoce.models.dims import BASE, DENSE, EncoderMode
from sottovoce.offline.pipeline import transcriber_for
from sottovoce.offline.transcription import transcribe_batch
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.calls import DirectRuntime
from sottovoce.types import Features
from tests.offline.transcribing import HELLO, TOKENIZER, at, read, rustle, script, voice
from tests.runtime.fake import FakeBackend

FULL = 1500
PADDING = replace(BASE, stride=10).padding(150, FULL).n_frames
SAID = script(at(0), HELLO, HELLO, HELLO, at(2.5))


class Counting(FakeBackend):
    """Counts the encoder frames of each window."""

    def __init__(self, mode: EncoderMode = BASE) -> None:
        super().__init__(SAID)
        self.encoder_mode = mode
        self.frames: list[int] = []

    def encode(self, features: Features) -> EncoderOutput:
        n_windows, _, n_frames = features.mel.shape
        self.frames += [n_frames // 2] * n_windows
        return super().encode(features)

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        results = super().encode_incremental(windows)
        self.frames += [result.n_computed for result in results]
        return results


def options(language: str | None = "en", **chosen: Any) -> TranscribeOptions:
    return TranscribeOptions(decoding=DecodingOptions(language=language), **chosen)


@pytest.mark.parametrize("language", ["en", None])
@pytest.mark.parametrize("mode", ["seek", "vad"])
def test_three_seconds_cost_the_frames_of_three_seconds(language: str | None, mode: Any) -> None:
    """Also to detect their language."""
    backend = Counting()
    chosen = options(language, mode=mode, follow_languages=False)
    segments = read(backend, voice(3.0, (0.0, 3.0)), chosen)
    assert [segment.text for segment in segments] == [" hello hello hello"]
    assert backend.frames == [150 + PADDING]
    assert PADDING < FULL / 7


def test_the_last_window_of_a_recording_costs_what_is_left_of_it() -> None:
    backend = Counting()
    with Recording(rustle(40.0)) as recording:
        list(transcribe_batch_of(backend, recording))
    assert backend.frames[0] == FULL
    assert sum(backend.frames[1:]) < FULL


def transcribe_batch_of(backend: FakeBackend, *recordings: Recording, **chosen: Any) -> list[Any]:
    transcriber = transcriber_for(DirectRuntime(backend), TOKENIZER, options(**chosen), None)
    return list(transcribe_batch(transcriber, recordings, lambda one: one, batch_size=3, model="fake"))


def test_recordings_that_are_read_together_cost_what_they_cost_alone() -> None:
    lengths, costs, alone = (3.0, 7.0, 5.01), list[int](), []
    for length in lengths:
        backend = Counting()
        with Recording(rustle(length)) as recording:
            alone += transcribe_batch_of(backend, recording)
        costs += backend.frames
    backend, recordings = Counting(), [Recording(rustle(length)) for length in lengths]
    together = transcribe_batch_of(backend, *recordings)
    assert sorted(backend.frames) == sorted(costs)
    assert [found.text for _, found in together] == [found.text for _, found in alone]


@pytest.mark.parametrize(
    ("mode", "chosen"),
    [(DENSE, {}), (BASE, {"read_again": False}), (BASE, {"audio_ctx": FULL})],
)
def test_windows_are_full_without_a_mode_and_where_they_are_asked_for(
    mode: EncoderMode, chosen: dict[str, Any]
) -> None:
    backend = Counting(mode)
    read(backend, voice(3.0, (0.0, 3.0)), options(follow_languages=False, **chosen))
    assert backend.frames == [FULL]
