"""Connections that ask for nothing end, have a number, and fill no log; unread sockets hold little."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from websockets.sync.client import connect

from sottovoce.errors import OptionError
from sottovoce.server.connections import ConnectionGate, make_connections
from sottovoce.server.server import limit_warnings, log_exception
from sottovoce.server.settings import Access, ServerLimits
from tests.server.conversation import connected, rest, say
from tests.server.servers import SECOND, UPGRADE, Gate, SlowModel, head, opened, serving, wait_until


def is_closed(client: socket.socket) -> bool:
    """Whether the server ends a connection, having said nothing."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nhost: a\r\n",
        b"GET /v1/live HTTP/1.1\r\nupgrade: websocket\r\n",
        b"\r\n\r\n",
    ],
)
def test_a_head_that_does_not_come_ends_its_connection(beginning: bytes) -> None:
    with serving(SlowModel(), limits=ServerLimits(head_s=0.2)) as server:
        with opened(server, beginning) as client:
            assert is_closed(client)
        wait_until(lambda: server.server.gate.n_connections == 0)


def test_the_next_head_has_its_time_too() -> None:
    whole = head("/health")
    with serving(SlowModel(), limits=ServerLimits(head_s=0.2)) as server, opened(server) as client:
        for _ in range(2):
            client.sendall(whole)
            answer = b""
            while b'"engines"' not in answer:
                answer += client.recv(1000)
        client.sendall(whole[:-3])
        rest = answer.partition(b"\r\n\r\n")[2]
        assert rest
        while not is_closed(client):
            pass


def test_a_body_that_nobody_reads_has_an_end() -> None:
    begun = head("/nowhere", "content-length: 1000000\r\n", method="POST")
    with serving(SlowModel(), limits=ServerLimits(upload_s=0.2)) as server, opened(server, begun) as client:
        wait_until(lambda: server.server.gate.n_connections == 1)
        wait_until(lambda: server.server.gate.n_connections == 0)
        assert b"404" in client.recv(10_000)


def test_connections_have_a_number() -> None:
    limits = ServerLimits(connections=6, connections_per_address=6, head_s=60.0)
    with serving(SlowModel(), limits=limits) as server:
        with ExitStack() as stack:
            for _ in range(6):
                stack.enter_context(opened(server, b"GET"))
            wait_until(lambda: server.server.gate.n_connections == 6)
            with opened(server) as late:
                assert is_closed(late)
        wait_until(lambda: server.server.gate.n_connections == 0)
        assert "sottovoce_refused_connections_total 1.0" in httpx.get(f"{server.url}/metrics").text


def test_an_address_has_its_part_and_a_proxy_has_more() -> None:
    refused: list[None] = []
    access = Access(proxies=("10.0.0.0/8",))
    gate = ConnectionGate(5, 2, access.is_proxy, lambda: refused.append(None))
    assert [gate.enter("1.2.3.4") for _ in range(3)] == [True, True, False]
    assert [gate.enter("10.1.2.3") for _ in range(4)] == [True, True, True, False]
    gate.leave("1.2.3.4")
    assert gate.enter("1.2.3.4")
    assert (gate.n_connections, len(refused)) == (5, 2)
    with pytest.raises(OptionError, match="expected an address or a network"):
        Access(proxies=("proxy.example",))


def test_a_place_lasts_as_long_as_its_socket() -> None:
    with serving(SlowModel()) as server:
        with connected(server) as client:
            client.recv()
            assert server.server.gate.n_connections == 1
        wait_until(lambda: server.server.gate.n_connections == 0)


def test_a_system_that_takes_no_more_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        limit_warnings("sottovoce.server.server")
        context = {"message": "socket.accept() out of system resource", "exception": OSError(24, "full")}
        for _ in range(1_000):
            log_exception(asyncio.get_running_loop(), context)
        log_exception(asyncio.get_running_loop(), {"message": "something else"})

    caplog.set_level(logging.INFO)
    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == [
        "the system takes no more connections",
        "something else",
    ]


def sent_before_it_blocks(client: socket.socket, piece: bytes) -> int:
    """Bytes that a socket takes while nobody reads them."""
    client.settimeout(0.5)
    n_sent = 0
    try:
        while n_sent < 50_000_000:
            n_sent += client.send(piece)
    except TimeoutError:
        return n_sent
    return n_sent


def test_little_stands_before_the_ping_of_a_client_that_is_slowed_down(gate: Gate) -> None:
    """What is not read lies in the buffers of two systems, and a ping behind it."""
    second = bytes([0x82, 0xFE, 0x7D, 0x00, 0, 0, 0, 0]) + SECOND
    with serving(SlowModel(gate), limits=ServerLimits(pending_s=1.0, message_kb=64)) as server:
        with opened(server, head("/v1/live", UPGRADE)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_000)
            wait_until(lambda: server.services.n_sessions == 1)
            n_sent = sent_before_it_blocks(client, second)
        gate.open()
    assert n_sent < 1_000_000


