"""Clients of others' APIs are refused as these refuse, before a socket opens; silence holds no place."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sottovoce.server import scheduler
from sottovoce.server.settings import Access, ServerLimits
from sottovoce.server.worker import THREAD_NAME
from tests.server.servers import ServerThread, SlowModel, serving

REALTIME = "/v1/realtime?intent=transcription"
LISTEN = "/v1/listen?encoding=linear16"
LOCKED = Access(api_keys=("open-sesame",))


async def refusal(address: str) -> tuple[int, dict[str, str], dict[str, Any]]:
    with pytest.raises(InvalidStatus) as refused:
        await connect(address)
    answer = refused.value.response
    return answer.status_code, dict(answer.headers), json.loads(answer.body)


def test_a_wrong_key_is_refused_before_the_socket_opens_as_its_api_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(SlowModel(), access=LOCKED) as server, caplog.at_level(logging.WARNING):
        status, headers, body = asyncio.run(refusal(f"ws://{server.address}{REALTIME}"))
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert headers["www-authenticate"] == "Bearer"
        status, _, body = asyncio.run(refusal(f"ws://{server.address}{LISTEN}"))
        assert (status, body["err_code"]) == (401, "INVALID_AUTH")
        answer = httpx.post(f"{server.url}/v1/listen", content=b"a")
        assert (answer.status_code, answer.json()["err_code"]) == (401, "INVALID_AUTH")
        assert set(answer.json()) == {"err_code", "err_msg", "request_id"}
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == []  # a stranger is no fault of ours


def test_the_client_of_openai_knows_a_full_server_by_its_status() -> None:
    async def run(server: ServerThread) -> None:
        async with connect(f"ws://{server.address}{REALTIME}"):
            status, headers, body = await refusal(f"ws://{server.address}{REALTIME}")
            assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
            assert int(headers["retry-after"]) >= 1
            status, headers, body = await refusal(f"ws://{server.address}{LISTEN}")
            assert (status, body["err_code"]) == (429, "TOO_MANY_REQUESTS")
            assert int(headers["retry-after"]) >= 1
            async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
                with pytest.raises((openai.APIError, InvalidStatus)):
                    await client.realtime.connect(extra_query={"intent": "transcription"}).enter()

    with serving(SlowModel(), limits=ServerLimits(sessions=1)) as server:
        asyncio.run(run(server))


def test_a_socket_that_is_asked_for_without_an_upgrade_says_so_in_the_error_of_its_api() -> None:
    with serving(SlowModel()) as server:
        for path in ("/v1/live", "/v1/realtime", "/v1/captions"):
            answer = httpx.get(f"{server.url}{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (426, "upgrade_required")
            assert answer.json()["error"]["message"] == f"{path}: expected a WebSocket"
        for path in ("/v1/listen", "/v2/listen"):
            answer = httpx.get(f"{server.url}{path}")
            assert (answer.status_code, answer.json()["err_code"]) == (426, "upgrade_required")
            assert answer.json()["err_msg"] == f"{path}: expected a WebSocket"
        assert httpx.delete(f"{server.url}/v1/listen").status_code == 405


def test_a_model_without_room_refuses_before_the_socket_opens() -> None:
    async def run(server: ServerThread) -> None:
        async with connect(f"ws://{server.address}/v1/live") as socket:
            await socket.recv()
            for path in (REALTIME, LISTEN, "/v1/live"):
                assert (await refusal(f"ws://{server.address}{path}"))[0] == 429

    with serving(SlowModel()) as server:
        server.services.registry.schedulers[0].forecast.typical_cost = 10.0
        asyncio.run(run(server))


def test_every_error_of_a_realtime_session_has_an_id_and_that_of_its_message() -> None:
    async def run(server: ServerThread) -> list[Any]:
        heard = []
        async with connect(f"ws://{server.address}{REALTIME}") as socket:
            await socket.send('{"type": "input_audio_buffer.nothing", "event_id": "mine"}')
            try:
                while True:
                    heard.append(json.loads(await asyncio.wait_for(socket.recv(), 20)))
            except ConnectionClosed:
                return [message for message in heard if message["type"] == "error"]

    with serving(SlowModel(), limits=ServerLimits(idle_s=0.5)) as server:
        wrong, last = asyncio.run(run(server))
    assert wrong["error"]["event_id"] == "mine"
    assert last["error"]["code"] == "idle_timeout"
    assert last["error"]["event_id"] is None
    assert wrong["event_id"] != last["event_id"]


@pytest.mark.parametrize(
    ("path", "alive"),
    [
        ("/v1/live", '{"type": "keepalive"}'),
        (LISTEN, '{"type": "KeepAlive"}'),
        (REALTIME, '{"type": "input_audio_buffer.clear"}'),
    ],
)
def test_who_only_keeps_a_session_alive_holds_no_place_for_ever(path: str, alive: str) -> None:
    async def run(server: ServerThread, message: str | bytes) -> int | None:
        async with connect(f"ws://{server.address}{path}") as socket:
            try:
                for _ in range(20):
                    await socket.send(message)
                    await asyncio.sleep(0.05)
            except ConnectionClosed:
                pass
            else:
                return None
        return socket.close_code

    with serving(SlowModel(), limits=ServerLimits(keepalive_s=0.5)) as server:
        assert asyncio.run(run(server, alive)) == 1008
        if path != REALTIME:  # where audio is no message of its own
            assert asyncio.run(run(server, bytes(3200))) is None


def test_weights_of_live_speakers_are_loaded_in_no_thread_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[str] = []

    def make(request: object) -> object:
        names.append(threading.current_thread().name)
        return object()

    monkeypatch.setattr(scheduler, "make_live_speakers", make)

    async def run(server: ServerThread) -> None:
        async with connect(f"ws://{server.address}/v1/live?speakers=auto") as socket:
            assert json.loads(await socket.recv())["type"] == "ready"
            await socket.send('{"type": "configure", "speakers": "2"}')
            assert json.loads(await socket.recv())["type"] == "configured"

    with serving(SlowModel()) as server:
        asyncio.run(run(server))
    assert len(names) == 2
    assert THREAD_NAME not in names
