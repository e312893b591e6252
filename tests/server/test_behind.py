"""Clients and operators know how late a session is, while nothing is said as well."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import ClientConnection, connect

from tests.server.servers import ServerThread, SlowModel, serving

SECOND = bytes(2 * 16_000)


@contextmanager
def held_up() -> Iterator[tuple[ServerThread, threading.Event]]:
    goes_on = threading.Event()
    try:
        with serving(SlowModel(lambda: bool(goes_on.wait()) and None)) as server:
            yield server, goes_on
            goes_on.set()
    finally:
        goes_on.set()


async def next_of(socket: ClientConnection, kind: str) -> dict[str, Any]:
    while True:
        message: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), 20))
        if message["type"] == kind:
            return message


def gauge(server: ServerThread) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("sottovoce_behind_s ")).split()[1])


def test_a_session_that_waits_is_told_so_and_told_when_it_does_no_longer() -> None:
    async def run(server: ServerThread, goes_on: threading.Event) -> None:
        async with connect(f"ws://{server.address}/v1/live") as socket:
            await socket.send(3 * SECOND)
            status = await next_of(socket, "status")
            assert (status["received"], status["behind_s"]) == (3.0, 3.0)
            assert (await asyncio.to_thread(gauge, server)) == 3.0
            assert httpx.get(f"{server.url}/health").json()["behind_s"] == 3.0
            await socket.send(SECOND)
            assert (await next_of(socket, "status"))["behind_s"] == 4.0
            goes_on.set()
            assert (await next_of(socket, "status"))["behind_s"] == 0.0
            assert (await asyncio.to_thread(gauge, server)) == 0.0

    with held_up() as (server, goes_on):
        asyncio.run(run(server, goes_on))
        assert gauge(server) == 0.0


def test_without_audio_nothing_is_told() -> None:
    async def run(server: ServerThread) -> None:
        async with connect(f"ws://{server.address}/v1/live") as socket:
            await next_of(socket, "ready")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(socket.recv(), 2.5)

    with serving(SlowModel()) as server:
        asyncio.run(run(server))


def test_the_client_of_openai_takes_what_it_does_not_know() -> None:
    async def run(server: ServerThread, goes_on: threading.Event) -> list[Any]:
        events: list[Any] = []
        async with (
            AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
            client.realtime.connect(extra_query={"intent": "transcription"}) as connection,
        ):
            audio = base64.b64encode(bytes(4 * 48_000)).decode()
            await connection.input_audio_buffer.append(audio=audio)
            async for event in connection:
                events.append(event)
                if str(event.type) == "sottovoce.status":
                    goes_on.set()
                if event.type.endswith(".delta"):
                    return events
        return events

    with held_up() as (server, goes_on):
        events = asyncio.run(asyncio.wait_for(run(server, goes_on), 60))
    late = next(event for event in events if event.type == "sottovoce.status")
    assert late.behind_s == pytest.approx(4.0, abs=0.01)  # the resampler holds the rest
    assert events[-1].behind_s < 4.0


def test_results_of_deepgrams_api_tell_it_in_their_metadata() -> None:
    async def run(server: ServerThread) -> dict[str, Any]:
        address = f"ws://{server.address}/v1/listen?encoding=linear16&interim_results=true"
        async with connect(address) as socket:
            await socket.send(3 * SECOND)
            return await next_of(socket, "Results")

    with serving(SlowModel()) as server:
        found = asyncio.run(run(server))
    assert 0.0 <= found["metadata"]["behind_s"] <= 3.0
