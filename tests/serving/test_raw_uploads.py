"""Recordings without a header are known by the names that they are uploaded under."""

from __future__ import annotations

import httpx
import pytest

from sottovoce.serving.http.server import ServerThread
from tests.audio.test_input_format import encoded


@pytest.mark.parametrize(
    ("ending", "container", "codec", "rate"),
    [("g722", "g722", "g722", 16_000), ("ulaw", "mulaw", "pcm_mulaw", 8_000)],
)
def test_an_upload_is_known_by_its_ending(
    server: ServerThread, ending: str, container: str, codec: str, rate: int
) -> None:
    data = encoded(container, codec, rate)
    answers = [
        httpx.post(
            f"{server.url}/v1/audio/transcriptions",
            files={"file": (f"call.{name}", data)},
            data={"model": "nano", "language": "en"},
            timeout=60,
        )
        for name in (ending, "bin")
    ]
    assert answers[0].status_code == 200
    assert "in the morning" in answers[0].json()["text"]
    assert answers[1].status_code == 400
    assert "input format" in answers[1].json()["error"]["message"]
