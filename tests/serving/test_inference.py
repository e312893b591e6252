"""`/inference` and `/load`, as whisper.cpp's clients use them."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.audio.recording import Recording
from sottovoce.errors import ModelNotFoundError
from sottovoce.serving.fields import Fields
from sottovoce.serving.inference import with_turn_signs
from sottovoce.serving.inference_request import KNOWN, inference_request
from sottovoce.serving.server import ServerThread
from sottovoce.serving.settings import Offer
from sottovoce.types import Samples, Segment, Turn
from tests.serving.servers import SlowModel, settings


@pytest.fixture(scope="module")
def quick() -> Iterator[ServerThread]:
    wanted = settings(offer=Offer("small", others=("large",)))
    with ServerThread(wanted, lambda name: cast(Model, SlowModel())) as server:
        server.wait_until_ready()
        yield server


def asked(server: ServerThread, path: Path, **fields: str) -> httpx.Response:
    with path.open("rb") as file:
        return httpx.post(f"{server.url}/inference", data=fields, files={"file": file}, timeout=120)


def test_every_format(server: ServerThread, english: Path) -> None:
    """With the fields of the line that whisper.cpp's page shows."""
    usual = {"temperature": "0.0", "temperature_inc": "0.2", "no_speech_thold": "0.6", "language": "en"}
    text = asked(server, english, **usual).json()["text"]
    assert "garden" in text
    assert text.endswith("\n")
    assert "garden" in asked(server, english, **usual, response_format="text").text
    assert "-->" in asked(server, english, **usual, response_format="srt").text
    assert asked(server, english, **usual, response_format="vtt").text.startswith("WEBVTT")


def test_verbose_has_words_in_their_segments_and_languages(server: ServerThread, english: Path) -> None:
    document = asked(server, english, response_format="verbose_json").json()
    assert document["task"] == "transcribe"
    assert document["language"] == document["detected_language"] == "english"
    assert document["language_probabilities"]["en"] > 0.5
    words = [word for segment in document["segments"] for word in segment["words"]]
    assert "garden" in "".join(word["word"] for word in words)
    assert words[0].keys() == {"word", "start", "end", "t_dtw", "probability"}
    assert "words" not in document


def test_a_part_of_a_recording(server: ServerThread, english: Path) -> None:
    text = asked(server, english, language="en", offset_t="1200", vad="true", vad_threshold="0.4").json()[
        "text"
    ]
    assert "morning" in text
    assert "garden" not in text


def stereo_file(folder: Path, left: Samples, right: Samples) -> Path:
    path = folder / "stereo.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((np.stack((left, right), axis=1) * 32767).astype("<i2").tobytes())
    return path


def test_whose_channel_it_is(server: ServerThread, english: Path, tmp_path: Path) -> None:
    speech = load_audio(english)
    stereo = stereo_file(tmp_path, np.zeros_like(speech), speech)
    usual = {"language": "en", "diarize": "true"}
    assert asked(server, stereo, **usual).json()["text"].startswith("(speaker 1)")
    assert "\n(speaker 1)" in asked(server, stereo, **usual, response_format="srt").text
    assert "<v Speaker1>" in asked(server, stereo, **usual, response_format="vtt").text
    segments = asked(server, stereo, **usual, response_format="verbose_json").json()["segments"]
    assert {segment["speaker"] for segment in segments} == {"1"}


class Known:
    """The first second of every recording is of one, and the rest of another."""

    def turns(self, recording: Recording) -> list[Turn]:
        return [Turn(0.0, 1.0, "A"), Turn(1.0, 60.0, "B")]


def test_voices_tell_speakers_where_channels_do_not(
    server: ServerThread, english: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a recording of one channel, and in one with the same sound in both."""
    monkeypatch.setattr("sottovoce.offline.longform.diarizer_of", lambda _: Known())
    speech = load_audio(english)
    twice = stereo_file(tmp_path, speech, speech)
    for path in (english, twice):
        usual = {"language": "en", "diarize": "true"}
        lines = asked(server, path, **usual).json()["text"].splitlines()
        assert [line[:11] for line in lines] == ["(speaker 0)", "(speaker 1)"]
        assert "<v Speaker1>" in asked(server, path, **usual, response_format="vtt").text
        segments = asked(server, path, **usual, response_format="verbose_json").json()["segments"]
        assert [segment["speaker"] for segment in segments] == ["0", "1"]


def test_speakers_without_their_weights_are_one_line(
    server: ServerThread, english: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: object) -> None:
        raise ModelNotFoundError("resemblyzer: not in /srv/cache")

    monkeypatch.setattr("sottovoce.offline.longform.diarizer_of", missing)
    answer = asked(server, english, diarize="true")
    assert answer.status_code == 503
    said = "a model that this needs cannot be loaded on this server; its log has the cause"
    assert answer.json() == {"error": said}


def test_turns_of_tinydiarize_are_signs_in_the_text() -> None:
    assert inference_request(Fields([("tinydiarize", "true")]), "small").wish.options.decoding.speaker_turns
    segments = [
        Segment(i, float(i), i + 1.0, f" {i}", "en", speaker=name)
        for i, name in enumerate(("turn 1", "turn 1", "turn 2"))
    ]
    assert [one.text for one in with_turn_signs(segments)] == [" 0", " 1 [SPEAKER_TURN]", " 2"]
    assert {one.speaker for one in with_turn_signs(segments)} == {None}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"diarize": "true", "tinydiarize": "true"}, "speaker_turns"),
        ({"diarize": "maybe"}, "diarize"),
        ({"max_len": "20"}, "max_len"),
        ({"temperature": "warm"}, "temperature"),
        ({"response_format": "lrc"}, "response_format"),
        ({"modle": "a"}, "modle"),
        ({"language": "klingon"}, "klingon"),
        ({"vad": "true", "vad_threshold": "7"}, "vad_threshold"),
    ],
)
def test_errors_are_one_line(quick: ServerThread, english: Path, fields: dict[str, str], told: str) -> None:
    answer = asked(quick, english, **fields)
    assert answer.status_code == 400
    assert told in answer.json()["error"]


def test_settings_of_their_search_have_no_effect() -> None:
    usual = inference_request(Fields([]), "small")
    other = inference_request(Fields([("beam_size", "8"), ("audio_ctx", "0"), ("diarize", "false")]), "small")
    assert usual == other
    assert set(KNOWN) > {"file", "vad", "translate"}


@pytest.mark.parametrize(
    ("fields", "temperatures"),
    [
        ([], (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        ([("temperature", "0.4"), ("temperature_inc", "0.3")], (0.4, 0.7, 1.0)),
        ([("temperature", "0.5"), ("temperature_inc", "0")], (0.5,)),
    ],
)
def test_temperatures(fields: list[tuple[str, str]], temperatures: tuple[float, ...]) -> None:
    found = inference_request(Fields(fields), "small").wish.options.fallback
    assert found.temperatures == temperatures


def load(server: ServerThread, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/load", files={name: (None, value) for name, value in fields.items()})


def test_only_models_that_are_offered_can_be_loaded(quick: ServerThread, server: ServerThread) -> None:
    assert load(server, model="nano").status_code == 403
    for path in ("/etc/passwd", "../large", "models/ggml-large.bin"):
        answer = load(quick, model=path)
        assert answer.status_code == 404
        assert "expected one of small, large" in answer.json()["error"]
    assert load(quick, name="large").status_code == 400
    assert quick.services.shelf.loaded("large") is None
    assert load(quick, model="large").text == "Load was successful!\n"
    assert quick.services.shelf.loaded("large") is not None
    assert quick.services.inference_model == "large"
