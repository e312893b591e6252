"""The example that relays shared captions, against stand-ins of what it posts to."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import webvtt

from tests.server.conversation import received, say, utterance
from tests.server.servers import ServerThread
from tests.server.test_captions import CLOSE, captions, publishing

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


def relay(server: ServerThread, service: str, target: str) -> None:
    """Share two utterances, the first of them corrected, and run the example until they end."""
    with publishing(server) as speaker:
        link = f"{server.url}/read#{received(speaker)['token']}"
        running = subprocess.Popen([sys.executable, EXAMPLE, link, service, target])
        assert received(speaker)["readers"] == 1
        say(speaker, captions(now=utterance(0, "one two")))
        time.sleep(2.5)
        say(speaker, captions(utterances=[utterance(0, "ONE two three")], now=None))
        say(speaker, captions(utterances=[utterance(1, "a b c d e f g h i j", start=3)]), CLOSE)
        assert running.wait(30) == 0


@pytest.mark.parametrize("service", ["youtube", "zoom"])
def test_words_are_posted_once_and_again_where_that_fails(
    fake_server: ServerThread, stand_in: str, service: str
) -> None:
    relay(fake_server, service, stand_in)
    lines = [body.splitlines() for _, body in StandIn.posts]
    if service == "youtube":
        assert all(TIME.fullmatch(body.pop(0)) for body in lines)
    assert lines[:2] == [["one two"], ["one two"]]
    assert [number for number, _ in StandIn.posts][:3] == ["1", "1", "2"]
    assert " ".join(text for body in lines[2:] for text in body) == "three a b c d e f g h i j"


def test_segments_hold_every_word_once(fake_server: ServerThread, tmp_path: Path) -> None:
    relay(fake_server, "hls", str(tmp_path))
    lines = (tmp_path / "captions.m3u8").read_text().splitlines()
    names = [line for line in lines if not line.startswith("#")]
    assert (lines[-1], names) == ("#EXT-X-ENDLIST", ["captions0.vtt", "captions1.vtt"])
    cues = [cue for name in names for cue in webvtt.from_string((tmp_path / name).read_text())]
    assert [cue.text for cue in cues] == ["one two three", "a b c d e f", "g h i j"]
    assert [cue.start for cue in cues] == ["00:00:00.000", "00:00:00.000", "00:00:06.000"]
