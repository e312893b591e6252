"""Calls of the model and of Python functions that a recording or a live update may take."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import FrameType
from unittest.mock import Mock

import numpy as np
import pytest

from sottovoce.audio.io import Recording
from sottovoce.audio.vad import VadStream
from sottovoce.models.backend import EncoderOutput, IncrementalResult, IncrementalWindow
from sottovoce.models.devices import Device
from sottovoce.models.dims import BASE
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.batching import ON_ACCELERATOR, BatchingRuntime, PendingRequest
from sottovoce.runtime.calls import DirectRuntime
from sottovoce.streaming.options import LiveOptions
from sottovoce.streaming.session import Session
from sottovoce.types import Features, Floats
from tests.offline.transcribing import TOKENIZER, Loud, at, transcribe, voice
from tests.runtime.fake import FakeBackend, Hear, Script, ScriptedToken, SpokenLanguage

N_WINDOWS, WINDOW_S, PAUSE_S = 16, 25.0, 6.0
LENGTH_S = N_WINDOWS * (WINDOW_S + PAUSE_S)
WORDS = range(1000, 1080)
"""Three a second, none twice."""


class Counting(FakeBackend):
    """encoded: the windows of each call. n_steps: of the decoder."""

    def __init__(self, hear: Hear | Script) -> None:
        super().__init__(hear)
        self.encoded: list[int] = []
        self.n_steps = 0

    def encode(self, features: Features) -> EncoderOutput:
        self.encoded.append(len(features.mel))
        return super().encode(features)

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        self.encoded.append(len(windows))
        return super().encode_incremental(windows)

    def note_step(self, tokens: Sequence[Sequence[int]]) -> None:
        self.n_steps += 1


def spoken(*languages: SpokenLanguage) -> Script:
    words = [ScriptedToken(word, 15 * place) for place, word in enumerate(WORDS, 1)]
    timed = (ScriptedToken(at(0.0), 0), *words, ScriptedToken(at(WINDOW_S), 1249))
    return Script(timed, languages)


def python_calls(work: Callable[[], object]) -> int:
    """Count the calls of functions in this thread and new ones, without `text` of the fake backend."""
    n_calls: Counter[int] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        n_calls[threading.get_ident()] += event == "call" and "/sottovoce/" in file and "/text/" not in file

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return n_calls.total()


def test_a_recording_is_read_once_encoded_at_once_and_decoded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = Counting(spoken(SpokenLanguage("en", 0, 1500)))
    options = TranscribeOptions(decoding=DecodingOptions(language="en"), mode="vad", batch_size=N_WINDOWS)
    starts = [place * (WINDOW_S + PAUSE_S) for place in range(N_WINDOWS)]
    samples = voice(LENGTH_S, *((start, start + WINDOW_S) for start in starts))
    with Recording(samples) as recording:
        opened = Mock(wraps=recording.open)
        monkeypatch.setattr(recording, "open", opened)
        transcription = transcribe(backend, TOKENIZER, recording, options, speech_model=Loud())
        n_calls = python_calls(transcription.collect)
    assert len(transcription.segments) == N_WINDOWS
    assert (opened.call_count, backend.encoded) == (1, [N_WINDOWS])
    assert backend.n_steps == 1 + len(WORDS) + 2  # the prompt, words and timestamps of all windows
    assert n_calls < 100 * LENGTH_S


def test_what_windows_of_a_batch_skip_is_decoded_together() -> None:
    def hear(mel: Floats, _: int) -> Script:
        until_s = 10.0 if mel.shape[1] > 2000 else 14.0
        words = [
            ScriptedToken(word, 15 * place) for place, word in enumerate(WORDS, 1) if 0.3 * place < until_s
        ]
        timed = (ScriptedToken(at(0.0), 0), *words, ScriptedToken(at(until_s), round(50 * until_s)))
        return Script(timed, (SpokenLanguage("en", 0, 1500),))

    samples = voice(120.0, *((start, start + WINDOW_S) for start in (0, 30, 60, 90)))
    texts = []
    for batch_size in (1, 4):
        backend = Counting(hear)
        backend.encoder_mode = BASE
        decoding = DecodingOptions(language="en")
        options = TranscribeOptions(decoding=decoding, mode="vad", batch_size=batch_size)
        with Recording(samples) as recording:
            transcription = transcribe(backend, TOKENIZER, recording, options, speech_model=Loud())
            texts.append(transcription.collect().segments)
        n_calls = 4 // batch_size
        assert backend.encoded == [batch_size, batch_size] * n_calls
    assert texts[0] == texts[1]
    assert len(texts[0]) == 8


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_parts_in_several_languages_are_encoded_and_decoded_together(device: str) -> None:
    backend = Counting(spoken(SpokenLanguage("en", 0, 600), SpokenLanguage("de", 600, 1500)))
    backend.encoder_mode, backend.device = BASE, Device(device)
    several = DecodingOptions(allowed_languages=("en", "de"))
    options = TranscribeOptions(decoding=several, follow_languages=True, mode="vad", batch_size=4)
    samples = voice(120.0, *((start, start + WINDOW_S) for start in (0, 30, 60, 90)))
    with Recording(samples) as recording:
        transcription = transcribe(backend, TOKENIZER, recording, options, speech_model=Loud())
        text = transcription.collect()
    assert {segment.language for segment in text.segments} == {"en", "de"}
    assert (backend.encoded[0], backend.encoded[-1]) == (4, 8)  # the windows and, after evidence, the parts
    assert (max(backend.encoded[1:-1]) > 1) == (device == "cuda")


def test_two_updates_of_a_live_session_take_few_calls_and_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = Counting(spoken(SpokenLanguage("en", 0, 1500)))
    session = Session(backend, TOKENIZER, LiveOptions(languages=("en",)))
    requested = Mock(side_effect=DirectRuntime(backend).run)
    monkeypatch.setattr(DirectRuntime, "run", requested)
    pieces = np.array_split(voice(WINDOW_S, (0, WINDOW_S)), round(WINDOW_S / 0.5))
    n_calls = python_calls(lambda: [session.push(piece) for piece in pieces])
    assert n_calls < 1_000 * len(pieces)
    assert requested.call_count == len(pieces)
    assert len(backend.encoded) >= 2 * len(pieces) - 2


def test_two_updates_of_sixteen_live_sessions_take_few_calls_each() -> None:
    n_sessions, n_pushes = 16, 8
    backend = Counting(spoken(SpokenLanguage("en", 0, 1500)))
    pieces = np.array_split(voice(0.5 * n_pushes, (0, 0.5 * n_pushes)), n_pushes)
    options = LiveOptions(languages=("en",))
    Session(backend, TOKENIZER, options)  # the vocabulary is made once

    def work() -> None:
        runtime = BatchingRuntime(backend, ON_ACCELERATOR, waits_for_all=True)
        callers = [runtime.caller() for _ in range(n_sessions)]
        sessions = [
            Session(backend, TOKENIZER, options, vad=VadStream(model=Loud()), runtime=caller)
            for caller in callers
        ]
        done: SimpleQueue[PendingRequest[object]] = SimpleQueue()
        for piece in pieces:
            for caller, session in zip(callers, sessions, strict=True):
                caller.begin_request(session.push_request(piece), done.put)
            for _ in sessions:
                done.get(timeout=20).result()
        runtime.close()
        runtime.join(20)

    n_calls = python_calls(work)
    assert set(backend.encoded) == {n_sessions}
    assert n_calls < 590 * n_sessions * n_pushes
