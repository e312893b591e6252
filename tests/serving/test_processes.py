"""A model in several processes behind one server: it says the same, and outlives any of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import OpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.serving.http.server import ServerThread
from sottovoce.serving.scheduling.processes.process_scheduler import ProcessScheduler
from sottovoce.serving.settings import JobSettings, Work
from sottovoce.types import Final
from tests.serving.servers import CLIPS, settings, until

pytestmark = pytest.mark.slow
LIVE = "/v1/live?languages=en,de,es,fr"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A server with nano in two processes, and jobs."""
    wanted = replace(
        settings(),
        work=Work(forecast=False, processes=2, longest_interval_s=0.5),
        jobs=JobSettings(str(tmp_path_factory.mktemp("jobs"))),
    )
    with ServerThread(wanted, partial(load_model, device="cpu", dtype="float32")) as running:
        running.wait_until_ready()
        yield running


def scheduler_of(server: ServerThread) -> ProcessScheduler:
    (found,) = server.services.registry.schedulers
    assert isinstance(found, ProcessScheduler)
    return found


def pcm_of(path: Path) -> bytes:
    return (load_audio(path) * 32767).astype("<i2").tobytes()


async def text_of(server: ServerThread, pcm: bytes) -> str:
    """What a session says."""
    async with connect(f"ws://{server.address}{LIVE}") as socket:
        await socket.send(pcm)
        await socket.send('{"type": "close"}')
        events = [json.loads(message) async for message in socket]
    return " ".join(event["text"] for event in events if event["type"] == "final")


def said_alone(model: Model, pcm: bytes) -> str:
    session = model.session(["en", "de", "es", "fr"], switching="restart")
    events = [*session.push(np.frombuffer(pcm, "<i2").astype(np.float32) / 32768), *session.close()]
    return " ".join(event.text for event in events if isinstance(event, Final))


def test_sessions_say_the_same_and_go_where_there_is_room(pair: ServerThread, nano: Model) -> None:
    pcm = pcm_of(CLIPS / "en.flac")

    async def two() -> tuple[list[int], list[str]]:
        where = f"ws://{pair.address}{LIVE}"
        async with connect(where) as first, connect(where) as other:
            for socket in (first, other):
                assert json.loads(await socket.recv())["type"] == "ready"
            placed = [link.n_sessions for link in scheduler_of(pair).alive]
        return placed, await asyncio.gather(text_of(pair, pcm), text_of(pair, pcm))

    placed, said = asyncio.run(two())
    assert placed == [1, 1]
    assert said == [said_alone(nano, pcm)] * 2
    until(lambda: pair.services.n_sessions == 0)
    assert [link.n_sessions for link in scheduler_of(pair).alive] == [0, 0]


def test_recordings_say_the_same_in_every_way(pair: ServerThread, server: ServerThread) -> None:
    def answers(running: ServerThread) -> tuple[Any, ...]:
        with OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
            ask = partial(client.audio.transcriptions.create, model="nano", file=CLIPS / "en.flac")
            whole = ask(response_format="verbose_json", timestamp_granularities=["word"]).model_dump()
            streamed = [event.model_dump() for event in ask(stream=True, prompt="Some words before.")]
        return whole, streamed

    assert answers(pair) == answers(server)


def test_what_is_wrong_is_told_as_by_one_process(pair: ServerThread) -> None:
    answer = httpx.post(f"{pair.url}/v1/audio/transcriptions", files={"file": ("a.wav", b"none")}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_audio")

    async def refused() -> None:
        await connect(f"ws://{pair.address}/v1/live?languages=pl")

    with pytest.raises(InvalidStatus) as refusal:
        asyncio.run(refused())
    assert refusal.value.response.status_code == 400


def test_metrics_and_health_are_of_all(pair: ServerThread) -> None:
    assert len(httpx.get(f"{pair.url}/health").json()["engines"]) == 2
    lines = httpx.get(f"{pair.url}/metrics").text.splitlines()
    works = [line for line in lines if line.startswith("sottovoce_live_work_seconds_count")]
    assert float(works[0].rsplit(" ", 1)[1]) > 0


def test_a_process_that_is_killed_costs_its_sockets_alone(pair: ServerThread) -> None:
    pcm = pcm_of(CLIPS / "en.flac")

    async def killed() -> tuple[Any, ...]:
        where = f"ws://{pair.address}{LIVE}"
        async with connect(where) as first, connect(where) as other:
            for socket in (first, other):
                assert json.loads(await socket.recv())["type"] == "ready"
                await socket.send(pcm)
            job = await asyncio.to_thread(post_job, pair)
            links = scheduler_of(pair).alive
            until(lambda: any(link.n_files for link in links))
            gone = next(link for link in links if link.n_files)
            assert gone.process.pid is not None
            os.kill(gone.process.pid, signal.SIGKILL)
            told = await asyncio.gather(rest_of(first), rest_of(other))
        return job, gone, told

    job, gone, told = asyncio.run(killed())
    (error,) = [message for messages, _ in told for message in messages if message["type"] == "error"]
    assert error["error"]["code"] == "process_ended"
    assert error["error"]["retry_after"] == 1
    assert sorted(code for _, code in told) == [1000, 1013]
    until(lambda: len(scheduler_of(pair).alive) == 2 and gone not in scheduler_of(pair).alive, 60.0)
    until(lambda: httpx.get(f"{pair.url}/v1/jobs/{job}").json()["status"] == "succeeded", 60.0)
    assert httpx.get(f"{pair.url}/ready").status_code == 200
    assert "sottovoce_process_restarts_total 1.0" in httpx.get(f"{pair.url}/metrics").text


def post_job(server: ServerThread) -> str:
    files = {"file": ("mixed.flac", (CLIPS / "mixed.flac").read_bytes())}
    answer = httpx.post(f"{server.url}/v1/jobs", files=files, timeout=60)
    assert answer.status_code == 202
    name: str = answer.json()["id"]
    return name


async def rest_of(socket: Any) -> tuple[list[dict[str, Any]], int]:
    """What a session says until it is closed, and the code."""
    await asyncio.sleep(0.5)
    messages = []
    with suppress(ConnectionClosed):
        await socket.send('{"type": "close"}')
    with suppress(ConnectionClosed):
        async for message in socket:
            messages.append(json.loads(message))
    return messages, socket.close_code


def test_a_server_ends_with_its_processes(pair: ServerThread) -> None:
    processes = [link.process for link in scheduler_of(pair).alive]
    began_s = time.monotonic()
    pair.stop()
    assert time.monotonic() - began_s < 10.0
    until(lambda: not any(process.is_alive() for process in processes))
