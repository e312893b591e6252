"""Recordings whose segments are asked for at once: they share batches, and live calls go between."""

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
from sottovoce.models.backend import Backend, EncoderOutput
from sottovoce.offline.pipeline import transcriber_for
from sottovoce.offline.transcription import FileTranscription
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
from sottovoce.runtime.calls import DecodeCall, RunOnHost, Runtime
from sottovoce.types import Features, Samples
from tests.offline.test_recordings import MINUTE, Listening
from tests.offline.transcribing import ENGLISH, TOKENIZER, rustle
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
        if not any(one.priority is Priority.FILE for one in self.batcher.requests):
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
    of_file = [place for place, one in enumerate(done) if one != "live"]
    assert {after - place for place, after in pairwise(of_file)} == {5}
