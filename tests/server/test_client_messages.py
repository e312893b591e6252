"""Messages that no answer could hold or that take long; the messages whose answer a client waits for."""

from __future__ import annotations

import base64
import json
import threading
import time
from contextlib import suppress

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from sottovoce.server.apis import openai_realtime
from sottovoce.server.fields import read_json, replace_surrogates
from sottovoce.server.live import SLICE_BYTES, PcmReader, slices_of
from sottovoce.types import Samples
from tests.server.conversation import Message, connected, received, say
from tests.server.servers import TRANSCRIPTIONS, ServerThread, SlowModel, post, serving, wait_until

HALF = "\ud800"


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
    fake_server: ServerThread, route: str, message: Message
) -> None:
    with connected(fake_server, route) as socket:
        say(socket, message, message)
        assert socket.recv(timeout=20)
        socket.ping().wait(20)
        say(socket, {"type": "CloseStream" if "listen" in route else "close"})
        while "realtime" not in route and received(socket)["type"] not in ("closed", "Metadata"):
            pass
    assert socket.close_code == 1000


def test_half_a_character_in_a_request_is_refused(fake_server: ServerThread) -> None:
    answer = httpx.post(
        f"{fake_server.url}/v1/realtime/client_secrets", content=json.dumps({"session": {"type": HALF}})
    )
    assert answer.status_code == 400


def test_deep_objects_in_a_form_are_refused(fake_server: ServerThread) -> None:
    answer = post(fake_server, chunking_strategy='{"a":' * 1_500)
    assert answer.status_code == 400
    assert "chunking_strategy: expected an object, got '{" in answer.json()["error"]["message"]


def test_a_form_cannot_choose_a_slow_charset(fake_server: ServerThread) -> None:
    """Decoding punycode takes quadratic time: half a minute for these fields."""
    fields = "".join(
        f'--x\r\nContent-Disposition: form-data; name="f{n}"\r\n\r\na-{"b" * 60_000}\r\n' for n in range(60)
    )
    began = time.monotonic()
    answer = httpx.post(
        fake_server.url + TRANSCRIPTIONS,
        content=f"{fields}--x--\r\n",
        headers={"content-type": "multipart/form-data; boundary=x; charset=punycode"},
        timeout=120,
    )
    assert answer.status_code == 400
    assert "expected the charset utf-8, got 'punycode'" in answer.json()["error"]["message"]
    assert time.monotonic() - began < 20


LARGE = bytes(4_000_000)
DOORS = {
    "/v1/live?sample_rate=48000": lambda data: [data, '{"type": "close"}'],
    "/v1/listen?encoding=linear16&sample_rate=48000": lambda data: [data, '{"type": "CloseStream"}'],
    "/v1/realtime?intent=transcription": lambda data: [append(data), append(b"\0\0")],
}


def append(data: bytes) -> str:
    return json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()})


@pytest.mark.parametrize("path", DOORS)
def test_a_large_message_is_read_off_the_loop_in_slices(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, str]] = []
    read, audio_of = PcmReader.read, openai_realtime.decode_audio

    def noting(self: PcmReader, piece: bytes) -> Samples:
        seen.append((len(piece), threading.current_thread().name))
        return read(self, piece)

    def decoding(given: object) -> bytes:
        seen.append((0, threading.current_thread().name if len(str(given)) > SLICE_BYTES else "small"))
        return audio_of(given)

    monkeypatch.setattr(PcmReader, "read", noting)
    monkeypatch.setattr(openai_realtime, "decode_audio", decoding)

    with serving(SlowModel()) as server, connected(server, path) as client, suppress(ConnectionClosed):
        say(client, *DOORS[path](LARGE))
        wait_until(lambda: sum(size for size, _ in seen) >= len(LARGE))
    large = [(size, name) for size, name in seen if size > 2]
    assert sum(size for size, _ in large) == len(LARGE)
    assert max(size for size, _ in large) <= SLICE_BYTES
    assert "sottovoce-server" not in {name for size, name in seen if size != 2}


def test_slices_sound_as_the_whole() -> None:
    data = np.random.default_rng(0).integers(-20_000, 20_000, 150_001).astype("<i2").tobytes() + b"\0"
    whole, sliced = PcmReader("s16le", 44_100), PcmReader("s16le", 44_100)
    expected = np.concatenate((whole.read(data), whole.flush()))
    result = np.concatenate([*map(sliced.read, slices_of(data)), sliced.flush()])
    assert len(list(slices_of(data))) == 5
    np.testing.assert_allclose(result, expected, atol=1e-6)
