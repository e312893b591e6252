"""Clients that misbehave, and floods without payload: nobody else notices, and nothing of them stays."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from sottovoce.server.apis.captions import Page, SharedCaptions
from sottovoce.server.settings import ServerLimits
from tests.server import servers
from tests.server.conversation import connected, received
from tests.server.servers import (
    LOCKED,
    SECOND,
    UPGRADE,
    ServerThread,
    SlowModel,
    bearer,
    head,
    opened,
    serving,
    wait_until,
)

KEY = f"authorization: {bearer(servers.KEY)['authorization']}\r\n"
MASK = bytes(4)
CHUNK = b"1\r\nx\r\n"
"""Of a body: one byte, with five of framing."""
FRAMES = {
    "one byte": b"\x82\x81" + MASK + b"x",
    "empty continuation": b"\x00\x80" + MASK,
    "ping": b"\x89\x80" + MASK,
    "pong": b"\x8a\x80" + MASK,
}
N_BYTES = 3_000_000
LATE_S = 1.0
"""A margin for busy machines: the same floods took 2.5 to 11.5 s."""


@pytest.fixture(scope="module")
def locked() -> Iterator[ServerThread]:
    with serving(SlowModel(), access=LOCKED) as server:
        yield server


def flood(client: socket.socket, data: bytes) -> int:
    """Send data until the server ends the connection; returns how many bytes were taken."""
    n_sent = 0
    with suppress(OSError):
        while n_sent < len(data):
            n_sent += client.send(data[n_sent : n_sent + 65_536])
    return n_sent


def rest(client: socket.socket) -> bytes:
    """What a server says until it ends the connection."""
    result = b""
    with suppress(OSError):
        while piece := client.recv(65_536):
            result += piece
    return result


def slowest_health(server: ServerThread, is_over: Callable[[], bool]) -> float:
    """Ask until something is over; returns the longest time that this process worked for one answer (s).

    The process holds the server. Pauses of a busy machine do not count.
    """
    longest_s = 0.0
    with httpx.Client(timeout=60) as client:
        while True:
            began_s = time.process_time()
            assert client.get(f"{server.url}/health").status_code == 200
            longest_s = max(longest_s, time.process_time() - began_s)
            if is_over():
                return longest_s
            time.sleep(0.02)


@pytest.mark.parametrize("frame", FRAMES)
def test_frames_without_payload_end_their_socket(locked: ServerThread, frame: str) -> None:
    start = b"\x02\x80" + MASK if "continuation" in frame else b""
    with opened(locked, head("/v1/live", UPGRADE, KEY)) as client:
        wait_until(lambda: locked.services.n_sessions == 1)
        flood(client, start + FRAMES[frame] * (N_BYTES // len(FRAMES[frame])))
        assert b"expected at least 8 bytes of payload" in rest(client)
    wait_until(lambda: locked.services.n_sessions == 0)


def test_a_body_of_tiny_chunks_ends_its_request(locked: ServerThread) -> None:
    with opened(locked, head("/v1/listen", KEY, "transfer-encoding: chunked\r\n", method="POST")) as client:
        flood(client, CHUNK * (N_BYTES // len(CHUNK)))
        answer = rest(client)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"expected at least 8 bytes of payload" in answer


@pytest.mark.parametrize("end", [b"x-more: a\r\n", b"a" * 60_000])
def test_a_head_and_a_trailer_have_a_length(locked: ServerThread, end: bytes) -> None:
    started = head("/v1/audio/transcriptions", KEY, "transfer-encoding: chunked\r\n", method="POST")
    for beginning in (b"GET /health HTTP/1.1\r\nx-long: ", started + b"5\r\nhello\r\n0\r\nx-long: "):
        with opened(locked, beginning) as client:
            flood(client, end * (N_BYTES // len(end)))
            assert rest(client).startswith(b"HTTP/1.1 4")


def test_a_refused_request_is_answered_and_its_body_is_not_read(locked: ServerThread) -> None:
    for path, status in (("/v1/audio/transcriptions", b"401"), ("/nowhere", b"401"), ("/health", b"405")):
        with opened(locked, head(path, "transfer-encoding: chunked\r\n", method="POST")) as client:
            flood(client, CHUNK * (N_BYTES // len(CHUNK)))
            answer = rest(client)
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert b"connection: close" in answer.lower()


def test_requests_one_after_another_have_no_limit_of_framing(locked: ServerThread) -> None:
    with httpx.Client() as client:
        for _ in range(400):
            assert client.get(f"{locked.url}/ready", headers={"x-more": "a" * 500}).status_code == 200


def test_requests_that_do_not_wait_for_answers_are_answered_in_turn(locked: ServerThread) -> None:
    with opened(locked, head("/ready") * 50 + head("/ready", "connection: close\r\n")) as client:
        assert rest(client).count(b"HTTP/1.1 200 OK") == 51


@pytest.mark.parametrize(
    "protocol", ["h2c\r\nhttp2-settings: AAEA", "websocket\r\nsec-websocket-version: 13"]
)
def test_an_upgrade_to_another_protocol_is_ignored(locked: ServerThread, protocol: str) -> None:
    """Java's client offers HTTP/2 with its first request; its body belongs to the request. A WebSocket begins
    with GET.
    """
    offer = f"connection: Upgrade, HTTP2-Settings\r\nupgrade: {protocol}\r\n"
    begun = head("/v1/listen", KEY, offer, "content-length: 5\r\n", method="POST") + b"hello"
    with opened(locked, begun + head("/ready", "connection: close\r\n")) as client:
        answer = rest(client)
    assert answer.count(b"HTTP/1.1 ") == 2
    assert b"0 bytes" not in answer
    assert b"200 OK" in answer


def test_floods_write_few_lines_in_the_log(locked: ServerThread, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(5):
        with opened(locked, head("/v1/live", UPGRADE, KEY)) as client:
            flood(client, FRAMES["ping"] * 100_000)
        with opened(locked, b"no request\r\n\r\n") as client:
            assert rest(client).startswith(b"HTTP/1.1 400")
    wait_until(lambda: locked.services.n_sessions == 0)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 2
    assert len(caplog.records) < 20


@pytest.mark.parametrize(
    "kind",
    ["chunks", "ping", *(pytest.param(kind, marks=pytest.mark.long) for kind in FRAMES if kind != "ping")],
)
def test_a_flood_delays_nobody_else(kind: str) -> None:
    """Eight clients flood; the server answers others meanwhile."""
    if kind == "chunks":
        begun = head("/v1/listen", "transfer-encoding: chunked\r\n", method="POST")
        data = CHUNK * (N_BYTES // len(CHUNK))
    else:
        begun = head("/v1/live", UPGRADE) + (b"\x02\x80" + MASK if "continuation" in kind else b"")
        data = FRAMES[kind] * (N_BYTES // len(FRAMES[kind]))
    with serving(SlowModel()) as server:

        async def one() -> None:
            reader, writer = await asyncio.open_connection(*server.address.split(":"))
            writer.write(begun + data)
            with suppress(OSError):
                await asyncio.wait_for(asyncio.gather(writer.drain(), reader.read()), 30)
            writer.close()

        async def floods() -> float:
            flooding = asyncio.gather(*(one() for _ in range(8)))
            longest_s = await asyncio.to_thread(slowest_health, server, flooding.done)
            await flooding
            return longest_s

        assert asyncio.run(floods()) < LATE_S


EMPTY: list[Any] = [{"id": 0, "words": []}, {"id": 499, "words": []}]


def utterances(n: int, size: int) -> list[Any]:
    return [{"id": number, "words": [{"word": "x" * size}]} for number in range(n)]


def test_readers_get_captions_page_by_page_and_share_the_pages() -> None:
    shared = SharedCaptions()
    shared.apply({"utterances": utterances(500, 1_000), "names": {"A": "Anna"}})
    result: dict[int, Any] = {}
    names, seen, n_pages = None, -1, 0
    while (page := shared.page(seen)) is not None:
        assert shared.page(seen) is page, "serialised once for all readers"
        assert len(page.text) < 50_000
        message = json.loads(page.text)
        result |= {item["id"]: item for item in message.get("utterances", [])}
        names, seen, n_pages = message.get("names", names), page.revision, n_pages + 1
        if n_pages == 3:  # what was read and what was not read yet change meanwhile
            shared.apply({"utterances": EMPTY})
    assert result == {item["id"]: item for item in utterances(500, 1_000) + EMPTY}
    assert names == {"A": "Anna"}
    assert n_pages > 10


def test_a_reader_in_the_middle_begins_anew_when_captions_are_cleared() -> None:
    shared = SharedCaptions()
    shared.apply({"utterances": utterances(500, 1_000)})
    page = shared.page(-1)
    assert page is not None
    shared.apply({"utterances": utterances(1, 1), "clear": True})
    anew = shared.page(page.revision)
    assert anew is not None
    message = json.loads(anew.text)
    assert (message["clear"], len(message["utterances"])) == (True, 1)
    assert shared.page(anew.revision) is None


def test_readers_that_do_not_read_hold_little_and_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    page_of = SharedCaptions.page

    def counting(shared: SharedCaptions, revision: int) -> Page | None:
        result = page_of(shared, revision)
        counted.append(0 if result is None else len(result.text))
        return result

    monkeypatch.setattr(SharedCaptions, "page", counting)
    with (
        serving(SlowModel(), limits=ServerLimits(send_s=1.0)) as server,
        connected(server, "/v1/captions") as speaker,
        ExitStack() as held,
    ):
        token = received(speaker)["token"]
        shared = server.state.captions.find(token)
        shared.apply({"utterances": utterances(6_000, 2_000)})
        offer = f"sec-websocket-protocol: sottovoce, sottovoce-captions.{token}\r\n"
        host, port = server.address.split(":")
        for _ in range(3):
            created = held.enter_context(socket.socket())
            created.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            created.connect((host, int(port)))
            created.sendall(head("/v1/captions/read", UPGRADE, offer))
        wait_until(lambda: shared.n_readers == 3)
        wait_until(lambda: shared.n_readers == 0)
        n_sent = sum(counted)
        wait_until(lambda: server.server.gate.n_connections == 1)
    assert n_sent < 3 * 6_000_000, "less than half of all captions for each reader"


ROUTES = ("/v1/live", "/v1/realtime")


@pytest.fixture(scope="module")
def fake_server() -> Iterator[ServerThread]:
    with serving(SlowModel(), limits=ServerLimits(sessions=64, idle_s=20.0)) as server:
        yield server


async def said(address: str, seconds: int) -> str:
    """The text of a well-behaved session."""
    text = ""
    async with connect(f"ws://{address}/v1/live") as client:
        for _ in range(seconds):
            await client.send(SECOND)
            await asyncio.sleep(0.02)
        await client.send('{"type": "close"}')
        with suppress(ConnectionClosed):
            while True:
                message = json.loads(await client.recv())
                text += message["text"] if message["type"] == "partial" else ""
    return text


async def tiny(address: str) -> None:
    """10,000 messages of one byte."""
    async with connect(f"ws://{address}/v1/live") as client:
        for _ in range(10_000):
            await client.send(b"\x00")
        await client.send('{"type": "close"}')
        with suppress(ConnectionClosed):
            while True:
                await client.recv()


async def finalizing(address: str) -> None:
    async with connect(f"ws://{address}/v1/live") as client:
        for _ in range(500):
            await client.send('{"type": "finalize"}')
        client.transport.abort()


async def garbage(address: str, route: str) -> None:
    async with connect(f"ws://{address}{route}") as client:
        with suppress(ConnectionClosed):
            for i in range(200):
                await client.send("{" * i)
                await client.send(bytes(range(i % 256)))
        client.transport.abort()


async def vanishing(address: str, route: str) -> None:
    client = await connect(f"ws://{address}{route}")
    with suppress(ConnectionClosed):
        await client.send(SECOND)
    client.transport.abort()


def half_open(address: str) -> list[socket.socket]:
    """Connections that begin something and leave it at that."""
    host, port = address.split(":")
    beginnings = (
        b"",
        b"GET / HT",
        b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: 127.0.0.1\r\n",
        b"GET /v1/live HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\n",
        b"\x16\x03\x01\x02\x00",
        b"\x00" * 100_000,
    )
    created = []
    for beginning in beginnings:
        connection = socket.create_connection((host, int(port)))
        with suppress(OSError):
            connection.sendall(beginning)
        created.append(connection)
    return created


def test_nobody_else_is_harmed(fake_server: ServerThread) -> None:
    async def run() -> str:
        well_behaved = asyncio.create_task(said(fake_server.address, 40))
        crowd: list[Any] = [tiny(fake_server.address), finalizing(fake_server.address)]
        for route in ROUTES:
            crowd += [
                garbage(fake_server.address, route),
                *(vanishing(fake_server.address, route) for _ in range(10)),
            ]
        results = await asyncio.gather(*crowd, return_exceptions=True)
        faults = [r for r in results if isinstance(r, BaseException)]
        assert all(isinstance(fault, ConnectionClosed | InvalidHandshake | OSError) for fault in faults), (
            faults
        )
        return await well_behaved

    connections = half_open(fake_server.address)
    try:
        assert asyncio.run(run()).split() == ["word"] * 40
    finally:
        for connection in connections:
            connection.close()
    wait_until(lambda: fake_server.services.n_sessions == 0)
    assert fake_server.services.n_requests == 0
    assert httpx.get(f"{fake_server.url}/ready").status_code == 200


def test_a_client_that_answers_no_ping_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine lost its network: nothing comes from it any more, not even the end."""
    monkeypatch.setattr("sottovoce.server.server.PING_EVERY_S", 0.2)
    monkeypatch.setattr("sottovoce.server.server.PONG_WITHIN_S", 0.4)
    with serving(SlowModel()) as server, opened(server, head("/v1/live", UPGRADE)):
        wait_until(lambda: server.services.n_sessions == 1)
        wait_until(lambda: server.services.n_sessions == 0)
        assert httpx.get(f"{server.url}/ready").status_code == 200
