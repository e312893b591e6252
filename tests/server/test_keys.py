"""Keys with names: their rates and sessions, and the file that they stand in."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from websockets.sync.client import ClientConnection

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.errors import OptionError
from sottovoce.server.auth import MOST_KEYS, ApiKey, KeyLimits, KeyRing, digest_of, read_keys
from sottovoce.server.errors import ApiError
from sottovoce.server.services import CHECK_KEYS_EVERY_S
from sottovoce.server.settings import Access
from sottovoce.server.telemetry import Metrics
from tests.server.conversation import connected, exchanged, received, refusal
from tests.server.servers import (
    SECOND,
    TRANSCRIPTIONS,
    QuietModel,
    ServerThread,
    bearer,
    post,
    serving,
    wait_until,
    wav,
)

KEYS = """
[newsroom]
key = "newsroom-key-1"

[kiosk]
sha256 = "{digest}"
requests-per-minute = 3
sessions = 1
"""
ENGLISH = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"
KIOSK, NEWSROOM, UNNAMED = "kiosk-key-12", "newsroom-key-1", "unnamed-key-1"
LIVE, REALTIME = "/v1/live", "/v1/realtime?intent=transcription"
LISTEN = "/v1/listen?encoding=linear16"


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys.toml"
    file.write_text(KEYS.format(digest=hashlib.sha256(KIOSK.encode()).hexdigest()))
    return file


@pytest.fixture
def locked(keys_file: Path) -> Iterator[ServerThread]:
    access = Access(api_keys=(UNNAMED,), keys_file=str(keys_file))
    with serving(QuietModel(), access=access) as server:
        yield server


def connecting(server: ServerThread, path: str, key: str) -> ClientConnection:
    return connected(server, path, additional_headers=bearer(key))


def refused(server: ServerThread, path: str, key: str) -> tuple[int, str]:
    """The status with which a handshake is refused, and when it may be tried again."""
    answer = refusal(server, path, additional_headers=bearer(key))
    return answer.status_code, answer.headers.get("retry-after", "")


def test_keys_of_the_file_open_it_as_they_are_or_by_their_digest(locked: ServerThread) -> None:
    for key in (NEWSROOM, KIOSK, UNNAMED):
        assert httpx.get(f"{locked.url}/v1/models", headers=bearer(key)).status_code == 200
    digest = hashlib.sha256(KIOSK.encode()).hexdigest()
    for stranger in ("kiosk-key-13", digest, "newsroom", "é"):
        headers = {"authorization": f"Bearer {stranger}".encode()}
        assert httpx.get(f"{locked.url}/v1/models", headers=headers).status_code == 401


def test_every_api_refuses_too_many_requests_in_its_own_way(locked: ServerThread) -> None:
    url, headers = locked.url, bearer(KIOSK)
    for _ in range(3):
        assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 200

    def over(method: str, path: str) -> Any:
        answer = httpx.request(method, url + path, headers=headers)
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        return answer.json()

    error = over("POST", TRANSCRIPTIONS)["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert "at most 3 requests a minute" in error["message"]
    assert over("POST", "/v1/listen")["err_code"] == "TOO_MANY_REQUESTS"
    assert "at most 3 requests" in over("POST", "/inference")["error"]
    with (
        OpenAI(base_url=f"{url}/v1", api_key=KIOSK, max_retries=0) as client,
        pytest.raises(openai.RateLimitError),
    ):
        client.models.list()
    for path in (REALTIME, LISTEN, LIVE):
        answer = refusal(locked, path, additional_headers=headers)
        body = json.loads(answer.body)
        code = body["err_code"] if path == LISTEN else body["error"]["code"]
        expected = "TOO_MANY_REQUESTS" if path == LISTEN else "rate_limit_exceeded"
        assert (answer.status_code, code) == (429, expected)
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert httpx.get(f"{url}/health").status_code == 200, "which needs no key"
    for key in (NEWSROOM, UNNAMED):
        assert httpx.get(f"{url}/v1/models", headers=bearer(key)).status_code == 200


@pytest.mark.parametrize("path", [LISTEN, REALTIME])
def test_a_key_has_its_live_sessions_and_others_have_theirs(locked: ServerThread, path: str) -> None:
    with connecting(locked, LIVE, KIOSK) as socket:
        received(socket)
        assert refused(locked, path, KIOSK) == (429, "10")
        with connecting(locked, LIVE, NEWSROOM) as other:
            assert received(other)["type"] == "ready"
        assert 'sottovoce_key_sessions{key="kiosk"} 1.0' in metrics(locked)
    wait_until(lambda: 'sottovoce_key_sessions{key="kiosk"} 0.0' in metrics(locked))
    assert 'sottovoce_key_refused_total{key="kiosk",limit="sessions"} 1.0' in metrics(locked)


def metrics(server: ServerThread) -> str:
    return httpx.get(f"{server.url}/metrics", headers=bearer(UNNAMED)).text


def test_the_audio_of_a_key_is_counted(locked: ServerThread) -> None:
    for seconds in (6, 11):
        assert post(locked, data=wav(16_000 * seconds), key=NEWSROOM).status_code == 200
    exchanged(locked, LIVE, 2 * SECOND, {"type": "close"}, additional_headers=bearer(KIOSK))
    written = metrics(locked)
    assert 'sottovoce_key_audio_seconds_total{key="newsroom"} 17.0' in written
    assert 'sottovoce_key_audio_seconds_total{key="kiosk"} 2.0' in written


def test_a_client_secret_counts_for_the_key_that_made_it(locked: ServerThread, keys_file: Path) -> None:
    answer = httpx.post(f"{locked.url}/v1/realtime/client_secrets", json={}, headers=bearer(KIOSK))
    secret = answer.json()["value"]
    with connecting(locked, REALTIME, secret):
        assert refused(locked, REALTIME, KIOSK)[0] == 429
    keys_file.write_text('[newsroom]\nkey = "newsroom-key-1"\n')
    wait_until(lambda: locked.services.keys.by_name("kiosk") is None)
    assert refused(locked, REALTIME, secret)[0] == 401


def test_a_key_has_replacements_in_files_and_sessions(model: Model, tmp_path: Path) -> None:
    """Rules of a request for the same phrase come first."""
    file, english = tmp_path / "keys.toml", load_audio(ENGLISH)
    file.write_text('[kiosk]\nkey = "kiosk-key-12"\nreplace = { garden = "Park", morning = "evening" }\n')
    with serving(model, access=Access(keys_file=str(file))) as server:
        files = {"file": ("en.wav", wav(english)), "language": (None, "en")}
        for rules, garden in (({}, "Park"), ({"replacements": (None, "garden => yard")}, "yard")):
            answer = httpx.post(
                server.url + TRANSCRIPTIONS, files={**files, **rules}, headers=bearer(KIOSK), timeout=120
            )
            text = answer.json()["text"]
            assert garden in text, text
            assert "garden" not in text
        with connecting(server, LIVE, KIOSK) as socket:
            socket.send(json.dumps({"type": "configure", "languages": ["en"]}))
            socket.send((english * 32767).astype("<i2").tobytes())
            socket.send(json.dumps({"type": "close"}))
            said = [received for raw in socket if (received := json.loads(raw))["type"] == "final"]
        assert "Park" in " ".join(event["text"] for event in said)


def test_the_log_names_keys_and_does_not_show_them(
    locked: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    def named() -> list[str | None]:
        return [getattr(item, "key", None) for item in [*caplog.records] if item.getMessage() == "request"]

    with caplog.at_level(logging.INFO):
        for n_asked, key in enumerate((KIOSK, UNNAMED), 1):
            httpx.get(f"{locked.url}/v1/models", headers=bearer(key))
            wait_until(lambda n=n_asked: len(named()) == n)  # type: ignore[misc]  # written after the answer
    assert named() == ["kiosk", None]
    assert KIOSK not in json.dumps([vars(record) for record in caplog.records], default=str)


def test_the_file_is_read_again_when_it_changes_and_a_wrong_one_changes_nothing(
    locked: ServerThread, keys_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def status(key: str) -> int:
        return httpx.get(f"{locked.url}/v1/models", headers=bearer(key)).status_code

    def n_errors() -> int:
        return sum(record.levelno >= logging.ERROR for record in caplog.records)

    with caplog.at_level(logging.ERROR):
        keys_file.write_text("[newsroom")
        wait_until(lambda: any("stay as they were" in record.getMessage() for record in caplog.records))
        time.sleep(2.5 * CHECK_KEYS_EVERY_S)
    assert n_errors() == 1, "once"
    assert status(NEWSROOM) == 200
    keys_file.write_text('[studio]\nkey = "studio-key-1"\n')
    wait_until(lambda: status("studio-key-1") == 200)
    assert status(NEWSROOM) == 401
    keys_file.unlink()
    wait_until(lambda: n_errors() == 2)
    assert status("studio-key-1") == 200
    assert status("anything-else") == 401


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "expected 1 to"),
        ("a = 1", "expected a table"),
        ('["two words"]\nkey = "long-enough"', "expected a table, named by"),
        ("[a]", "either key or sha256"),
        (f'[a]\nkey = "long-enough"\nsha256 = "{"0" * 64}"', "either key or sha256"),
        ('[a]\nkey = "short"', "8 to 200"),
        ('[a]\nsha256 = "00"', "64 hexadecimal digits"),
        ('[a]\nkey = "long-enough"\nrate = 3', "got 'rate'"),
        ('[a]\nkey = "long-enough"\nsessions = 0', "sessions: expected a whole number from 1"),
        ('[a]\nkey = "long-enough"\nsessions = true', "sessions: expected a whole number"),
        ('[a]\nkey = "long-enough"\nrequests-per-minute = 1.5', "requests-per-minute: expected"),
        ('[a]\nkey = "long-enough"\nwebhook-secret = "short"', "webhook-secret: expected a secret of"),
        ('[a]\nkey = "long-enough"\n[b]\nkey = "long-enough"', "got one twice"),
        ('[a]\nkey = "long-enough"\nreplace = 3', "replace: expected a table"),
        ("".join(f'[k{i}]\nkey = "long-enough-{i}"\n' for i in range(MOST_KEYS + 1)), "expected 1 to"),
    ],
)
def test_what_is_no_file_of_keys_is_one_line(tmp_path: Path, text: str, reported: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(OptionError, match=reported) as error:
        KeyRing(Access(keys_file=str(file)))
    assert "\n" not in str(error.value)
    assert "long-enough" not in str(error.value)


def test_keys_are_not_shown_in_what_they_are_kept_in(keys_file: Path) -> None:
    keys = read_keys(str(keys_file))
    assert digest_of(NEWSROOM) not in repr(keys).encode()
    assert NEWSROOM not in repr(keys)


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(seconds=1_000_000.0)


@pytest.fixture
def key_limits(clock: SimpleNamespace) -> KeyLimits:
    return KeyLimits(Metrics(), lambda: clock.seconds)


def test_of_any_minute_a_key_has_as_many_requests_as_it_may(
    key_limits: KeyLimits, clock: SimpleNamespace
) -> None:
    """However they come: with those that are refused in between, no minute has more of them."""
    key = ApiKey("a", b"", requests_per_minute=5)
    taken: list[float] = []
    for step in range(400):
        clock.seconds += (0.3, 7.0, 1.1)[step % 3]
        try:
            key_limits.take_request(key)
        except ApiError as fault:
            again_s = clock.seconds + (fault.retry_s or 0)
            assert again_s == pytest.approx(taken[-5] + 60.0)
        else:
            taken.append(clock.seconds)
    assert len(taken) > 50
    for i, at in enumerate(taken[5:]):
        assert at - taken[i] >= 60.0


def test_a_session_that_fails_gives_up_its_place(key_limits: KeyLimits) -> None:
    key = ApiKey("a", b"", sessions=1)
    for _ in range(3):
        with pytest.raises(RuntimeError), key_limits.session(key):
            raise RuntimeError
    with key_limits.session(key), pytest.raises(ApiError), key_limits.session(key):
        pass
