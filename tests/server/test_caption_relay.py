"""The example that relays shared captions, against stand-ins of what it posts to."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import webvtt
from websockets.asyncio.client import connect

from tests.server.servers import SlowModel, serving
from tests.server.test_captions import captions, received, utterance

EXAMPLE = Path(__file__).parents[2] / "examples" / "caption_relay.py"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}")


class StandIn(BaseHTTPRequestHandler):
    """Takes posts as YouTube and Zoom do, but the first one only at the second try."""

    posts: list[tuple[str, str]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.posts.append((parse_qs(urlsplit(self.path).query)["seq"][0], body))
        self.send_response(503 if len(self.posts) == 1 else 200)
        self.end_headers()


@pytest.fixture
def stand_in() -> Iterator[str]:
    StandIn.posts = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/closedcaption?id=7"
    server.shutdown()
    server.server_close()
    thread.join()


async def relay(service: str, target: str) -> None:
    """Share two utterances, the first of them corrected, and run the example until they end."""
    with serving(SlowModel()) as server:
        async with connect(f"ws://{server.address}/v1/captions") as speaker:
            link = f"{server.url}/read#{(await received(speaker))['token']}"
            running = await asyncio.create_subprocess_exec(sys.executable, EXAMPLE, link, service, target)
            assert (await received(speaker))["readers"] == 1
            await speaker.send(captions(now=utterance(0, "one", "two")))
            await asyncio.sleep(2.5)
            await speaker.send(captions(utterances=[utterance(0, "ONE", "two", "three")], now=None))
            await speaker.send(captions(utterances=[{**utterance(1, *"abcdefghij"), "start": 3}]))
            await speaker.send('{"type": "close"}')
            assert await asyncio.wait_for(running.wait(), 30) == 0


@pytest.mark.parametrize("service", ["youtube", "zoom"])
def test_words_are_posted_once_and_again_where_that_fails(stand_in: str, service: str) -> None:
    asyncio.run(relay(service, stand_in))
    lines = [body.splitlines() for _, body in StandIn.posts]
    if service == "youtube":
        assert all(TIME.fullmatch(body.pop(0)) for body in lines)
    assert lines[:2] == [["one two"], ["one two"]]
    assert [number for number, _ in StandIn.posts][:3] == ["1", "1", "2"]
    assert " ".join(text for body in lines[2:] for text in body) == "three a b c d e f g h i j"


def test_segments_hold_every_word_once(tmp_path: Path) -> None:
    asyncio.run(relay("hls", str(tmp_path)))
    lines = (tmp_path / "captions.m3u8").read_text().splitlines()
    names = [line for line in lines if not line.startswith("#")]
    assert (lines[-1], names) == ("#EXT-X-ENDLIST", ["captions0.vtt", "captions1.vtt"])
    cues = [cue for name in names for cue in webvtt.from_string((tmp_path / name).read_text())]
    assert [cue.text for cue in cues] == ["one two three", "a b c d e f", "g h i j"]
    assert [cue.start for cue in cues] == ["00:00:00.000", "00:00:00.000", "00:00:06.000"]
