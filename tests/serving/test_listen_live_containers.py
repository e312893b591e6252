"""Deepgram's streams from browsers: containers that say their own encoding."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from sottovoce.audio.io import load_audio
from sottovoce.serving.http.server import ServerThread
from tests.audio.test_live_container import recorded
from tests.serving.servers import CLIPS, SlowModel, serving


def talk(server: ServerThread, data: bytes, query: str = "") -> tuple[list[dict[str, Any]], int | None]:
    """Messages and close code of a recorder that sends a chunk now and then."""

    async def run() -> tuple[list[dict[str, Any]], int | None]:
        async with connect(f"ws://{server.address}/v1/listen?{query}") as socket:
            for start in range(0, len(data), 3_000):
                await socket.send(data[start : start + 3_000])
            await socket.send('{"type": "CloseStream"}')
            heard: list[dict[str, Any]] = []
            with suppress(ConnectionClosed):
                async for message in socket:
                    heard.append(json.loads(message))
            return heard, socket.close_code

    return asyncio.run(run())


@pytest.mark.parametrize(("kind", "query"), [("webm", ""), ("ogg", ""), ("ogg", "&encoding=ogg-opus")])
def test_live_containers_of_browsers_have_words(server: ServerThread, kind: str, query: str) -> None:
    samples = load_audio(CLIPS / "en.flac")
    heard, code = talk(server, recorded(samples, kind), f"language=en&punctuate=true{query}")
    words = [
        message["channel"]["alternatives"][0]["transcript"]
        for message in heard
        if message["type"] == "Results" and message["is_final"]
    ]
    assert code == 1000
    assert "garden" in " ".join(words).lower()
    assert heard[-1]["type"] == "Metadata"
    assert heard[-1]["duration"] == pytest.approx(len(samples) / 16_000, abs=0.05)


def test_what_is_no_container_ends_the_stream_with_the_reason() -> None:
    with serving(SlowModel()) as server:
        heard, code = talk(server, b"no audio at all" * 1000)
        assert code == 1008
        assert heard[-1]["type"] == "Error"
        assert "no known format" in heard[-1]["description"]
