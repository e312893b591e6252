"""Clients and operators know how late a session is, while nothing is said as well."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from tests.server.conversation import connected, received, say
from tests.server.servers import SECOND, Gate, ServerThread, SlowModel, serving


def gauge(server: ServerThread) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("sottovoce_behind_s ")).split()[1])


def test_a_session_that_waits_is_told_so_and_told_when_it_does_no_longer(gate: Gate) -> None:
    with serving(SlowModel(gate)) as server:
        with connected(server) as socket:
            say(socket, 3 * SECOND)
            status = received(socket, "status")
            assert (status["received"], status["behind_s"]) == (3.0, 3.0)
            assert gauge(server) == 3.0
            assert httpx.get(f"{server.url}/health").json()["behind_s"] == 3.0
            say(socket, SECOND)
            assert received(socket, "status")["behind_s"] == 4.0
            gate.open()
            assert received(socket, "status")["behind_s"] == 0.0
            assert gauge(server) == 0.0
        assert gauge(server) == 0.0


def test_without_audio_nothing_is_told(fake_server: ServerThread) -> None:
    with connected(fake_server) as socket:
        received(socket, "ready")
        with pytest.raises(TimeoutError):
            socket.recv(timeout=2.5)


def test_the_client_of_openai_takes_what_it_does_not_know(gate: Gate) -> None:
    async def run(server: ServerThread) -> list[Any]:
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
                    gate.open()
                if event.type.endswith(".delta"):
                    return events
        return events

    with serving(SlowModel(gate)) as server:
        events = asyncio.run(asyncio.wait_for(run(server), 60))
    late = next(event for event in events if event.type == "sottovoce.status")
    assert late.behind_s == pytest.approx(4.0, abs=0.01)  # the resampler holds the rest
    assert events[-1].behind_s < 4.0


def test_results_of_deepgrams_api_tell_it_in_their_metadata(fake_server: ServerThread) -> None:
    with connected(fake_server, "/v1/listen?encoding=linear16&interim_results=true") as socket:
        say(socket, 3 * SECOND)
        assert 0.0 <= received(socket, "Results")["metadata"]["behind_s"] <= 3.0
