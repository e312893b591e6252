"""Shared captions: who publishes, who reads, what stays, and the example that relays them."""

from __future__ import annotations

import json
import logging
import re
import socket as sockets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import webvtt
from websockets.sync.client import ClientConnection

from sottovoce.server.apis import captions as shared_captions
from sottovoce.server.apis.captions import read_publication
from sottovoce.server.settings import ServerLimits
from tests.server.conversation import Message, connected, received, refusal, rest, say, utterance
from tests.server.servers import KEY, LOCKED, ServerThread, SlowModel, bearer, serving, wait_until

N_READERS = 10
WITHIN_S = 0.3
CLOSE: Message = {"type": "close"}


def captions(**parts: object) -> Message:
    return {"type": "captions", **parts}


def publishing(server: ServerThread, **options: Any) -> ClientConnection:
    return connected(server, "/v1/captions", **options)


def reading(server: ServerThread, token: str) -> ClientConnection:
    return connected(server, "/v1/captions/read", subprotocols=["sottovoce", f"sottovoce-captions.{token}"])


def resuming(server: ServerThread, secret: str) -> ClientConnection:
    return publishing(server, subprotocols=["sottovoce", f"sottovoce-resume.{secret}"])


def vanish(client: ClientConnection) -> None:
    """End a connection without a word."""
    client.socket.shutdown(sockets.SHUT_RDWR)


def texts(message: dict[str, Any]) -> list[str]:
    result = message.get("utterances", [])
    return ["".join(word["word"] for word in item["words"]).strip() for item in result]


def refused(server: ServerThread, path: str, word: str = "") -> tuple[int, str]:
    """How a handshake is refused. word: a subprotocol."""
    options: Any = {"subprotocols": ["sottovoce", word]} if word else {}
    answer = refusal(server, f"/v1/captions{path}", **options)
    return answer.status_code, json.loads(answer.body)["error"]["code"]


def test_a_reader_who_comes_late_gets_all_and_then_what_changes(fake_server: ServerThread) -> None:
    with publishing(fake_server) as speaker:
        ready = received(speaker)
        say(speaker, captions(utterances=[utterance(0, "one"), utterance(1, "two three")]))
        say(speaker, captions(now=utterance(2, "four"), names={"A": "Anna"}))
        with reading(fake_server, ready["token"]) as reader:
            assert received(speaker) == {"type": "readers", "readers": 1}
            first = received(reader)
            assert texts(first) == ["one", "two three"]
            assert first["names"] == {"A": "Anna"}
            assert first["now"]["words"][0]["word"] == " four"
            say(speaker, captions(utterances=[utterance(2, "four five")], now=None))
            second = received(reader)
            assert (texts(second), second["now"]) == (["four five"], None)
            assert "names" not in second
            say(speaker, captions(stopped=1.7e12))
            assert received(reader)["stopped"] == 1.7e12
            say(speaker, captions(utterances=[utterance(0, "corrected")]))
            assert texts(received(reader)) == ["corrected"]
            say(speaker, captions(clear=True, utterances=[utterance(0, "anew")]))
            cleared = received(reader)
            assert (cleared["clear"], texts(cleared)) == (True, ["anew"])
            say(speaker, CLOSE)
            assert rest(reader) == [{"type": "ended"}]
            rest(speaker)
            assert reader.close_code == speaker.close_code == 1000


def test_ten_readers_see_the_same_text_within_a_third_of_a_second(fake_server: ServerThread) -> None:
    with publishing(fake_server) as speaker:
        token = received(speaker)["token"]
        readers = [reading(fake_server, token) for _ in range(N_READERS)]
        for reader in readers:
            received(reader)
        delays = []
        for number in range(40):
            sent_s = time.monotonic()
            say(speaker, captions(utterances=[utterance(number, f"word{number}")]))
            result = [texts(received(reader)) for reader in readers]
            delays.append(time.monotonic() - sent_s)
            assert result == [[f"word{number}"]] * N_READERS
        for reader in readers:
            reader.close()
    assert min(delays) < WITHIN_S, "a busy machine may delay single ones, and no text waits for an interval"


