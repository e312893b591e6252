"""Whole recordings through the library: what is asked for, watched, stopped, and done together."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sottovoce.audio.io import Recording
from sottovoce.errors import AudioError
from sottovoce.models.backend import EncoderOutput
from sottovoce.offline.pipeline import transcriber_for
from sottovoce.offline.transcription import FileTranscription, RunControl, transcribe_batch
from sottovoce.options.decoding import DecodingOptions, FallbackOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.calls import DirectRuntime
from sottovoce.types import (
    Features,
    Samples,
    Segment,
    Transcript,
)
from tests.decoding import rig
from tests.offline.transcribing import (
    ENGLISH,
    HELLO,
    PAIRS,
    TOKENIZER,
    at,
    read,
    run,
    rustle,
    script,
    transcribe,
)
from tests.runtime.fake import FakeBackend

MINUTE = script(at(0), HELLO, at(10))


class Listening(FakeBackend):
    """Keeps the prompts that it reads, and how many windows came at a time."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.prompts: list[list[int]] = []
        self.batches: list[int] = []

    def encode(self, features: Features) -> EncoderOutput:
        self.batches.append(len(features.n_content_frames))
        return super().encode(features)

    def note_step(self, tokens: Sequence[Sequence[int]]) -> None:
        self.prompts.extend(list(new) for new in tokens if len(new) > 1)


@pytest.mark.parametrize(("seconds", "n_windows"), [(15.05, 3), (15.2, 4), (0.05, 1)])
def test_a_rest_without_room_for_a_word_is_not_read(seconds: float, n_windows: int) -> None:
    backend = FakeBackend(PAIRS)
    read(backend, rustle(seconds), ENGLISH)
    assert backend.n_encoded == n_windows


def test_a_part_of_a_recording_keeps_its_times() -> None:
    options = replace(ENGLISH, offset_s=20.0, duration_s=25.0)
    segments, _ = run(MINUTE, rustle(90.0), options)
    assert [(segment.start, segment.end) for segment in segments] == [(20, 30)]
    segments, _ = run(MINUTE, rustle(90.0), replace(ENGLISH, offset_s=50.0))
    assert [segment.start for segment in segments] == [50, 80]
    with pytest.raises(AudioError, match=r"a start before its end at 9\.00 s, got 50\.0 s"):
        run(MINUTE, rustle(9.0), replace(ENGLISH, offset_s=50.0))
    with pytest.raises(AudioError, match="expected a start before its end"):
        run(MINUTE, rustle(9.0), replace(ENGLISH, mode="vad", offset_s=50.0))


def opened(backend: FakeBackend, samples: Samples, control: RunControl | None = None) -> FileTranscription:
    transcriber = transcriber_for(DirectRuntime(backend), TOKENIZER, ENGLISH, None)
    return FileTranscription(transcriber, Recording(samples), control, model="fake")


def test_progress_is_told_and_rises_to_the_end() -> None:
    reported: list[tuple[float, float | None]] = []
    result = opened(FakeBackend(MINUTE), rustle(95.0), RunControl(lambda *each: reported.append(each)))
    assert len(list(result)) == 4
    assert reported == [(30.0, 95.0), (60.0, 95.0), (90.0, 95.0), (95.0, 95.0)]


def test_what_was_found_before_an_abort_stays() -> None:
    backend = FakeBackend(MINUTE)
    result = opened(backend, rustle(300.0), RunControl(abort=lambda: backend.n_encoded >= 2))
    transcript = result.collect()
    assert [segment.start for segment in transcript.segments] == [0]
    assert (transcript.text, transcript.language, transcript.duration) == ("hello", "en", 300.0)
    assert backend.n_encoded == 2
    assert (*result,) == transcript.segments


def test_close_from_another_thread_ends_the_iteration() -> None:
    reached, go_on = threading.Event(), threading.Event()

    class Slow(FakeBackend):
        def encode(self, features: Features) -> EncoderOutput:
            if self.n_encoded == 1:
                reached.set()
                assert go_on.wait(10)
            return super().encode(features)

    backend = Slow(MINUTE)
    result = opened(backend, rustle(300.0))
    actual: list[Segment] = []
    thread = threading.Thread(target=lambda: actual.extend(result))
    thread.start()
    assert reached.wait(10)
    result.close()
    go_on.set()
    thread.join(10)
    assert not thread.is_alive()
    assert [segment.start for segment in actual] == [0]
    assert backend.n_encoded == 2
    assert result.segments == tuple(actual)
    result.close()


