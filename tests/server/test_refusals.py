"""Clients of others' APIs are refused as these refuse, before a socket opens; silence holds no place."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from contextlib import suppress

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sottovoce.server import scheduler
from sottovoce.server.settings import ServerLimits
from sottovoce.server.worker import THREAD_NAME
from tests.server.conversation import Message, connected, exchanged, received, refusal, say
from tests.server.servers import LOCKED, SECOND, ServerThread, SlowModel, serving

REALTIME = "/v1/realtime?intent=transcription"
LISTEN = "/v1/listen?encoding=linear16"


def test_a_wrong_key_is_refused_before_the_socket_opens_as_its_api_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(SlowModel(), access=LOCKED) as server, caplog.at_level(logging.WARNING):
        answer = refusal(server, REALTIME)
        assert (answer.status_code, json.loads(answer.body)["error"]["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        answer = refusal(server, LISTEN)
        assert (answer.status_code, json.loads(answer.body)["err_code"]) == (401, "INVALID_AUTH")
        posted = httpx.post(f"{server.url}/v1/listen", content=b"a")
        assert (posted.status_code, posted.json()["err_code"]) == (401, "INVALID_AUTH")
        assert set(posted.json()) == {"err_code", "err_msg", "request_id"}
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == []  # a stranger is no fault of ours


def test_the_client_of_openai_knows_a_full_server_by_its_status() -> None:
    async def join(server: ServerThread) -> None:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            await client.realtime.connect(extra_query={"intent": "transcription"}).enter()

    with serving(SlowModel(), limits=ServerLimits(sessions=1)) as server, connected(server, REALTIME):
        answer = refusal(server, REALTIME)
        assert (answer.status_code, json.loads(answer.body)["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(answer.headers["retry-after"]) >= 1
        answer = refusal(server, LISTEN)
        assert (answer.status_code, json.loads(answer.body)["err_code"]) == (429, "TOO_MANY_REQUESTS")
        assert int(answer.headers["retry-after"]) >= 1
        with pytest.raises((openai.APIError, InvalidStatus)):
            asyncio.run(join(server))


def test_a_socket_that_is_asked_for_without_an_upgrade_says_so_in_the_error_of_its_api(
    fake_server: ServerThread,
) -> None:
    for path in ("/v1/live", "/v1/realtime", "/v1/captions", "/v1/listen", "/v2/listen"):
        answer = httpx.get(f"{fake_server.url}{path}")
        found = answer.json()
        is_deepgrams = path.endswith("listen")
        code, message = (
            (found["err_code"], found["err_msg"])
            if is_deepgrams
            else (found["error"]["code"], found["error"]["message"])
        )
        assert (answer.status_code, code) == (426, "upgrade_required")
        assert message == f"{path}: expected a WebSocket"
        assert (answer.headers["upgrade"], answer.headers["connection"]) == ("websocket", "upgrade")
    assert httpx.delete(f"{fake_server.url}/v1/listen").status_code == 405


def test_a_model_without_room_refuses_before_the_socket_opens() -> None:
    with serving(SlowModel()) as server:
        server.services.registry.schedulers[0].forecast.typical_cost = 10.0
        with connected(server) as socket:
            received(socket)
            for path in (REALTIME, LISTEN, "/v1/live"):
                assert refusal(server, path).status_code == 429


def test_every_error_of_a_realtime_session_has_an_id_and_that_of_its_message() -> None:
    unknown: Message = {"type": "input_audio_buffer.nothing", "event_id": "mine"}
    with serving(SlowModel(), limits=ServerLimits(idle_s=0.5)) as server:
        heard, _ = exchanged(server, REALTIME, unknown)
    wrong, last = (message for message in heard if message["type"] == "error")
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
    def code(server: ServerThread, message: str | bytes) -> int | None:
        with connected(server, path) as socket, suppress(ConnectionClosed):
            for _ in range(20):
                say(socket, message)
                time.sleep(0.05)
            return None
        return socket.close_code

    with serving(SlowModel(), limits=ServerLimits(keepalive_s=0.5)) as server:
        assert code(server, alive) == 1008
        if path != REALTIME:  # where audio is no message of its own
            assert code(server, SECOND[:3200]) is None


def test_weights_of_live_speakers_are_loaded_in_no_thread_of_the_model(
    fake_server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def make(request: object) -> object:
        names.append(threading.current_thread().name)
        return object()

    monkeypatch.setattr(scheduler, "make_live_speakers", make)
    with connected(fake_server, "/v1/live?speakers=auto") as socket:
        assert received(socket)["type"] == "ready"
        say(socket, {"type": "configure", "speakers": "2"})
        assert received(socket)["type"] == "configured"
    assert len(names) == 2
    assert not [name for name in names if name.startswith(THREAD_NAME)]
