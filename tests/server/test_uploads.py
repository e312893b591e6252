"""What is uploaded: taken within limits, decoded in turn, read through its bytes alone, gone afterwards."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.runtime import batching
from sottovoce.server import uploads
from sottovoce.server.services import UPLOADS_PER_REQUEST
from sottovoce.server.settings import ServerLimits
from sottovoce.server.worker import DecodePool, Slices
from tests.audio.test_input_format import encoded
from tests.server.servers import (
    CLIPS,
    TRANSCRIPTIONS,
    Gate,
    ServerThread,
    SlowModel,
    head,
    opened,
    post,
    serving,
    wait_until,
    wav,
)

BOUNDARY = "----part"
PART = f"--{BOUNDARY}\r\n"
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"
ENGLISH = CLIPS / "en.flac"


def error_of(answer: httpx.Response) -> dict[str, Any]:
    result: dict[str, Any] = answer.json()["error"]
    assert set(result) == {"message", "type", "param", "code"}
    return result


@pytest.fixture
def listener() -> Iterator[tuple[int, list[str]]]:
    came: list[str] = []
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(0.1)
    is_over = threading.Event()

    def accept() -> None:
        while not is_over.is_set():
            try:
                connection, address = listening.accept()
            except TimeoutError:
                continue
            came.append(str(address))
            connection.close()

    thread = threading.Thread(target=accept)
    thread.start()
    yield listening.getsockname()[1], came
    is_over.set()
    thread.join()
    listening.close()


def playlists(target: str) -> dict[str, bytes]:
    """Files that name another one, in the ways that FFmpeg knows."""
    m3u8 = f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10.0,\n{target}\n#EXT-X-ENDLIST\n"
    dash = (
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" mediaPresentationDuration="PT10S" '
        'type="static"><Period><AdaptationSet mimeType="audio/wav"><Representation id="1" bandwidth="1">'
        f"<BaseURL>{target}</BaseURL></Representation></AdaptationSet></Period></MPD>"
    )
    return {
        "list.m3u8": m3u8.encode(),
        "map.m3u8": m3u8.replace("#EXTINF", f'#EXT-X-MAP:URI="{target}"\n#EXTINF').encode(),
        "key.m3u8": m3u8.replace("#EXTINF", f'#EXT-X-KEY:METHOD=AES-128,URI="{target}"\n#EXTINF').encode(),
        "list.ffconcat": f"ffconcat version 1.0\nfile '{target}'\n".encode(),
        "list.mpd": dash.encode(),
        "list.sdp": f"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=audio 9 RTP/AVP 0\na=control:{target}\n".encode(),
    }


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "a\nb.wav", "C:\\talk.wav", "x" * 5_000, "", "\u202etalk.wav"]
)
def test_names_are_names_and_no_paths(server: ServerThread, name: str) -> None:
    answer = post(server, data=b"no audio at all", name=name)
    message = error_of(answer)["message"]
    assert answer.status_code == 400
    assert "\n" not in message
    assert "etc/" not in message
    assert len(message) < 500


@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b"ID3", wav(0), b"RIFF\xff\xff\xff\xffWAVE"])
def test_what_is_no_audio_is_one_line(server: ServerThread, data: bytes) -> None:
    answer = post(server, data=data)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "file"


def test_too_much_is_refused_by_its_header_before_it_comes() -> None:
    with serving(SlowModel(), limits=ServerLimits(upload_mb=0.1)) as server:
        connection = http.client.HTTPConnection(server.address, timeout=30)
        connection.putrequest("POST", TRANSCRIPTIONS)
        connection.putheader("content-type", MULTIPART)
        connection.putheader("content-length", str(10**12))
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == 413
        assert json.loads(answer.read())["error"]["code"] == "file_too_large"
        connection.close()


def test_too_much_is_refused_while_it_comes() -> None:
    def pieces() -> Iterator[bytes]:
        yield f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'.encode()
        for _ in range(40):
            yield bytes(10_000)

    with serving(SlowModel(), limits=ServerLimits(upload_mb=0.1)) as server:
        try:
            headers = {"content-type": MULTIPART}
            answer = httpx.post(server.url + TRANSCRIPTIONS, content=pieces(), headers=headers)
        except httpx.TransportError:  # it answered, and did not wait for the rest
            return
        assert answer.status_code == 413


UPLOAD = head(
    TRANSCRIPTIONS, "content-length: 100000\r\n", f"content-type: {MULTIPART}\r\n", method="POST"
) + (f"--{BOUNDARY}\r\n".encode())
"""The beginning of one."""


def test_an_upload_that_stops_is_given_up() -> None:
    with serving(SlowModel(), limits=ServerLimits(upload_s=0.3)) as server:
        with opened(server, UPLOAD) as connection:
            assert b" 408 " in connection.recv(10_000).split(b"\r\n")[0]
        wait_until(lambda: server.services.n_uploads == 0)


def test_an_upload_that_trickles_is_given_up() -> None:
    with (
        serving(SlowModel(), limits=ServerLimits(upload_s=0.5)) as server,
        opened(server, UPLOAD) as connection,
    ):
        connection.settimeout(0.1)
        answer = b""
        for _ in range(300):
            with suppress(TimeoutError):
                answer = connection.recv(10_000)
                break
            connection.sendall(b"-")
        assert b" 408 " in answer.split(b"\r\n")[0]


def test_uploads_that_are_slow_keep_nobody_waiting() -> None:
    limits = ServerLimits(requests=1, duration_s=0.5)
    with serving(SlowModel(), limits=limits) as server, ExitStack() as stack:
        for n in range(UPLOADS_PER_REQUEST - 1):
            stack.enter_context(opened(server, UPLOAD))
            wait_until(lambda n=n: server.services.n_uploads == n + 1)
        assert error_of(post(server))["code"] == "audio_too_long", "it was looked at"
        stack.enter_context(opened(server, UPLOAD))
        wait_until(lambda: server.services.n_uploads == UPLOADS_PER_REQUEST)
        answer = post(server)
        assert answer.status_code == 429
        assert error_of(answer)["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize("declares", ["what it holds", "nothing true"])
def test_a_recording_that_is_too_long_is_refused_before_the_model_sees_it(declares: str) -> None:
    """A small file of silence can hold days; and its header can say anything."""
    data = bytearray(wav(16_000 * 30))
    if declares == "nothing true":
        data[40:44] = b"\xff\xff\xff\xff"
    model = SlowModel()
    with serving(model, limits=ServerLimits(duration_s=20.0)) as server:
        answer = post(server, data=bytes(data))
    assert answer.status_code == 413
    assert error_of(answer)["code"] == "audio_too_long"
    assert model.n_calls == 0


def test_a_header_that_says_days_does_not_keep_a_short_recording_out(nano: Model) -> None:
    data = bytearray(wav(load_audio(ENGLISH)))
    data[40:44] = b"\xff\xff\xff\xff"
    with serving(nano, limits=ServerLimits(duration_s=60.0)) as server:
        answer = post(server, data=bytes(data))
    assert answer.status_code == 200
    assert "garden" in answer.json()["text"]


@pytest.mark.parametrize(
    ("headers", "body", "reported"),
    [
        ({}, b"{}", "no content type"),
        ({"content-type": "application/json"}, b"{}", "application/json"),
        ({"content-type": "multipart/form-data"}, b"{}", "boundary"),
        ({"content-type": MULTIPART}, b"nothing of the kind", "file"),
        (
            {"content-type": MULTIPART},
            f'{PART}content-disposition: form-data; name="model"\r\n\r\nnano\r\n--{BOUNDARY}--'.encode(),
            "file: expected a recording",
        ),
    ],
)
def test_what_is_no_form_with_a_file(
    server: ServerThread, headers: dict[str, str], body: bytes, reported: str
) -> None:
    answer = httpx.post(server.url + TRANSCRIPTIONS, headers=headers, content=body)
    assert answer.status_code == 400
    assert reported in error_of(answer)["message"]


def test_two_files_and_other_fields_with_files_are_refused(server: ServerThread) -> None:
    two = [("file", ("a.wav", wav(10), "audio/wav")), ("file", ("b.wav", wav(10), "audio/wav"))]
    other = [("audio", ("a.wav", wav(10), "audio/wav"))]
    for files in (two, other):
        assert httpx.post(server.url + TRANSCRIPTIONS, files=files).status_code == 400


def test_more_recordings_than_the_limit_are_asked_to_come_again(gate: Gate) -> None:
    with serving(SlowModel(gate), limits=ServerLimits(requests=1)) as server, ThreadPoolExecutor() as threads:
        first = threads.submit(gone, server)
        wait_until(lambda: server.services.n_requests == 1)
        answer = post(server)
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert error_of(answer)["code"] == "rate_limit_exceeded"
        gate.open()
        first.result(30)
        wait_until(lambda: server.services.n_requests == 0)


def gone(server: ServerThread, path: str = TRANSCRIPTIONS) -> None:
    with suppress(httpx.TimeoutException):
        httpx.post(server.url + path, files={"file": ("a.wav", wav(16_000))}, timeout=1.0)


@pytest.mark.parametrize("path", ["/asr", "/detect-language", "/inference"])
def test_a_client_who_goes_frees_its_place_while_the_model_works(path: str, gate: Gate) -> None:
    with serving(SlowModel(gate)) as server:
        gone(server, path)
        assert gate.n_waiting == 1
        wait_until(lambda: server.services.n_requests == 0)
        gate.open()


def test_a_client_who_goes_frees_the_model_whole_and_streamed() -> None:
    model = SlowModel(lambda: time.sleep(0.01))
    with serving(model) as server:
        gone(server)
        wait_until(lambda: server.services.n_requests == 0)
        with httpx.stream(
            "POST",
            server.url + TRANSCRIPTIONS,
            files={"file": ("a.wav", wav(16_000))},
            data={"stream": "true"},
        ) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert next(answer.iter_lines()).startswith("data: ")
        wait_until(lambda: server.services.n_requests == 0)
        before = model.n_calls
        time.sleep(0.2)
        assert model.n_calls <= before + 1  # the call in progress ends


def test_a_client_that_reads_no_events_is_dropped_without_an_error(caplog: pytest.LogCaptureFixture) -> None:
    fields = {"stream": "true", "response_format": "verbose_json"}
    form = httpx.Request("POST", "http://127.0.0.1/", data=fields, files={"file": ("a.wav", wav(16_000))})
    lines = [f"{name}: {form.headers[name]}\r\n" for name in ("content-type", "content-length")]
    with serving(SlowModel(), limits=ServerLimits(send_s=1.0)) as server, socket.socket() as created:
        created.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        host, port = server.address.split(":")
        created.connect((host, int(port)))
        created.sendall(head(TRANSCRIPTIONS, *lines, method="POST") + form.read())
        wait_until(lambda: server.services.n_requests == 1)
        wait_until(lambda: server.services.n_requests == 0)
        wait_until(lambda: server.server.gate.n_connections == 0)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_an_error_inside_a_stream_is_its_last_event() -> None:
    def fail() -> None:
        if model.n_calls > 2:
            raise RuntimeError("secret of the inside")

    model = SlowModel(fail)
    with serving(model) as server:
        answer = post(server, stream="true")
    *_, last = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert last["error"]["type"] == "server_error"
    assert "secret" not in answer.text


def test_recordings_sent_at_once_have_the_text_that_each_has_alone(
    nano: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "ON_CPU", replace(batching.ON_CPU, files=2))
    names = ("en", "de")
    files = {name: CLIPS / f"{name}.flac" for name in names}
    alone = {
        item: nano.transcribe(file, language=item, beam_size=5).collect() for item, file in files.items()
    }
    with serving(nano) as running, ThreadPoolExecutor(len(names)) as people:

        def sent(name: str) -> str:
            answer = post(running, data=files[name].read_bytes(), language=name)
            return str(answer.json()["text"])

        assert list(people.map(sent, names)) == [alone[name].text for name in names]


@pytest.mark.parametrize(
    ("ending", "container", "codec", "rate"),
    [("g722", "g722", "g722", 16_000), ("ulaw", "mulaw", "pcm_mulaw", 8_000)],
)
def test_an_upload_is_known_by_its_ending(
    server: ServerThread, ending: str, container: str, codec: str, rate: int
) -> None:
    data = encoded(container, codec, rate)
    known, unknown = (post(server, data=data, name=f"call.{name}", language="en") for name in (ending, "bin"))
    assert known.status_code == 200
    assert "in the morning" in known.json()["text"]
    assert unknown.status_code == 400
    assert "input_format" in error_of(unknown)["message"]


CHUNK = SimpleNamespace(samples=np.zeros(16_000, np.float32))
BODY = wav(16_000)


def counted(pool_log: list[str], name: str, n_slices: int) -> Slices[str]:
    for _ in range(n_slices):
        pool_log.append(name)
        yield
    return name


def test_those_who_wait_take_turns() -> None:
    pool, log = DecodePool(1), []

    async def run() -> list[str]:
        return await asyncio.gather(pool.run(counted(log, "long", 20)), pool.run(counted(log, "short", 3)))

    assert asyncio.run(run()) == ["long", "short"]
    assert log.index("short") <= 1
    assert "".join(name[0] for name in log[:6]) in ("lslsls", "slslsl")
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux alone")
def test_its_threads_are_of_low_priority() -> None:
    pool = DecodePool(1)

    async def niceness() -> int:
        return await pool.call(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    assert asyncio.run(niceness()) > os.getpriority(os.PRIO_PROCESS, 0)
    pool.close()


def test_who_leaves_is_worked_for_no_longer() -> None:
    pool, log = DecodePool(1), []

    async def run() -> None:
        task = asyncio.create_task(pool.run(counted(log, "long", 1_000_000)))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    n_done = len(log)
    time.sleep(0.05)
    assert 0 < n_done == len(log) < 1_000_000
    pool.close()


class Endless:
    """A recording whose decoding never ends; it counts how many there are, and their chunks."""

    def __init__(self) -> None:
        self.n_chunks = 0
        self.n_open = 0
        self.at_once: set[str] = set()

    def open(self, source: object) -> Endless:
        return self

    def __enter__(self) -> Endless:
        self.n_open += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.n_open -= 1

    def __iter__(self) -> Iterator[SimpleNamespace]:
        for _ in itertools.count():
            self.at_once.add(threading.current_thread().name)
            self.n_chunks += 1
            time.sleep(0.002)
            yield CHUNK


def test_decoding_ends_when_its_client_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Endless()
    monkeypatch.setattr(uploads, "open_audio", endless.open)
    begun = head("/v1/listen", f"content-length: {len(BODY)}\r\n", method="POST") + BODY
    with serving(SlowModel(), limits=ServerLimits(duration_s=1e9)) as server, ExitStack() as stack:
        clients = [stack.enter_context(opened(server, begun)) for _ in range(6)]
        wait_until(lambda: endless.n_open == len(clients))
        assert len(endless.at_once) <= max(1, (os.cpu_count() or 1) // 4)
        for client in clients:
            client.close()
        wait_until(lambda: endless.n_open == 0)
        n_chunks = endless.n_chunks
        time.sleep(0.05)
        assert endless.n_chunks == n_chunks
        wait_until(lambda: server.services.n_requests == 0)


def test_all_uploads_together_have_a_limit(gate: Gate) -> None:
    """One that waits for its answer keeps another out that is small enough alone."""
    body_mb = len(BODY) / 1e6
    limits = ServerLimits(upload_mb=1.2 * body_mb, uploads_mb=1.5 * body_mb)
    begun = head("/v1/listen", f"content-length: {len(BODY)}\r\n", method="POST") + BODY
    with serving(SlowModel(gate), limits=limits) as server:
        with opened(server, begun):
            wait_until(lambda: server.services.upload_bytes == len(BODY))
            for answer in (post(server, data=BODY), httpx.post(f"{server.url}/v1/listen", content=BODY)):
                assert answer.status_code == 429
                assert int(answer.headers["retry-after"]) > 0
        gate.open()
        wait_until(lambda: server.services.upload_bytes == 0)


@pytest.mark.parametrize("path", [TRANSCRIPTIONS, "/inference", "/asr", "/detect-language"])
def test_samples_without_a_header_need_the_field_that_the_error_names(
    server: ServerThread, path: str
) -> None:
    samples = (load_audio(CLIPS / "en.flac") * 32767).astype("<i2").tobytes()
    refused = post(server, path, samples)
    assert refused.status_code == 400
    assert "(samples without a header need input_format)" in refused.text
    assert post(server, path, samples, input_format="s16le").status_code == 200
    wrong = post(server, path, samples, input_format="mp3")
    assert wrong.status_code == 400
    assert "input_format: expected NAME" in wrong.text