def test_a_reader_needs_the_link_and_no_key_and_who_publishes_a_key() -> None:
    with serving(SlowModel(), access=LOCKED) as server:
        assert refused(server, "") == (401, "invalid_api_key")
        with publishing(server, subprotocols=["sottovoce", f"sottovoce-key.{KEY}"]) as speaker:
            ready = received(speaker)
            token = ready["token"]
            assert len(token) >= 22, "128 bits"
            assert token != ready["resume"]
            with reading(server, token) as reader:
                assert received(reader)["type"] == "captions"
            for wrong in (token[:-1] + ("A" if token[-1] != "A" else "B"), ready["resume"], "x"):
                assert refused(server, "/read", f"sottovoce-captions.{wrong}") == (404, "no_such_captions")
                why = httpx.get(f"{server.url}/v1/captions/read", headers={"x-captions-token": wrong})
                assert (why.status_code, why.json()["error"]["code"]) == (404, "no_such_captions")
            for path, header, status in (
                ("", {"x-captions-resume": "x"}, 404),
                ("/read", {"x-captions-token": token}, 426),
            ):
                why = httpx.get(f"{server.url}/v1/captions{path}", headers={**header, **bearer(KEY)})
                assert why.status_code == status


def test_readers_only_read_and_have_a_number() -> None:
    with (
        serving(SlowModel(), limits=ServerLimits(readers=2, sessions=1)) as server,
        publishing(server) as speaker,
    ):
        token = received(speaker)["token"]
        with reading(server, token) as talkative:
            say(talkative, captions(utterances=[utterance(0, "mine")]))
            reported = rest(talkative)
        assert (talkative.close_code, reported[-1]["error"]["code"]) == (1008, "invalid_message")
        wait_until(lambda: server.state.captions.n_readers == 0)
        with reading(server, token) as item, reading(server, token) as two:
            assert texts(received(item)) == texts(received(two)) == []
            for path, word in (("/read", f"sottovoce-captions.{token}"), ("", "")):
                assert refused(server, path, word) == (429, "rate_limit_exceeded")


def test_who_was_cut_off_goes_on_and_readers_notice_nothing(fake_server: ServerThread) -> None:
    speaker = publishing(fake_server)
    ready = received(speaker)
    with reading(fake_server, ready["token"]) as reader:
        received(reader)
        vanish(speaker)
        with resuming(fake_server, ready["resume"]) as again:
            assert received(again)["token"] == ready["token"]
            say(again, captions(utterances=[utterance(0, "on")]))
            assert texts(received(reader)) == ["on"]
            say(again, CLOSE)
            rest(reader)
    assert reader.close_code == 1000


def test_readers_are_sent_what_is_new_and_the_newest_once() -> None:
    shared = shared_captions.SharedCaptions()

    def take(**parts: object) -> None:
        shared.apply(read_publication(json.dumps(captions(**parts)))[1])

    def new(since: int) -> Message:
        page = shared.page(since)
        assert page is not None
        return dict(json.loads(page.text))

    all_of_it = {"now": None, "names": {"A": "Anna"}}
    item, two = utterance(0, "one"), utterance(1, "two")
    take(**all_of_it, utterances=[item, two])
    seen = shared.revision
    take(**all_of_it, utterances=[item, two])
    assert shared.page(seen) is None
    take(**all_of_it, utterances=[item, utterance(1, "corrected")])
    assert texts(new(seen)) == ["corrected"]
    assert set(new(seen)) == {"type", "revision", "utterances"}
    seen = shared.revision
    for number in range(50):
        take(now=utterance(7, f"word{number}"))
    assert shared.revision == seen + 50
    assert new(seen)["now"]["words"][0]["word"] == " word49"
    assert set(new(seen)) == {"type", "revision", "now"}


def test_who_comes_again_takes_the_place_of_a_socket_that_is_not_known_to_be_dead(
    fake_server: ServerThread,
) -> None:
    with publishing(fake_server) as older:
        ready = received(older)
        with reading(fake_server, ready["token"]) as reader, resuming(fake_server, ready["resume"]) as newer:
            received(reader)
            reported = rest(older)
            assert (older.close_code, reported[-1]["error"]["code"]) == (1008, "another_publisher")
            say(newer, captions(utterances=[utterance(0, "on")]))
            assert texts(received(reader)) == ["on"]
            say(newer, CLOSE)
            rest(reader)
    assert reader.close_code == 1000