def test_the_text_of_a_recording() -> None:
    result = opened(FakeBackend(MINUTE), rustle(65.0))
    first = next(result)
    assert result.text == "hello hello hello"
    assert result.segments[0] is first
    assert len(result.collect().segments) == 3


def together(
    backend: FakeBackend, sources: Iterable[Samples | Path], batch_size: int
) -> list[Transcript | Exception]:
    transcriber = transcriber_for(DirectRuntime(backend), TOKENIZER, ENGLISH, None)
    pairs = transcribe_batch(transcriber, sources, Recording, batch_size=batch_size, model="fake")
    return [outcome for _, outcome in pairs]


def test_recordings_share_batches_and_come_in_order() -> None:
    backend = Listening(MINUTE)
    lengths = (65.0, 31.0, 5.0, 125.0, 29.0)
    outcomes = together(backend, [rustle(length) for length in lengths], 3)
    assert [outcome.duration for outcome in outcomes if isinstance(outcome, Transcript)] == list(lengths)
    n_windows = [3, 2, 1, 5, 1]
    assert [len(outcome.segments) for outcome in outcomes if isinstance(outcome, Transcript)] == n_windows
    assert sum(backend.batches) == sum(n_windows)
    assert max(backend.batches) == 3
    # Two at a time at first; later ones join when they are opened in time.
    assert len(backend.batches) <= 9


@pytest.mark.failing_batch
@pytest.mark.parametrize(
    "error", [RuntimeError("out of memory"), IndexError("9"), AssertionError()], ids=repr
)
def test_a_recording_that_fails_harms_no_other(tmp_path: Path, error: Exception) -> None:
    class Poisoned(FakeBackend):
        def encode(self, features: Features) -> EncoderOutput:
            if float(features.mel[..., :100].mean(axis=(1, 2)).max()) > 0.5:
                raise error
            return super().encode(features)

    loud = np.random.default_rng(0).normal(0, 0.1, 16000 * 40).astype(np.float32)
    sources = [rustle(40.0), tmp_path / "missing.wav", loud, rustle(70.0)]
    outcomes = together(Poisoned(MINUTE), sources, 4)
    assert isinstance(outcomes[1], AudioError)
    assert outcomes[2] is error
    assert [len(outcome.segments) for outcome in outcomes if isinstance(outcome, Transcript)] == [2, 3]


def test_sources_are_taken_as_they_are_needed() -> None:
    taken = 0

    def sources() -> Iterable[Samples]:
        nonlocal taken
        for _ in range(50):
            taken += 1
            yield rustle(5.0)

    transcriber = transcriber_for(DirectRuntime(FakeBackend(MINUTE)), TOKENIZER, ENGLISH, None)
    pairs = transcribe_batch(transcriber, sources(), Recording, batch_size=2, model="fake")
    next(pairs)
    assert taken <= 4


@pytest.mark.parametrize("mode", ["seek", "vad"])
def test_the_text_together_is_that_of_each_alone(mode: str) -> None:
    model = rig.backend(n_text_ctx=32, n_audio_ctx=200)
    decoding = DecodingOptions("en", sample_len=6)
    options = TranscribeOptions(
        decoding,
        FallbackOptions((0.0, 0.4), logprob_threshold=-3.0, no_speech_threshold=None),
        mode=mode,  # type: ignore[arg-type]
        word_timestamps=True,
    )
    generator = np.random.default_rng(1)
    sources = [generator.normal(0, 0.1, 16000 * n).astype(np.float32) for n in (9, 5, 7)]
    transcriber = transcriber_for(DirectRuntime(model), rig.tokenizer(), options, None)
    pairs = transcribe_batch(transcriber, sources, Recording, batch_size=3, model="x")
    for samples, outcome in pairs:
        assert isinstance(outcome, Transcript)
        with Recording(samples) as recording:
            alone = list(transcribe(model, rig.tokenizer(), recording, options))
        assert [
            (segment.text, segment.start, segment.end, segment.temperature) for segment in outcome.segments
        ] == [(segment.text, segment.start, segment.end, segment.temperature) for segment in alone]
