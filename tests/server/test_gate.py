"""Who is let in, to requests and sockets alike: keys, origins, names, room; refusals are those of the API."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sottovoce.errors import OptionError
from sottovoce.server import scheduler
from sottovoce.server.api import Auth
from sottovoce.server.auth import AccessControl, ClientSecrets, KeyRing
from sottovoce.server.errors import ApiError
from sottovoce.server.settings import Access, Listening, ModelSettings, ServerLimits, ServerSettings
from sottovoce.server.worker import THREAD_NAME
from tests.server.conversation import Message, connected, exchanged, received, refusal, say
from tests.server.servers import LOCKED, SECOND, TRANSCRIPTIONS, ServerThread, SlowModel, bearer, serving

KEYS = ("first-key-of-two", "second-key-of-two")
MODELS = "/v1/models"


@pytest.fixture(scope="module")
def locked() -> Iterator[ServerThread]:
    access = Access(api_keys=KEYS, origins=("https://example.org",))
    with serving(SlowModel(), access=access) as server:
        yield server


@pytest.mark.parametrize("key", KEYS)
def test_any_of_the_keys_opens_the_api(locked: ServerThread, key: str) -> None:
    with OpenAI(base_url=f"{locked.url}/v1", api_key=key, max_retries=0) as client:
        assert client.models.list().data[0].id == "nano"


@pytest.mark.parametrize("key", ["first-key-of-tw", "first-key-of-two2", "FIRST-KEY-OF-TWO", "ü", "x"])
def test_no_other_key_does(locked: ServerThread, key: str) -> None:
    answer = httpx.get(locked.url + MODELS, headers={"authorization": f"Bearer {key}".encode()})
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert key not in answer.text or key == "x"


@pytest.mark.parametrize("path", ["/", "//", "/health", "/ready", "/static/app.js"])
def test_the_page_and_the_state_of_health_need_no_key(locked: ServerThread, path: str) -> None:
    assert httpx.get(locked.url + path).status_code == 200


@pytest.mark.parametrize(
    "path", [MODELS, "/metrics", TRANSCRIPTIONS, "/v1/nothing", "//v1/models", "/static"]
)
def test_everything_else_does(locked: ServerThread, path: str) -> None:
    assert httpx.get(locked.url + path).status_code == 401


def knock(server: ServerThread, headers: dict[str, str], subprotocols: list[str] | None = None) -> int | None:
    """The status that refuses a socket; None: it was let in."""
    try:
        with connected(server, additional_headers=headers, subprotocols=subprotocols) as client:
            received(client, "ready")
    except InvalidStatus as refused:
        return refused.response.status_code
    return None


def test_sockets_need_a_key_too(locked: ServerThread) -> None:
    assert knock(locked, {}) == 401
    assert knock(locked, bearer("wrong-key-of-one")) == 401
    assert knock(locked, bearer(KEYS[1])) is None


@pytest.mark.parametrize("prefix", ["sottovoce-key.", "openai-insecure-api-key."])
def test_a_page_shows_its_key_as_a_subprotocol(locked: ServerThread, prefix: str) -> None:
    assert knock(locked, {}, ["sottovoce", prefix + KEYS[0]]) is None
    assert knock(locked, {}, ["sottovoce", prefix + "wrong-key-of-one"]) == 401


@pytest.mark.parametrize(
    ("origin", "is_let_in"),
    [
        ("https://example.org", True),
        ("own", True),
        ("https://example.org.evil.test", False),
        ("http://example.org", False),
        ("null", False),
        ("", False),
        ("file://", False),
        ("http://[", False),
        ("http://127.0.0.1", False),
    ],
)
def test_pages_from_elsewhere_are_kept_out(locked: ServerThread, origin: str, is_let_in: bool) -> None:
    origin = locked.url if origin == "own" else origin
    headers = {"origin": origin, **bearer(KEYS[0])}
    assert (httpx.get(locked.url + MODELS, headers=headers).status_code == 200) is is_let_in
    assert (knock(locked, headers) is None) is is_let_in


def test_an_allowed_page_may_ask_before_it_asks(locked: ServerThread) -> None:
    headers = {
        "origin": "https://example.org",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    url = locked.url + TRANSCRIPTIONS
    answer = httpx.options(url, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://example.org"
    other = httpx.options(url, headers={**headers, "origin": "https://evil.test"})
    assert "access-control-allow-origin" not in other.headers


def test_on_loopback_no_other_name_is_answered(server: ServerThread) -> None:
    """A page elsewhere could point its own name at this machine, and be its own origin."""
    for host in ("evil.test", "evil.test:8000", "127.0.0.1.evil.test", "[::2]", ""):
        headers = {"host": host, "origin": f"http://{host}"}
        assert httpx.get(server.url + "/", headers=headers).status_code in (400, 421)
    for host in ("localhost", "localhost:1", "127.0.0.1", "[::1]:9"):
        assert httpx.get(server.url + "/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "make",
    [
        lambda: Access(api_keys=("short",)),
        lambda: Access(api_keys=("with space in it",)),
        lambda: Access(origins=("example.org",)),
        lambda: Access(origins=("https://example.org/",)),
        lambda: ServerLimits(sessions=0),
        lambda: ServerLimits(idle_s=float("nan")),
        lambda: Listening(certificate="a.pem"),
        lambda: ModelSettings("nano", aliases={"x": "unknown"}),
    ],
)
def test_settings_that_cannot_be_are_refused(make: object) -> None:
    with pytest.raises(OptionError):
        make()  # type: ignore[operator]


def test_keys_are_not_shown() -> None:
    assert KEYS[0] not in repr(ServerSettings(ModelSettings("nano"), access=Access(api_keys=KEYS)))


PUBLIC = ("evil.test", "rebound.example.org", "a.local.evil.com", "127.0.0.1.evil.com")
PRIVATE = (
    *("192.168.1.7:8000", "[::1]:8000", "localhost", "sottovoce"),
    *("box.local:8000", "a.b.svc.cluster.local"),
)


def answers(host: str, access: Access) -> bool:
    settings = ServerSettings(ModelSettings("nano"), Listening("0.0.0.0"), access)
    gate = AccessControl(settings, ClientSecrets(), KeyRing(access))
    with suppress(ApiError):
        return gate.admit(Auth.OPEN, {"host": host}, []) is None
    return False


def test_where_all_may_ask_a_name_that_anybody_can_buy_is_not_answered() -> None:
    """Its owner could point it here, and his page would be one of this server's."""
    assert [host for host in PUBLIC if answers(host, Access())] == []
    assert [host for host in PRIVATE if not answers(host, Access())] == []