def test_a_client_whose_answer_stands_behind_audio_is_not_let_go(
    monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    monkeypatch.setattr("sottovoce.server.server.PING_EVERY_S", 0.1)
    monkeypatch.setattr("sottovoce.server.server.PONG_WITHIN_S", 1.0)
    with (
        serving(SlowModel(gate), limits=ServerLimits(pending_s=1.0, message_kb=64)) as server,
        connected(server) as client,
    ):
        say(client, *[2 * SECOND] * 4)
        time.sleep(2.5)
        gate.open()
        say(client, {"type": "close"})
        rest(client)
    assert client.close_code == 1000


def test_bytes_that_are_no_text_end_a_socket_without_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    with serving(SlowModel()) as server, connected(server) as client:
        client.recv()
        client.send(b"\xff\xfe{", text=True)
        rest(client)
    assert client.close_code == 1007
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_client_that_goes_while_its_audio_waits_is_noticed() -> None:
    """Nothing is read of it meanwhile, its end neither, and nothing is sent: a minute in one message, two
    seconds of work for each two of it."""
    with serving(SlowModel(lambda: time.sleep(2.0)), limits=ServerLimits(pending_s=2.0)) as server:
        client = connected(server, "/v1/listen?encoding=linear16&sample_rate=16000")
        say(client, SECOND * 60)
        time.sleep(1.0)
        assert server.services.n_sessions == 1
        client.socket.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: server.services.n_sessions == 0, within_s=3.0)


@contextmanager
def answering(
    app: ASGIApp, limits: ServerLimits, dead_s: float = 80.0
) -> Iterator[tuple[ConnectionGate, tuple[str, int]]]:
    """A server of an app alone: its gate and its address."""
    gate = ConnectionGate(10, 10, lambda _: False, lambda: None)
    make = make_connections(gate, limits, dead_s)
    config = uvicorn.Config(
        app,
        http=make,  # type: ignore[arg-type]
        ws="websockets-sansio",
        lifespan="off",
        log_config=None,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield gate, listening.getsockname()
        finally:
            server.should_exit = True
            thread.join()


def received(client: socket.socket, pause_s: float = 0.0) -> int:
    """The number of bytes that a client takes until the connection ends, so slowly."""
    n_received = 0
    with suppress(ConnectionResetError):
        while piece := client.recv(65_536):
            n_received += len(piece)
            time.sleep(pause_s)
    return n_received


def test_a_client_may_take_a_long_answer_slowly() -> None:
    """A connection that closes after its answer ends when the client takes no more of it, and no sooner."""
    n_bytes = 16_000_000

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse(bytes(n_bytes))(scope, receive, send)

    with answering(app, ServerLimits(send_s=1.0)) as (gate, address):
        for is_read in (True, False):
            with socket.create_connection(address, timeout=10) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
                client.sendall(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
                if is_read:
                    assert received(client, 0.01) > n_bytes
                else:
                    wait_until(lambda: gate.n_connections == 1)
                    wait_until(lambda: gate.n_connections == 0)


def test_a_connection_that_fails_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = await Request(scope, receive).body()
        await PlainTextResponse(f"{len(body)} bytes")(scope, receive, send)

    take = HttpToolsProtocol.data_received

    def failing(self: HttpToolsProtocol, data: bytes) -> None:
        take(self, data)
        assert b"fault" not in data

    monkeypatch.setattr(HttpToolsProtocol, "data_received", failing)
    with answering(app, ServerLimits()) as (_, address):
        for end in (b"fault", b"right"):
            with socket.create_connection(address, timeout=10) as client:
                client.sendall(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100005\r\n\r\n")
                client.sendall(bytes(100_000) + end)
                answer = b""
                with suppress(ConnectionResetError):
                    while b"bytes" not in answer and (piece := client.recv(1_000)):
                        answer += piece
            assert (b"100005 bytes" in answer) == (end == b"right")


def test_an_upgrade_that_is_not_taken_leaves_the_connection_to_requests() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("an answer")(scope, receive, send)

    half = b"connection: upgrade\r\nconnection: keep-alive\r\nupgrade: websocket\r\n"
    with (
        answering(app, ServerLimits()) as (_, address),
        socket.create_connection(address, timeout=10) as created,
    ):
        for _ in range(2):
            created.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n" + half + b"\r\n")
            answer = b""
            while b"an answer" not in answer and (piece := created.recv(1_000)):
                answer += piece
            assert answer.endswith(b"an answer")


def test_what_is_no_http_is_refused_at_once() -> None:
    """Such as a client of TLS at a port without it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError

    with answering(app, ServerLimits(head_s=60.0)) as (_, address):
        for beginning, status in (
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
            (b'{"type": "describe"}\n', b"400"),
            (b"get / ", b"400"),
            (b"CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n", b"405"),
        ):
            with socket.create_connection(address, timeout=10) as client:
                client.sendall(beginning)
                assert client.recv(1_000).startswith(b"HTTP/1.1 " + status)


def test_a_handshake_may_take_as_long_as_a_model_is_loaded() -> None:
    """Pings begin with the answer to the handshake, so that a client has nothing to say until then."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await asyncio.sleep(0.9)
        await send({"type": "websocket.accept"})
        await asyncio.sleep(0.3)
        await send({"type": "websocket.send", "text": "here"})
        await receive()

    with (
        answering(app, ServerLimits(), dead_s=0.5) as (_, address),
        connect(f"ws://{address[0]}:{address[1]}") as client,
    ):
        assert client.recv() == "here"
