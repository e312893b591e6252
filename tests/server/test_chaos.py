"""Clients that misbehave, many at a time: a session beside them does not notice, nothing of them stays."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from sottovoce.server.settings import ServerLimits
from tests.server.servers import SECOND, UPGRADE, ServerThread, SlowModel, head, opened, serving, wait_until

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
    made = []
    for beginning in beginnings:
        connection = socket.create_connection((host, int(port)))
        with suppress(OSError):
            connection.sendall(beginning)
        made.append(connection)
    return made


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
