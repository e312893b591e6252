"""Segments of a recording while it is read, with the words that a page plays and shows them by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from sottovoce.serving.http.server import ServerThread

URL = "/v1/audio/transcriptions"


def events(server: ServerThread, recording: Path, **given: str) -> list[dict[str, Any]]:
    files = {"file": ("talk.flac", recording.read_bytes())}
    answer = httpx.post(server.url + URL, files=files, data={"stream": "true", **given}, timeout=60)
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize("with_words", [True, False])
def test_segments_come_with_their_words_and_language(
    server: ServerThread, english: Path, with_words: bool
) -> None:
    asked = {"timestamp_granularities[]": "word"} if with_words else {}
    *found, done = events(server, english, response_format="verbose_json", **asked)
    segments = [one for one in found if one["type"] == "transcript.text.segment"]
    assert segments
    assert "".join(one["text"] for one in segments).strip() == done["text"]
    assert {one["language"] for one in segments} == {"en"}
    assert "speaker" not in segments[0]
    for segment in segments:
        assert ("words" in segment) is with_words
        if with_words:
            assert "".join(word["word"] for word in segment["words"]) == segment["text"]
            times = [time for word in segment["words"] for time in (word["start"], word["end"])]
            assert times == sorted(times)


def test_words_of_one_answer_with_speakers_are_refused(server: ServerThread, english: Path) -> None:
    files = {"file": ("talk.flac", english.read_bytes())}
    form = {"response_format": "diarized_json", "timestamp_granularities[]": "word"}
    answer = httpx.post(server.url + URL, files=files, data=form, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "timestamp_granularities[]"