@pytest.mark.parametrize("is_said", [True, False])
def test_nothing_is_kept_of_captions_that_are_over(monkeypatch: pytest.MonkeyPatch, is_said: bool) -> None:
    monkeypatch.setattr(shared_captions, "RESUME_WITHIN_S", 0.2)
    with serving(SlowModel()) as server:
        speaker = publishing(server)
        ready = received(speaker)
        say(speaker, captions(utterances=[utterance(0, "secret")]))
        if is_said:
            say(speaker, CLOSE)
        else:
            vanish(speaker)
        wait_until(lambda: server.state.captions.n_shared == 0)
        for path, word in (("/read", f"captions.{ready['token']}"), ("", f"resume.{ready['resume']}")):
            assert refused(server, path, f"sottovoce-{word}") == (404, "no_such_captions")


LONG = {"word": "x" * 9000, "start": 0, "end": 1}


@pytest.mark.parametrize(
    "message",
    [
        "x",
        "[]",
        '{"type": "speak"}',
        b"\x00\x01",
        captions(more=1),
        captions(utterances={}),
        captions(utterances=[utterance(-1, "")]),
        captions(utterances=[utterance(0, "", start="soon")]),
        captions(utterances=[utterance(0, "", translation="x")]),
        captions(utterances=[utterance(0, "", "x" * 100)]),
        captions(utterances=[{"id": 0, "start": 0, "end": 1, "words": [LONG]}]),
        captions(now=[1]),
        captions(names={"A": 3}),
    ],
)
def test_what_is_no_caption_is_refused_in_one_line(
    fake_server: ServerThread, message: Message | str | bytes
) -> None:
    with publishing(fake_server) as speaker:
        say(speaker, message)
        reported = rest(speaker)[-1]["error"]["message"]
    assert speaker.close_code == 1008
    assert "expected" in reported
    assert "\n" not in reported


def test_captions_of_a_session_have_a_length(
    fake_server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_captions, "MAX_CAPTIONS_CHARACTERS", 2_000)
    with publishing(fake_server) as speaker:
        for _ in range(20):  # the same one, corrected, does not count twice
            say(speaker, captions(utterances=[utterance(0, "one two")]))
        say(speaker, captions(utterances=[utterance(n, "one two") for n in range(20)]))
        assert rest(speaker)[-1]["error"]["code"] == "captions_too_long"


def test_a_server_that_ends_says_so_to_readers() -> None:
    with (
        serving(SlowModel()) as server,
        publishing(server) as speaker,
        reading(server, received(speaker)["token"]) as reader,
    ):
        received(reader)
        server.server.should_exit = True
        rest(speaker)
        rest(reader)
    assert speaker.close_code == 1012
    assert reader.close_code == 1012


def test_a_link_stays_valid_when_the_server_starts_again(fake_server: ServerThread) -> None:
    with serving(SlowModel()) as server, publishing(server) as speaker:
        ready = received(speaker)
    assert refused(fake_server, "/read", f"sottovoce-captions.{ready['token']}") == (404, "no_such_captions")
    with resuming(fake_server, ready["resume"]) as again:
        assert received(again) == {**ready, "revision": 0}
        say(again, captions(utterances=[utterance(0, "on")]))
        with reading(fake_server, ready["token"]) as reader:
            assert texts(received(reader)) == ["on"]
        say(again, CLOSE)
        rest(again)
    assert refused(fake_server, "/read", f"sottovoce-captions.{ready['token']}") == (404, "no_such_captions")


