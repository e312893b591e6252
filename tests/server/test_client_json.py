"""What clients may write that no answer could hold, or that would take the server's time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import httpx
import pytest
from websockets.sync.client import connect

from sottovoce.server.fields import read_json, replace_surrogates
from tests.server.servers import ServerThread, SlowModel, serving

HALF = "\ud800"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with serving(SlowModel()) as running:
        yield running


def test_halves_of_characters_are_replaced() -> None:
    assert read_json('["\\ud800", {"a\\udc00b": "\\ud83d\\ude00é"}]') == ["\ufffd", {"a\ufffdb": "😀é"}]
    assert replace_surrogates("😀") == "😀"
    assert replace_surrogates(f"é{HALF}") == "é\ufffd"


@pytest.mark.parametrize("text", ["", "{", b"\xff\xfe\x00", "[" * 100_000, "9" * 5_000])
def test_what_is_no_json_is_none(text: str | bytes) -> None:
    assert read_json(text) is None


@pytest.mark.parametrize(
    ("route", "message"),
    [
        ("/v1/live", {"type": HALF}),
        ("/v1/live", {"type": "configure", HALF: 1}),
        ("/v1/live", {"type": "configure", "languages": HALF}),
        ("/v1/live", {"type": "configure", "prompt": HALF}),
        ("/v1/realtime?intent=transcription", {"type": HALF}),
        ("/v1/realtime?intent=transcription", {"type": "session.update", "event_id": HALF}),
        ("/v1/listen?encoding=linear16&sample_rate=16000", {"type": HALF}),
    ],
)
def test_half_a_character_leaves_the_session_open(
    server: ServerThread, route: str, message: dict[str, object]
) -> None:
    with connect(f"ws://{server.address}{route}") as socket:
        socket.send(json.dumps(message))
        socket.send(json.dumps(message))
        assert socket.recv(timeout=20)
        socket.ping().wait(20)
        socket.send(json.dumps({"type": "CloseStream" if "listen" in route else "close"}))
        while "realtime" not in route:
            if json.loads(socket.recv(timeout=20))["type"] in ("closed", "Metadata"):
                break
    assert socket.close_code == 1000


def test_half_a_character_in_a_request_is_refused(server: ServerThread) -> None:
    answer = httpx.post(
        f"{server.url}/v1/realtime/client_secrets", content=json.dumps({"session": {"type": HALF}})
    )
    assert answer.status_code == 400


def test_deep_objects_in_a_form_are_refused(server: ServerThread) -> None:
    deep = '{"a":' * 1_500
    answer = httpx.post(
        f"{server.url}/v1/audio/transcriptions",
        data={"chunking_strategy": deep},
        files={"file": ("a.wav", b"RIFF")},
    )
    assert answer.status_code == 400
    assert "chunking_strategy: expected an object, got '{" in answer.json()["error"]["message"]


def test_a_form_cannot_choose_a_slow_charset(server: ServerThread) -> None:
    """Decoding punycode takes quadratic time: half a minute for these fields."""
    fields = "".join(
        f'--x\r\nContent-Disposition: form-data; name="f{n}"\r\n\r\na-{"b" * 60_000}\r\n' for n in range(60)
    )
    began = time.monotonic()
    answer = httpx.post(
        f"{server.url}/v1/audio/transcriptions",
        content=f"{fields}--x--\r\n",
        headers={"content-type": "multipart/form-data; boundary=x; charset=punycode"},
        timeout=120,
    )
    assert answer.status_code == 400
    assert "expected the charset utf-8, got 'punycode'" in answer.json()["error"]["message"]
    assert time.monotonic() - began < 20
