"""The server as two replicas on a local Ray cluster: what clients see is what one server shows."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from openai import OpenAI
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as open_socket

from sottovoce.api import Model, load_model
from sottovoce.archive.ray_cluster import Replicas, parse_range
from sottovoce.errors import OptionError
from sottovoce.server.settings import Access, Listening, ModelSettings, ServerLimits, ServerSettings
from tests.server.conversation import rest, say
from tests.server.servers import CLIPS, bearer, wait_until
from tests.server.test_live import clip

ray = pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("ray.serve", reason="ray's extra `serve` is not installed")
from sottovoce.server.server import (  # noqa: E402
    EXTRA_REQUESTS,
    MAX_QUEUED,
    NAME,
    deployment,
    serving_on_ray,
)

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
KEY = "the-key-of-the-server"
LOCAL = {"trust_env": False, "timeout": 60.0}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def nano(name: str) -> Model:
    assert name == "nano"
    return load_model(name, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    port = free_port()
    settings = ServerSettings(ModelSettings("nano"), Listening(port=port), Access(api_keys=(KEY,)))
    with serving_on_ray(settings, nano, Replicas(2, 2, cpus=0.5)):
        yield port
    ray.shutdown()


def test_a_model_that_is_not_there_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray tries three times, each in a new process that loads PyTorch; what is told is the last one's.
    monkeypatch.setenv("RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT", "1")
    settings = ServerSettings(ModelSettings("nowhere"), Listening(port=free_port()))
    with (
        pytest.raises(OptionError) as caught,
        serving_on_ray(settings, partial(load_model, local_only=True), Replicas()),
    ):
        pass
    assert "nowhere" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_ray_is_asked_for() -> None:
    """Replicas come by open connections, share a GPU, and end when their connections have."""
    limits = ServerLimits(sessions=5, requests=3)
    settings = ServerSettings(ModelSettings("nano"), limits=limits)
    replicas = Replicas(2, 6, cpus=1.5, gpus=0.25)
    created = deployment(ray.serve, settings, nano, replicas)
    assert created.ray_actor_options.items() >= {"num_cpus": 1.5, "num_gpus": 0.25}.items()
    scaling = created._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (2, 6)
    assert scaling.get_target_ongoing_requests() == 8
    assert (scaling.upscale_delay_s, scaling.downscale_delay_s) == (30.0, 600.0)
    assert created._deployment_config.graceful_shutdown_timeout_s == 600.0
    assert created.max_ongoing_requests == 5 + 3 + EXTRA_REQUESTS
    assert created.max_queued_requests == MAX_QUEUED


@pytest.mark.parametrize("wrong", [{"n_min": 3}, {"n_min": 0}, {"cpus": 0.0}, {"gpus": -0.5}])
def test_what_it_cannot_be_asked_for(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="expected"):
        Replicas(**wrong)


def test_openais_client_gets_the_text(port: int) -> None:
    with (
        OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=0) as client,
        (CLIPS / "en.flac").open("rb") as file,
    ):
        result = client.audio.transcriptions.create(
            file=file, model="whisper-1", response_format="verbose_json"
        )
    alone = nano("nano").transcribe(CLIPS / "en.flac", beam_size=5)
    assert (result.text, result.language) == (alone.text, "english")


def test_without_a_key_nobody_is_served(port: int) -> None:
    assert httpx.get(f"http://127.0.0.1:{port}/health", **LOCAL).status_code == 200
    assert httpx.get(f"http://127.0.0.1:{port}/v1/models", **LOCAL).status_code == 401


def connected(port: int, path: str, key: str) -> ClientConnection:
    return open_socket(f"ws://127.0.0.1:{port}{path}", additional_headers=bearer(key), proxy=None)


def text_of_finals(client: ClientConnection) -> str:
    return "".join(message["text"] for message in rest(client) if message["type"] == "final").strip()


def test_a_live_socket_gives_words_and_ends_as_its_client_asks(port: int) -> None:
    with connected(port, "/v1/live?languages=en", KEY) as client:
        say(client, clip("en"), {"type": "close"})
        text = text_of_finals(client)
    assert text == nano("nano").transcribe(CLIPS / "en.flac", language="en").text


def test_a_secret_of_one_replica_opens_all(port: int) -> None:
    created = httpx.post(
        f"http://127.0.0.1:{port}/v1/realtime/client_secrets",
        headers=bearer(KEY),
        json={"session": {"type": "transcription"}},
        **LOCAL,
    ).json()
    for _ in range(6):
        with connected(port, "/v1/realtime?intent=transcription", created["value"]) as client:
            assert json.loads(client.recv(timeout=30))["type"] == "session.created"


@pytest.mark.parametrize("text", ["", "0", "3-2", "2-", "many", "-1"])
def test_replicas_are_checked(text: str) -> None:
    with pytest.raises(OptionError, match="expected"):
        Replicas(*parse_range("--replicas", text))


def test_a_session_gets_its_tail_from_a_replica_that_is_taken_away(port: int) -> None:
    """The last one, as it ends the app: nobody new is served, and who is there is heard to the end."""
    from ray import serve

    audio = clip("en")
    half = len(audio) // 4 * 2
    with connected(port, "/v1/live?languages=en", KEY) as client:
        assert json.loads(client.recv(timeout=30))["type"] == "ready"
        say(client, audio[:half])
        serve.delete(NAME, _blocking=False)
        wait_until(lambda: httpx.get(f"http://127.0.0.1:{port}/health", **LOCAL).status_code != 200)
        say(client, audio[half:], {"type": "close"})
        text = text_of_finals(client)
    assert text == nano("nano").transcribe(CLIPS / "en.flac", language="en").text
