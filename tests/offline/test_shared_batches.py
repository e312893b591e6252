"""Recordings that share batches, and windows that cost the frames of their audio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from queue import Queue
from threading import Thread
from typing import Any

import pytest

from sottovoce.audio.io import Recording
from sottovoce.models.backend import Backend, EncoderOutput, IncrementalResult, IncrementalWindow
from sottovoce.models.dims import BASE, DENSE, EncoderMode
from sottovoce.offline.pipeline import transcriber_for
from sottovoce.offline.transcription import FileTranscription, transcribe_batch
from sottovoce.options.decoding import DecodingOptions, FallbackOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.batching import (
    Batching,
    BatchingRuntime,
    CallBatcher,
    Caller,
    PendingRequest,
    Priority,
)
from sottovoce.runtime.calls import DecodeCall, DirectRuntime, RunOnHost, Runtime
from sottovoce.types import Features, Samples
from tests.offline.test_recordings import MINUTE, Listening
from tests.offline.transcribing import ENGLISH, HELLO, TOKENIZER, at, read, rustle, script, voice
from tests.runtime.fake import FakeBackend
from tests.runtime.noting import Noting


def opened(
    runtime: Runtime, samples: Samples, options: TranscribeOptions = ENGLISH, tokenizer: object = TOKENIZER
) -> FileTranscription:
    transcriber = transcriber_for(runtime, tokenizer, options, None)  # type: ignore[arg-type]
    return FileTranscription(transcriber, Recording(samples), model="fake")


@pytest.mark.parametrize("encodes_together", [True, False])
def test_those_who_wait_share_batches(encodes_together: bool) -> None:
    backend = Listening(MINUTE)
    limits = Batching(files=4, files_together=encodes_together)
    runtime = BatchingRuntime(backend, limits, waits_for_all=True)

    def n_segments(length_s: float) -> int:
        with runtime.caller(Priority.FILE) as caller:
            return len(list(opened(caller, rustle(length_s))))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(n_segments, (65.0, 5.0, 125.0, 29.0, 31.0))) == [3, 1, 5, 1, 2]
    runtime.close()
    assert sum(backend.batches) == 12
    assert max(backend.batches) == (4 if encodes_together else 1)


def test_other_options_are_decoded_in_batches_of_their_own() -> None:
    backend = FakeBackend(MINUTE)

    def key(options: TranscribeOptions) -> object:
        runtime = Noting(backend)
        list(opened(runtime, rustle(5.0), options))
        return next(call.decoder.batch_key for call in runtime.done if isinstance(call, DecodeCall))

    assert key(ENGLISH) == key(replace(ENGLISH, decoding=DecodingOptions("de")))
    assert key(ENGLISH) != key(replace(ENGLISH, decoding=DecodingOptions("en", beam_size=2)))
    assert key(ENGLISH) != key(replace(ENGLISH, fallback=FallbackOptions((0.5,))))


class Steps:
    """A recording that is transcribed in a thread of its own, and the rounds of a batcher here."""

    def __init__(self, backend: Backend, **options: Any) -> None:
        self.batcher = CallBatcher(backend, **options)
        self.backend = backend
        self.waiting: Queue[PendingRequest[object] | None] = Queue()
        self.thread = Thread(target=self._transcribe)
        self.thread.start()

    def submit(self, request: PendingRequest[object]) -> None:
        self.waiting.put(request)

    def _transcribe(self) -> None:
        list(opened(Caller(self, Priority.FILE), rustle(5.0)))  # type: ignore[arg-type]
        self.waiting.put(None)

    def round(self) -> bool:
        """Run a round once the recording waits for a call; return whether there is one."""
        if not any(item.priority is Priority.FILE for item in self.batcher.requests):
            request = self.waiting.get(timeout=10)
            if request is None:
                self.thread.join(10)
                return False
            self.batcher.submit(request)
        self.batcher.round()
        return True

    def live(self, work: Callable[[], object]) -> None:
        self.batcher.submit(PendingRequest(RunOnHost(work), Caller(self)))  # type: ignore[arg-type]


class Counting(FakeBackend):
    """Writes down every pass of the decoder of a recording."""

    def __init__(self, done: list[str]) -> None:
        super().__init__(MINUTE)
        self.done = done

    def encode(self, features: Features) -> EncoderOutput:
        self.done.append("encode")
        return super().encode(features)

    def note_step(self, tokens: Sequence[Sequence[int]]) -> None:
        self.done.append("step")


def test_live_calls_go_between_the_steps_of_a_recording() -> None:
    done: list[str] = []
    steps = Steps(Counting(done), clock=lambda: float(len(done)))
    while done.count("step") < 2:
        steps.round()
    before = len(done)
    for _ in range(3):
        steps.live(lambda: done.append("live"))
    while steps.round():
        pass
    assert done[before : before + 3] == ["live"] * 3
    assert done.count("step") > 3


def test_recordings_have_their_share_of_the_time() -> None:
    done: list[str] = []
    steps = Steps(Counting(done), file_share=0.2, clock=lambda: float(len(done)))
    goes_on = True
    while goes_on:
        steps.live(lambda: done.append("live"))
        goes_on = steps.round()
    of_file = [place for place, item in enumerate(done) if item != "live"]
    assert {after - place for place, after in pairwise(of_file)} == {5}


FULL = 1500
PADDING = replace(BASE, stride=10).padding(150, FULL).n_frames
SAID = script(at(0), HELLO, HELLO, HELLO, at(2.5))


class CountingFrames(FakeBackend):
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
    backend = CountingFrames()
    chosen = options(language, mode=mode, follow_languages=False)
    segments = read(backend, voice(3.0, (0.0, 3.0)), chosen)
    assert [segment.text for segment in segments] == [" hello hello hello"]
    assert backend.frames == [150 + PADDING]
    assert PADDING < FULL / 7


def test_the_last_window_of_a_recording_costs_what_is_left_of_it() -> None:
    backend = CountingFrames()
    with Recording(rustle(40.0)) as recording:
        list(transcribe_batch_of(backend, recording))
    assert backend.frames[0] == FULL
    assert sum(backend.frames[1:]) < FULL


def transcribe_batch_of(backend: FakeBackend, *recordings: Recording, **chosen: Any) -> list[Any]:
    transcriber = transcriber_for(DirectRuntime(backend), TOKENIZER, options(**chosen), None)
    return list(transcribe_batch(transcriber, recordings, lambda item: item, batch_size=3, model="fake"))


def test_recordings_that_are_read_together_cost_what_they_cost_alone() -> None:
    lengths, costs, alone = (3.0, 7.0, 5.01), list[int](), []
    for length in lengths:
        backend = CountingFrames()
        with Recording(rustle(length)) as recording:
            alone += transcribe_batch_of(backend, recording)
        costs += backend.frames
    backend, recordings = CountingFrames(), [Recording(rustle(length)) for length in lengths]
    together = transcribe_batch_of(backend, *recordings)
    assert sorted(backend.frames) == sorted(costs)
    assert [result.text for _, result in together] == [result.text for _, result in alone]


@pytest.mark.parametrize(
    ("mode", "chosen"),
    [(DENSE, {}), (BASE, {"read_again": False}), (BASE, {"audio_ctx": FULL})],
)
def test_windows_are_full_without_a_mode_and_where_they_are_asked_for(
    mode: EncoderMode, chosen: dict[str, Any]
) -> None:
    backend = CountingFrames(mode)
    read(backend, voice(3.0, (0.0, 3.0)), options(follow_languages=False, **chosen))
    assert backend.frames == [FULL]