def test_names_that_are_given_and_keys_open_it() -> None:
    assert all(answers(host, Access(api_keys=KEYS)) for host in PUBLIC)
    assert all(answers(host, Access(hosts=("*",))) for host in PUBLIC)
    named = Access(hosts=("evil.test",))
    others = ("127.0.0.1:8000", "sottovoce")
    assert [host for host in (*PUBLIC, *others) if answers(host, named)] == ["evil.test"]


def test_only_proxies_that_are_named_say_where_a_request_comes_from(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sottovoce")
    for proxies in ((), ("127.0.0.0/8",)):
        with serving(SlowModel(), access=Access(proxies=proxies)) as server:
            httpx.get(f"{server.url}/health", headers={"x-forwarded-for": "6.6.6.6"})
    said = [record.client for record in caplog.records if record.getMessage() == "request"]  # type: ignore[attr-defined]
    assert said == ["127.0.0.1", "6.6.6.6"]


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
    reported = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert reported == []  # a stranger is no fault of ours


def test_the_client_of_openai_knows_a_full_server_by_its_status() -> None:
    async def join(server: ServerThread) -> None:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            await client.realtime.connect(extra_query={"intent": "transcription"}).enter()

    with serving(SlowModel(), limits=ServerLimits(sessions=1)) as server, connected(server, REALTIME):
        answer = refusal(server, REALTIME)
        assert (answer.status_code, json.loads(answer.body)["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(answer.headers["retry-after"]) >= 1
        with pytest.raises((openai.APIError, InvalidStatus)):
            asyncio.run(join(server))


def test_a_socket_that_is_asked_for_without_an_upgrade_says_so_in_the_error_of_its_api(
    fake_server: ServerThread,
) -> None:
    for path in ("/v1/live", "/v1/realtime", "/v1/captions", "/v1/listen", "/v2/listen"):
        answer = httpx.get(f"{fake_server.url}{path}")
        result = answer.json()
        is_deepgrams = path.endswith("listen")
        code, message = (
            (result["err_code"], result["err_msg"])
            if is_deepgrams
            else (result["error"]["code"], result["error"]["message"])
        )
        assert (answer.status_code, code) == (426, "upgrade_required")
        assert message == f"{path}: expected a WebSocket"
        assert (answer.headers["upgrade"], answer.headers["connection"]) == ("websocket", "upgrade")
    assert httpx.delete(f"{fake_server.url}/v1/listen").status_code == 405


def test_a_model_without_room_refuses_before_the_socket_opens() -> None:
    with serving(SlowModel()) as server:
        server.services.registry.schedulers[0].most_sessions = 1
        with connected(server) as socket:
            received(socket)
            for path in (REALTIME, LISTEN, "/v1/live"):
                assert refusal(server, path).status_code == 429


def test_every_error_of_a_realtime_session_has_an_id_and_that_of_its_message() -> None:
    unknown: Message = {"type": "input_audio_buffer.nothing", "event_id": "mine"}
    with serving(SlowModel(), limits=ServerLimits(idle_s=0.5)) as server:
        events, _ = exchanged(server, REALTIME, unknown)
    wrong, last = (message for message in events if message["type"] == "error")
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


def test_other_machines_get_an_address_where_they_are_answered() -> None:
    assert Listening().url_elsewhere(8000) is None
    assert Listening("10.0.0.5").url_elsewhere(8000) == "http://10.0.0.5:8000"
    assert Listening("fd00::5").url_elsewhere(80) == "http://[fd00::5]:80"
    assert Listening("10.0.0.5", certificate="a.pem", key="b.pem").url_elsewhere(8000) is None
    result = Listening("0.0.0.0").url_elsewhere(8000)
    assert result is None or ip_address(result.removeprefix("http://").partition(":")[0]).version == 4
