"""The bundled model live: streaming equals offline, cutting changes nothing, the probe touches nothing."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, window_features
from sottovoce.audio.vad import VadStream
from sottovoce.backends.base import EXACT
from sottovoce.decoding.decode import decode
from sottovoce.language.probe import LanguageProbe
from sottovoce.options.decoding import DecodingOptions
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.session import Session, SessionOptions
from sottovoce.types import Event, LanguageChanged, Partial, Samples
from tests.streaming.sessions import Reading

CLIPS = Path(__file__).parents[2] / "examples" / "clips"


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("nano", device="cpu", dtype="float32")


def clip(name: str, seconds: float | None = None) -> Samples:
    return load_audio(str(CLIPS / f"{name}.flac"), duration_s=seconds)


def listen(session: Session, audio: Samples, sizes: list[int]) -> list[Event]:
    events, at, i = [], 0, 0
    while at < len(audio):
        n = sizes[i % len(sizes)]
        events += session.push(audio[at : at + n])
        at, i = at + n, i + 1
    return events + session.close()


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Partial)).strip()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_with_an_infinite_threshold_a_stream_is_the_offline_transcript(model: Model, language: str) -> None:
    audio = clip(language)
    features = window_features([log_mel(audio, padding_samples=480_000)[:, : len(audio) // 160]])
    options = DecodingOptions(language=language, without_timestamps=True)
    (offline,) = decode(model.backend, model.tokenizer, model.backend.encode(features), [options])
    stream = StreamOptions(
        frame_threshold=math.inf, encoder=EXACT, max_repeats=10_000, logprob_threshold=-math.inf
    )
    session = Session(model.backend, model.tokenizer, SessionOptions((language,), stream=stream))
    assert text_of(listen(session, audio, [4000])) == offline.text


def test_any_cutting_gives_the_same_words(model: Model) -> None:
    audio, sizes = clip("mixed", 8.0), [7, 160, 12_345, 0, 48_000]
    options = SessionOptions(("en", "de", "es", "fr"))

    def session() -> Session:
        return Session(model.backend, model.tokenizer, options, vad=VadStream())

    assert listen(session(), audio, sizes) == listen(session(), audio, [len(audio)])


def test_the_probe_leaves_the_transcript_as_it_is_bit_by_bit(model: Model) -> None:
    """Tokens, frames, probabilities: with probes before, between and after the updates, or without."""
    audio = clip("en")
    probe = LanguageProbe(model.backend, model.tokenizer, model.languages)
    rng = random.Random(0)

    def words(probing: bool) -> list[object]:
        reading, found = Reading(StreamOptions(), model=model.backend, tokenizer=model.tokenizer), []
        for start in range(0, len(audio), 16_000):
            reading.append(audio[start : start + 16_000])
            window = reading.encode()
            if probing:
                ends = [rng.randint(1, window.n_frames) for _ in range(5)]
                probe.detect_spans(window.encoded, [(0, end) for end in ends])
            found += reading.read(window)
            if probing:
                probe.detect_spans(window.encoded, [(0, window.n_frames)])
        return [*found, *reading.read(reading.encode(), final=True)]

    assert words(probing=True) == words(probing=False)


def test_a_mixed_recording_is_followed(model: Model) -> None:
    """The founders' first test: every language of the demo's mixture, in order, and nothing else."""
    session = Session(model.backend, model.tokenizer, SessionOptions(model.languages), vad=VadStream())
    events = listen(session, clip("mixed"), [8000])
    assert [e.target for e in events if isinstance(e, LanguageChanged)] == ["en", "de", "es", "fr"]


def test_files_one_after_another_are_each_in_their_language(model: Model) -> None:
    """The founders' second test: one session, one file after the other."""
    session = Session(model.backend, model.tokenizer, SessionOptions(model.languages), vad=VadStream())
    events = [event for name in ("zh", "en", "de") for event in session.push(clip(name))]
    events += session.close()
    assert [e.target for e in events if isinstance(e, LanguageChanged)] == ["zh", "en", "de"]


@pytest.mark.parametrize("name", ["en", "de", "es", "fr", "zh"])
def test_one_language_never_switches(model: Model, name: str) -> None:
    """The founders' third test, for every language of the model."""
    session = Session(model.backend, model.tokenizer, SessionOptions(model.languages), vad=VadStream())
    events = listen(session, clip(name), [8000])
    assert [e.target for e in events if isinstance(e, LanguageChanged)] == [name]
