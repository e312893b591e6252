"""The bundled model live: streaming equals offline, the probe touches nothing, languages are followed."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, window_features
from sottovoce.audio.vad import VadStream
from sottovoce.decoding.decode import decode
from sottovoce.decoding.filters import LiveVocabulary
from sottovoce.language.probe import LanguageProbe
from sottovoce.models.backend import Backend, EncoderOutput, IncrementalWindow
from sottovoce.models.dims import EXACT, EncoderMode
from sottovoce.options.decoding import DecodingOptions
from sottovoce.streaming.alignatt import (
    AlignAttDecoder,
    AlignAttRequest,
    DecoderPrefix,
    StopRules,
)
from sottovoce.streaming.audio_window import MelBuffer
from sottovoce.streaming.options import LiveOptions, StreamOptions
from sottovoce.streaming.session import Session
from sottovoce.types import Samples
from tests.runtime.reading import decoded
from tests.streaming.sessions import Reading, changes_of, listen, said_words
from tests.streaming.speech import say

CLIPS = Path(__file__).parents[2] / "examples" / "clips"


def clip(name: str, seconds: float | None = None) -> Samples:
    return load_audio(CLIPS / f"{name}.flac", duration_s=seconds)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_with_an_infinite_threshold_a_stream_is_the_offline_transcript(model: Model, language: str) -> None:
    audio = clip(language)
    features = window_features([log_mel(audio, padding_samples=480_000)[:, : len(audio) // 160]])
    options = DecodingOptions(language=language, without_timestamps=True)
    (offline,) = decode(model.backend, model.tokenizer, model.backend.encode(features), [options])
    stream = StreamOptions(
        frame_threshold=math.inf, encoder=EXACT, max_repeats=10_000, logprob_threshold=-math.inf
    )
    session = Session(model.backend, model.tokenizer, LiveOptions((language,), stream=stream))
    said = "".join(word.word for word in said_words(listen(session, audio, 4000)))
    assert said.strip() == offline.text


def test_the_probe_leaves_the_transcript_as_it_is_bit_by_bit(model: Model) -> None:
    """Tokens, frames, probabilities: with probes before, between and after the updates, or without."""
    audio = clip("en")
    probe = LanguageProbe(model.backend, model.tokenizer, model.languages)
    rng = random.Random(0)

    def words(probing: bool) -> list[object]:
        reading, results = Reading(StreamOptions(), model=model.backend, tokenizer=model.tokenizer), []
        for start in range(0, len(audio), 16_000):
            reading.append(audio[start : start + 16_000])
            window = reading.encode()
            if probing:
                ends = [rng.randint(1, window.n_frames) for _ in range(5)]
                probe.detect_spans(window.encoded, [(0, end) for end in ends])
            results += reading.read(window)
            if probing:
                probe.detect_spans(window.encoded, [(0, window.n_frames)])
        return [*results, *reading.read(reading.encode(), final=True)]

    assert words(probing=True) == words(probing=False)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("names", "languages"),
    [
        ("mixed", "en de es fr"),
        ("zh en de", "zh en de"),
        *((name, name) for name in ("en", "de", "es", "fr", "zh")),
    ],
)
def test_languages_are_followed_and_no_others_found(model: Model, names: str, languages: str) -> None:
    """The founders' tests: the demo's mixture, one file after the other, and each language by itself."""
    live = Session(model.backend, model.tokenizer, LiveOptions(model.languages), vad=VadStream())
    audio = np.concatenate([clip(name) for name in names.split()])
    assert [change.target for change in changes_of(listen(live, audio))] == languages.split()


MODES = [EncoderMode(tail_s=1.0), EncoderMode(tail_s=2.0, stride=4), EncoderMode(tail_s=0.0)]


def grown(model: Backend, words: list[str], mode: EncoderMode) -> EncoderOutput:
    buffer = MelBuffer(model.dims.n_mels, 0)
    buffer.append(say(words))
    return model.encode_incremental([IncrementalWindow(buffer.frames(), mode)])[0].encoded


@pytest.mark.parametrize(("first", "second"), list(zip(MODES, MODES[1:] + MODES[:1], strict=True)), ids=str)
def test_windows_encoded_in_any_way_are_decoded_together_as_alone(
    model: Model, first: EncoderMode, second: EncoderMode
) -> None:
    """Of a real network: what is behind a shorter window is hidden, and thin padding has its weight."""
    tokenizer, network = model.tokenizer, model.backend
    heard = [grown(network, ["time", "year", "people"], first), grown(network, ["und", "der"] * 3, second)]
    vocabulary = LiveVocabulary.of(tokenizer, network.dims.n_vocab)
    reader = AlignAttDecoder(network, tokenizer.eot, vocabulary)
    rules = StopRules(frame_threshold=0, max_tokens=8)
    requests = [
        AlignAttRequest(
            DecoderPrefix(tokenizer.with_language(code).sot_sequence_including_notimestamps, 0, 0), rules
        )
        for code in ("en", "de")
    ]
    alone = [decoded(reader, [states], [request])[0] for states, request in zip(heard, requests, strict=True)]
    for ours, theirs in zip(decoded(reader, heard, requests), alone, strict=True):
        assert (ours.tokens, ours.frames, ours.stop_reason) == (
            theirs.tokens,
            theirs.frames,
            theirs.stop_reason,
        )
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
        assert ours.no_speech_prob == pytest.approx(theirs.no_speech_prob, abs=1e-5)