def test_logs_hold_neither_captions_nor_their_links(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with serving(SlowModel()) as server:
        with publishing(server) as speaker:
            ready = received(speaker)
            say(speaker, captions(utterances=[utterance(0, "quarterly")], names={"A": "Kowalczyk"}))
            with reading(server, ready["token"]) as reader:
                received(reader)
        with resuming(server, ready["resume"]) as again:
            received(again)
            say(again, CLOSE)
            rest(again)
    ours = [record for record in caplog.records if record.name.startswith(("sottovoce", "uvicorn"))]
    written = json.dumps([{**vars(record), "said": record.getMessage()} for record in ours], default=str)
    secrets = (ready["token"], ready["resume"], "quarterly", "Kowalczyk")
    assert len(ours) >= 3
    assert [secret for secret in secrets if secret in written] == []


EXAMPLE = Path(__file__).parents[2] / "examples" / "caption_relay.py"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}")


class StandIn(BaseHTTPRequestHandler):
    """Takes posts as YouTube and Zoom do, but the first one only at the second try."""

    posts: list[tuple[str, str]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.posts.append((parse_qs(urlsplit(self.path).query)["seq"][0], body))
        self.send_response(503 if len(self.posts) == 1 else 200)
        self.end_headers()


@pytest.fixture
def stand_in() -> Iterator[str]:
    StandIn.posts = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/closedcaption?id=7"
    server.shutdown()
    server.server_close()
    thread.join()


def relay(server: ServerThread, service: str, target: str) -> None:
    """Share two utterances, the first of them corrected, and run the example until they end."""
    with publishing(server) as speaker:
        link = f"{server.url}/read#{received(speaker)['token']}"
        running = subprocess.Popen([sys.executable, EXAMPLE, link, service, target])
        assert received(speaker)["readers"] == 1
        say(speaker, captions(now=utterance(0, "one two")))
        time.sleep(2.5)
        say(speaker, captions(utterances=[utterance(0, "ONE two three")], now=None))
        say(speaker, captions(utterances=[utterance(1, "a b c d e f g h i j", start=3)]), CLOSE)
        assert running.wait(30) == 0


@pytest.mark.parametrize("service", ["youtube", "zoom"])
def test_words_are_posted_once_and_again_where_that_fails(
    fake_server: ServerThread, stand_in: str, service: str
) -> None:
    relay(fake_server, service, stand_in)
    lines = [body.splitlines() for _, body in StandIn.posts]
    if service == "youtube":
        assert all(TIME.fullmatch(body.pop(0)) for body in lines)
    assert lines[:2] == [["one two"], ["one two"]]
    assert [number for number, _ in StandIn.posts][:3] == ["1", "1", "2"]
    assert " ".join(text for body in lines[2:] for text in body) == "three a b c d e f g h i j"


def test_segments_hold_every_word_once(fake_server: ServerThread, tmp_path: Path) -> None:
    relay(fake_server, "hls", str(tmp_path))
    lines = (tmp_path / "captions.m3u8").read_text().splitlines()
    names = [line for line in lines if not line.startswith("#")]
    assert (lines[-1], names) == ("#EXT-X-ENDLIST", ["captions0.vtt", "captions1.vtt"])
    cues = [cue for name in names for cue in webvtt.from_string((tmp_path / name).read_text())]
    assert [cue.text for cue in cues] == ["one two three", "a b c d e f", "g h i j"]
    assert [cue.start for cue in cues] == ["00:00:00.000", "00:00:00.000", "00:00:06.000"]


def test_a_relay_goes_on_when_the_server_starts_again(tmp_path: Path) -> None:
    with serving(SlowModel()) as server, publishing(server) as speaker:
        ready, port = received(speaker), int(server.address.rpartition(":")[2])
        link = f"{server.url}/read#{ready['token']}"
        running = subprocess.Popen([sys.executable, EXAMPLE, link, "hls", str(tmp_path)])
        assert received(speaker)["readers"] == 1
        say(speaker, captions(utterances=[utterance(0, "one two")]))
        time.sleep(0.5)
    with serving(SlowModel(), port=port) as server:
        time.sleep(1.0)  # readers are refused until the speaker is back
        with resuming(server, ready["resume"]) as speaker:
            received(speaker)
            say(speaker, captions(utterances=[utterance(0, "one two three"), utterance(1, "four")]))
            assert received(speaker)["readers"] == 1
            say(speaker, CLOSE)
            assert running.wait(30) == 0
    cues = webvtt.from_string((tmp_path / "captions0.vtt").read_text())
    assert [cue.text for cue in cues] == ["one two three", "four"]
