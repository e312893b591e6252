"""`/asr` and `/detect-language`, with the requests that Bazarr and Subgen's clients send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.formats.files import writer_for
from sottovoce.formats.output import write_transcript
from tests.server.servers import ServerThread


def bazarr(server: ServerThread, path: str, clip: Path, **query: str) -> httpx.Response:
    """Source: bazarr, custom_libs/subliminal_patch/providers/whisperai.py: samples, named by their field.

    Subgen has a route of its own for //asr, which Bazarr calls if its endpoint ends in a slash.
    """
    samples = (load_audio(clip) * 32767).astype("<i2").tobytes()
    files = {"audio_file": ("audio_file", samples)}
    return httpx.post(f"{server.url}/{path}", params={"encode": "false", **query}, files=files, timeout=120)


def other(server: ServerThread, path: str, clip: Path, **query: str) -> httpx.Response:
    files = {"audio_file": (clip.name, clip.read_bytes(), "audio/wav")}
    return httpx.post(server.url + path, params=query, files=files, timeout=120)


@pytest.mark.parametrize("send", [bazarr, other])
def test_subtitles_are_those_of_the_library(
    server: ServerThread, nano: Model, english: Path, send: Any
) -> None:
    answer = send(
        server, "/asr", english, task="transcribe", language="en", output="srt", video_file="/films/a.mkv"
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert ".srt" in answer.headers["content-disposition"]
    assert "x-ignored-parameters" not in answer.headers
    expected = nano.transcribe(english, language="en", word_timestamps=True).collect()
    assert answer.text == write_transcript(writer_for("srt"), expected)


def test_other_outputs_and_parameters(server: ServerThread, english: Path) -> None:
    assert (
        other(server, "/asr", english, language="en")
        .text.strip()
        .startswith(other(server, "/asr", english, language="en", output="txt", vad_filter="true").text[:10])
    )
    document = json.loads(other(server, "/asr", english, output="json", word_timestamps="true").text)
    assert document["language"] == "en"
    assert document["segments"][0]["words"][0]["word"]
    assert other(server, "/asr", english, output="tsv").text.startswith("start\tend\ttext")
    assert other(server, "/asr", english, colour="red").headers["x-ignored-parameters"] == "colour"
    assert other(server, "/asr", english, output="sub").json()["error"]["param"] == "output"


@pytest.mark.parametrize("send", [bazarr, other])
def test_language(server: ServerThread, english: Path, send: Any) -> None:
    query = {"detect_lang_offset": "0", "detect_lang_length": "30"} if send is other else {}
    answer = send(server, "/detect-language", english, video_file="/films/a.mkv", **query)
    assert answer.status_code == 200, answer.text
    result = answer.json()
    assert (result["detected_language"], result["language_code"]) == ("english", "en")
    assert 0.5 < result["confidence"] <= 1
    assert "x-ignored-parameters" not in answer.headers
    assert httpx.get(f"{server.url}/status").json()["version"].startswith("sottovoce ")
