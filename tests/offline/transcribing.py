"""Recordings transcribed by any backend without a model around it, and scripted models to read them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sottovoce.audio.io import Recording
from sottovoce.audio.vad import SileroState, SpeechModel
from sottovoce.models.backend import Backend
from sottovoce.offline.pipeline import transcriber_for
from sottovoce.offline.transcription import FileTranscription
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.calls import DirectRuntime
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE, Floats, Samples, Segment
from tests.runtime.fake import FakeBackend, Script, ScriptedToken, SpokenLanguage

TOKENIZER = Tokenizer.for_model(51865)
HELLO, WORLD = TOKENIZER.encode(" hello")[0], TOKENIZER.encode(" world")[0]
ENGLISH = TranscribeOptions(decoding=DecodingOptions(language="en"), read_again=False)
"""The scripted models write the same of whatever they read: a second reading of speech would be more of
it."""


def at(seconds: float) -> int:
    return TOKENIZER.timestamp_begin + round(seconds * 50)


def script(*tokens: int, language: str = "en") -> Script:
    """Tokens one encoder frame after the other."""
    scripted = tuple(ScriptedToken(token, 2 * index) for index, token in enumerate(tokens))
    return Script(scripted, (SpokenLanguage(language, 0, 1500),))


PAIRS = script(at(0), HELLO, at(2), at(2), WORLD, at(5), at(5))


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * 16000), dtype=np.float32)


def rustle(seconds: float) -> Samples:
    """Faint noise: what a scripted model may say anything over."""
    noise = np.random.default_rng(0).standard_normal(round(seconds * 16000)) * 1e-3
    return noise.astype(np.float32)


def voice(length_s: float, *spans: tuple[float, float]) -> Samples:
    """Sound that `Loud` takes for a voice, and silence around it."""
    samples = silence(length_s)
    for start, end in spans:
        samples[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] = 0.1
    return samples


class Loud:
    """A speech model that hears speech where the samples are not zero."""

    def start(self) -> SileroState:
        return SileroState(*(np.zeros(1, np.float32) for _ in range(3)))

    def probabilities(self, samples: Samples, state: SileroState) -> tuple[Floats, SileroState]:
        return (np.abs(samples.reshape(-1, 512)).max(axis=1) > 0).astype(np.float32), state


def transcribe(
    backend: Backend,
    tokenizer: Tokenizer,
    recording: Recording,
    options: TranscribeOptions,
    *,
    speech_model: SpeechModel | None = None,
) -> FileTranscription:
    transcriber = transcriber_for(DirectRuntime(backend), tokenizer, options, None)
    return FileTranscription(replace(transcriber, speech_model=speech_model), recording)


def run(
    said: Script, samples: Samples, options: TranscribeOptions = ENGLISH
) -> tuple[list[Segment], FileTranscription]:
    with Recording(samples) as recording:
        transcription = transcribe(FakeBackend(said), TOKENIZER, recording, options)
        return list(transcription), transcription


def read(said: Script | FakeBackend, samples: Samples, options: TranscribeOptions) -> list[Segment]:
    """The segments of a recording in which sound is speech."""
    backend = FakeBackend(said) if isinstance(said, Script) else said
    with Recording(samples) as recording:
        return list(transcribe(backend, TOKENIZER, recording, options, speech_model=Loud()))
