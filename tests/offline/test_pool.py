"""Recordings whose segments are asked for by several people at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.audio.recording import Recording
from sottovoce.backends.base import Backend
from sottovoce.backends.fake import FakeBackend
from sottovoce.decoding.fallback import FallbackOptions
from sottovoce.decoding.options import DecodingOptions
from sottovoce.offline.longform import Watch, engine_for, transcription_of
from sottovoce.offline.options import TranscribeOptions
from sottovoce.offline.pool import Ask, FilePool
from sottovoce.offline.result import FileTranscription
from sottovoce.types import EncoderOutput, Features, Samples, Segment
from tests.decoding import rig
from tests.offline.test_longform import ENGLISH, PAIRS, TOKENIZER, rustle
from tests.offline.test_recordings import MINUTE, Listening


def opened(
    backend: Backend, samples: Samples, options: TranscribeOptions = ENGLISH, tokenizer: object = TOKENIZER
) -> FileTranscription:
    engine = engine_for(backend, tokenizer, options, None)  # type: ignore[arg-type]
    recording, watch = Recording(samples), Watch()
    return FileTranscription(recording, transcription_of(engine, recording, watch), watch, "fake")


def all_of(pool: FilePool, recordings: Sequence[FileTranscription]) -> list[list[Segment] | Exception]:
    """Segments of each, or what it failed with: everybody asks, then one after the other is served."""
    found: list[list[Segment] | Exception] = [[] for _ in recordings]
    running = dict(enumerate(recordings))
    while running:
        asks = {place: pool.ask(recording) for place, recording in running.items()}
        queue: list[Ask] = list(asks.values())
        while queue:
            pool.serve(queue.pop(0), queue.append)
        for place, asked in asks.items():
            try:
                segment = asked.segment.result(timeout=0)
            except RuntimeError as error:
                found[place], segment = error, None
            if segment is None:
                del running[place]
            else:
                some = found[place]
                assert isinstance(some, list)
                some.append(segment)
    return found


@pytest.mark.parametrize("encodes_together", [True, False])
def test_those_who_wait_share_batches(encodes_together: bool) -> None:
    backend = Listening(MINUTE)
    pool = FilePool(4, encodes_together=encodes_together)
    found = all_of(pool, [opened(backend, rustle(length)) for length in (65.0, 5.0, 125.0, 29.0, 31.0)])
    assert [len(one) for one in found if isinstance(one, list)] == [3, 1, 5, 1, 2]
    assert sum(backend.batches) == 12
    assert max(backend.batches) == (4 if encodes_together else 1)


def test_the_text_beside_others_is_that_alone() -> None:
    backend, tokenizer = rig.backend(n_text_ctx=32, n_audio_ctx=200), rig.tokenizer()
    options = TranscribeOptions(
        DecodingOptions("en", sample_len=6),
        FallbackOptions((0.0, 0.4), logprob_threshold=-3.0, no_speech_threshold=None),
        word_timestamps=True,
    )
    generator = np.random.default_rng(1)
    sources = [generator.normal(0, 0.1, 16000 * n).astype(np.float32) for n in (9, 5, 7)]
    pool = FilePool(3, encodes_together=True)
    found = all_of(pool, [opened(backend, one, options, tokenizer) for one in sources])
    alone = [list(opened(backend, one, options, tokenizer)) for one in sources]
    told = [[(s.text, s.start, s.end, s.temperature) for s in one] for one in alone]
    assert [
        [(s.text, s.start, s.end, s.temperature) for s in one] for one in found if isinstance(one, list)
    ] == told
    assert any(told)


def test_other_options_are_read_in_batches_of_their_own() -> None:
    backend = FakeBackend(MINUTE)
    one = opened(backend, rustle(5.0)).engine
    other = opened(backend, rustle(5.0), replace(ENGLISH, decoding=DecodingOptions("de"))).engine
    wide = opened(backend, rustle(5.0), replace(ENGLISH, decoding=DecodingOptions("en", beam_size=2))).engine
    assert one.is_like(other)
    assert not one.is_like(wide)
    assert not one.is_like(opened(FakeBackend(MINUTE), rustle(5.0)).engine)


def test_a_recording_that_fails_harms_no_other() -> None:
    class Poisoned(FakeBackend):
        def encode(self, features: Features) -> EncoderOutput:
            if float(features.mel[..., :100].mean(dim=(1, 2)).max()) > 0.5:
                raise RuntimeError("out of memory")
            return super().encode(features)

    backend = Poisoned(MINUTE)
    loud = np.random.default_rng(0).normal(0, 0.1, 16000 * 40).astype(np.float32)
    recordings = [opened(backend, one) for one in (rustle(40.0), loud, rustle(70.0))]
    found = all_of(FilePool(3, encodes_together=True), recordings)
    assert isinstance(found[1], RuntimeError)
    assert [len(one) for one in found if isinstance(one, list)] == [2, 3]


def test_who_goes_away_is_not_worked_for() -> None:
    backend = Listening(MINUTE)
    pool = FilePool(4, encodes_together=True)
    first, second = (pool.ask(opened(backend, rustle(5.0))) for _ in range(2))
    assert second.segment.cancel()
    pool.serve(first, lambda _: pytest.fail("nobody is left"))
    assert first.segment.result(timeout=0) is not None
    assert backend.batches == [1]
    pool.serve(second, lambda _: pytest.fail("nobody is left"))
    assert backend.batches == [1]


def test_who_is_not_served_any_more_is_told() -> None:
    pool = FilePool(4, encodes_together=True)
    asked = pool.ask(opened(FakeBackend(MINUTE), rustle(5.0)))
    pool.leave(asked)
    with pytest.raises(CancelledError):
        asked.segment.result(timeout=0)


def test_where_nobody_can_serve_the_others_they_are_told() -> None:
    def full(_: Ask) -> None:
        raise RuntimeError("no room")

    ready = opened(FakeBackend(PAIRS), rustle(5.0))
    next(ready)  # the first of two segments of a window
    pool = FilePool(2, encodes_together=True)
    first, second = pool.ask(ready), pool.ask(opened(FakeBackend(MINUTE), rustle(65.0)))
    pool.serve(first, full)
    assert first.segment.result(timeout=0) is not None
    with pytest.raises(RuntimeError, match="no room"):
        second.segment.result(timeout=0)


def test_two_threads_never_work_on_the_same_recording() -> None:
    backend = FakeBackend(MINUTE)
    pool = FilePool(2, encodes_together=False)
    recordings = [opened(backend, rustle(65.0)) for _ in range(6)]
    asks = [pool.ask(one) for one in recordings]
    queue = list(asks)

    def work() -> None:
        while queue:
            try:
                asked = queue.pop()
            except IndexError:
                return
            pool.serve(asked, queue.append)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    segments = [asked.segment.result(timeout=10) for asked in asks]
    assert [one.start for one in segments if one is not None] == [0] * 6
