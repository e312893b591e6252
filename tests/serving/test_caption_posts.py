"""Captions that are posted to YouTube and Zoom: stand-ins on this machine take what those take."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
from websockets.asyncio.client import connect

from sottovoce.api import Model
from sottovoce.serving.captions import caption_posts
from sottovoce.serving.captions.caption_posts import CaptionTarget
from sottovoce.serving.http.server import ServerThread
from sottovoce.serving.parsing.faults import ApiError
from tests.serving.servers import SlowModel, settings, until
from tests.serving.test_captions import captions, received, utterance

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}")


class StandIn:
    """Takes posts as the services do; statuses: of the next answers, then 200."""

    def __init__(self) -> None:
        self.posts: list[tuple[dict[str, list[str]], str, str]] = []
        self.statuses: list[int] = []

    @contextmanager
    def listening(self) -> Iterator[str]:
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                query = parse_qs(urlsplit(self.path).query)
                stand_in.posts.append((query, self.headers["content-type"], body))
                self.send_response(stand_in.statuses.pop(0) if stand_in.statuses else 200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/closedcaption?id=7&ns=x"
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr(caption_posts, "EVERY_S", 0.05)
    monkeypatch.setattr(caption_posts, "WAITS_S", (0.05, 0.05))
    return StandIn()


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    wanted = replace(settings(), caption_hosts=("127.0.0.1",))
    with ServerThread(wanted, lambda name: cast(Model, SlowModel())) as running:
        running.wait_until_ready()
        yield running


def words_of(body: str) -> list[str]:
    return [word for line in body.splitlines() if not TIME.fullmatch(line) for word in line.split()]


@pytest.mark.parametrize("service", ["youtube", "zoom"])
def test_words_are_posted_once_in_turn_and_again_where_that_fails(
    server: ServerThread, stand_in: StandIn, service: str
) -> None:
    async def run(url: str) -> list[dict[str, Any]]:
        async with connect(f"ws://{server.address}/v1/captions") as speaker:
            await received(speaker)
            await speaker.send(captions(utterances=[utterance(0, "before")]))
            await speaker.send(f'{{"type": "post", "url": "{url}", "service": "{service}"}}')
            await asyncio.sleep(0.2)
            await speaker.send(captions(now=utterance(1, "one", "two")))
            await asyncio.to_thread(until, lambda: len(stand_in.posts) == 1)
            stand_in.statuses += [503, 400]
            await speaker.send(captions(utterances=[utterance(1, "ONE", "two", "three")], now=None))
            await asyncio.to_thread(until, lambda: len(stand_in.posts) == 4)
            return [await received(speaker) for _ in range(3)]

    with stand_in.listening() as url:
        states = asyncio.run(run(url))
    assert states == [
        {"type": "posting", "taken": True, "status": 200},
        {"type": "posting", "taken": False, "status": 503},
        {"type": "posting", "taken": True, "status": 200},
    ]
    assert [words_of(body) for _, _, body in stand_in.posts] == [["one", "two"]] + [["three"]] * 3
    queries = [query for query, _, _ in stand_in.posts]
    assert [query["seq"] for query in queries] == [["1"], ["2"], ["2"], ["2"]], (
        "a retry has the number that failed"
    )
    assert all(query["id"] == ["7"] for query in queries)
    assert {kind for _, kind, _ in stand_in.posts} == {"text/plain; charset=utf-8"}
    if service == "zoom":
        assert all(query["lang"] == ["en-US"] for query in queries)
        assert stand_in.posts[0][2] == "one two\n"
    else:
        time, text = stand_in.posts[0][2].splitlines()
        assert TIME.fullmatch(time)
        assert text == "one two"


def test_posts_end_when_they_are_not_wanted_and_where_nobody_takes_them_the_session_goes_on(
    server: ServerThread, stand_in: StandIn
) -> None:
    async def run(url: str) -> None:
        async with connect(f"ws://{server.address}/v1/captions") as speaker:
            token = (await received(speaker))["token"]
            await speaker.send('{"type": "post", "url": "http://127.0.0.1:1999/cc", "service": "zoom"}')
            await speaker.send(captions(utterances=[utterance(0, "lost")]))
            assert await received(speaker) == {"type": "posting", "taken": False, "status": None}
            await speaker.send(f'{{"type": "post", "url": "{url}", "service": "zoom"}}')
            await speaker.send(captions(utterances=[utterance(1, "there")]))
            assert await received(speaker) == {"type": "posting", "taken": True, "status": 200}
            await speaker.send('{"type": "post", "url": null}')
            await speaker.send(captions(utterances=[utterance(2, "more")]))
            await asyncio.sleep(0.3)
            assert [words_of(body) for _, _, body in stand_in.posts] == [["there"]]
            assert token not in server.services.caption_posters

    with stand_in.listening() as url:
        asyncio.run(run(url))


def test_a_wrong_address_is_told_and_the_session_goes_on(server: ServerThread) -> None:
    async def run() -> None:
        async with connect(f"ws://{server.address}/v1/captions") as speaker:
            await received(speaker)
            await speaker.send('{"type": "post", "url": "https://example.org/closedcaption"}')
            error = (await received(speaker))["error"]
            assert error["param"] == "url"
            assert "youtube.com, zoom.us" in error["message"]
            assert "example" not in error["message"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "service"),
    [
        ("http://upload.youtube.com/closedcaption?cid=x", "youtube"),
        ("https://wmcc.zoom.us/closedcaption?id=1", "zoom"),
    ],
)
def test_the_service_is_known_by_its_host(url: str, service: str) -> None:
    assert CaptionTarget.read(url, None, ()).service == service


@pytest.mark.parametrize(
    "url",
    [
        "https://youtube.com.evil.test/closedcaption",
        "https://evilzoom.us/closedcaption",
        "https://user@zoom.us/closedcaption",
        "http://127.0.0.1/closedcaption",
        "http://169.254.169.254/latest",
        "file:///etc/passwd",
        "https://evil.test/?//127.0.0.1",
    ],
)
def test_other_hosts_are_refused(url: str) -> None:
    with pytest.raises(ApiError):
        CaptionTarget.read(url, "zoom", ("127.0.0.2",))
