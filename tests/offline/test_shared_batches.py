"""Recordings whose segments are asked for at once: they share batches, and live calls go between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from sottovoce.audio.recording import Recording
from sottovoce.backends.base import Backend
from sottovoce.engine.batching import Batching, BatchingExecutor
from sottovoce.engine.calls import CallGenerator, DecodeCall, HostCall, Priority, Task
from sottovoce.engine.executor import batch_key
from sottovoce.offline.longform import transcriber_for, transcription_of
from sottovoce.offline.transcription import FileTranscription
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.types import EncoderOutput, Features, Samples, Segment
from tests.backends.fake import FakeBackend
from tests.offline.test_recordings import MINUTE, Listening
from tests.offline.transcribing import ENGLISH, TOKENIZER, rustle


def opened(
    backend: Backend, samples: Samples, options: TranscribeOptions = ENGLISH, tokenizer: object = TOKENIZER
) -> FileTranscription:
    transcriber = transcriber_for(backend, tokenizer, options, None)  # type: ignore[arg-type]
    return transcription_of(transcriber, Recording(samples), model="fake")


def asked(executor: BatchingExecutor, recording: FileTranscription) -> Task[Segment | None]:
    return executor.begin(recording.next_segment(), priority=Priority.FILE)


def all_of(
    executor: BatchingExecutor, recordings: Sequence[FileTranscription]
) -> list[list[Segment] | Exception]:
    """Segments of each, or what it failed with; each is asked for again as soon as it is there."""
    found: list[list[Segment] | Exception] = [[] for _ in recordings]
    waiting = list(enumerate(recordings))
    running: dict[int, Task[Segment | None]] = {}
    while waiting or running:
        while waiting and executor.has_file_room:
            place, recording = waiting.pop(0)
            running[place] = asked(executor, recording)
        executor.round()
        for place, task in [(place, task) for place, task in running.items() if task.is_done]:
            del running[place]
            some = found[place]
            assert isinstance(some, list)
            if task.error is not None:
                found[place] = task.error
            elif task.result is not None:
                some.append(task.result)
                waiting.append((place, recordings[place]))
    return found


@pytest.mark.parametrize("encodes_together", [True, False])
def test_those_who_wait_share_batches(encodes_together: bool) -> None:
    backend = Listening(MINUTE)
    executor = BatchingExecutor(backend, Batching(files=4, encodes_files_together=encodes_together))
    found = all_of(executor, [opened(backend, rustle(length)) for length in (65.0, 5.0, 125.0, 29.0, 31.0)])
    assert [len(one) for one in found if isinstance(one, list)] == [3, 1, 5, 1, 2]
    assert sum(backend.batches) == 12
    assert max(backend.batches) == (4 if encodes_together else 1)


def test_other_options_are_decoded_in_batches_of_their_own() -> None:
    backend = FakeBackend(MINUTE)

    def key(options: TranscribeOptions) -> object:
        calls = opened(backend, rustle(5.0), options).next_segment()
        call = next(calls)
        while not isinstance(call, DecodeCall):
            call = calls.send(backend.encode(call.features))  # type: ignore[union-attr]
        calls.close()
        return batch_key(call)

    assert key(ENGLISH) == key(replace(ENGLISH, decoding=DecodingOptions("de")))
    assert key(ENGLISH) != key(replace(ENGLISH, decoding=DecodingOptions("en", beam_size=2)))
    assert key(ENGLISH) != key(replace(ENGLISH, fallback=FallbackOptions((0.0, 0.5))))


def test_a_recording_that_is_closed_is_not_worked_for() -> None:
    backend = Listening(MINUTE)
    executor = BatchingExecutor(backend)
    recordings = [opened(backend, rustle(5.0)) for _ in range(2)]
    tasks = [asked(executor, one) for one in recordings]
    recordings[1].close()
    while executor.n_tasks:
        executor.round()
    assert tasks[0].result is not None
    assert tasks[1].result is None
    assert backend.batches == [1]


def test_what_is_let_go_of_is_closed() -> None:
    backend = FakeBackend(MINUTE)
    executor = BatchingExecutor(backend)
    recording = opened(backend, rustle(65.0))
    task = asked(executor, recording)
    executor.round()
    executor.forget()
    assert not task.is_done
    assert list(recording) == []


def live(said: list[str]) -> CallGenerator[None]:
    for _ in range(3):
        yield HostCall(lambda: said.append("live"))


class Counting(FakeBackend):
    """Writes down every pass of the decoder of a recording."""

    def __init__(self, done: list[str]) -> None:
        super().__init__(MINUTE)
        self.done = done

    def encode(self, features: Features) -> EncoderOutput:
        self.done.append("encode")
        return super().encode(features)

    def step(self, *given: Any, **options: Any) -> Any:
        self.done.append("step")
        return super().step(*given, **options)


def test_live_calls_go_between_the_steps_of_a_recording() -> None:
    done: list[str] = []
    executor = BatchingExecutor(Counting(done), clock=lambda: float(len(done)))
    task = asked(executor, opened(Counting(done), rustle(5.0)))
    while done.count("step") < 2:
        executor.round()
    before = len(done)
    executor.begin(live(done))
    while not task.is_done:
        executor.round()
    assert done[before : before + 3] == ["live"] * 3
    assert done.count("step") > 3


def test_recordings_have_their_share_of_the_time() -> None:
    done: list[str] = []
    executor = BatchingExecutor(Counting(done), file_share=0.2, clock=lambda: float(len(done)))
    task = asked(executor, opened(Counting(done), rustle(5.0)))

    def endless() -> CallGenerator[None]:
        while True:
            yield HostCall(lambda: done.append("live"))

    executor.begin(endless())
    while not task.is_done:
        executor.round()
    of_file = [place for place, one in enumerate(done) if one != "live"]
    assert {after - place for place, after in pairwise(of_file)} == {5}
