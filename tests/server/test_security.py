"""What docs/security.md says of the server, where no other test shows it: at every door."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

import av
import httpx
import numpy as np
import pytest
from websockets.asyncio.client import connect

from sottovoce.server.app import APIS
from sottovoce.server.health_check import is_ready
from sottovoce.server.settings import Listening, ServerLimits
from tests.server.conversation import connected, say
from tests.server.servers import (
    CLIPS,
    KEY,
    LOCKED,
    SECOND,
    TRANSCRIPTIONS,
    ServerThread,
    SlowModel,
    bearer,
    post,
    serving,
    wait_until,
    wav,
)
from tests.server.test_uploads import listener, playlists

__all__ = ["listener"]

Door: TypeAlias = Callable[..., httpx.Response]
DOORS: dict[str, Door] = {
    "transcriptions": partial(post, path=TRANSCRIPTIONS, name="list.m3u8"),
    "translations": partial(post, path="/v1/audio/translations", name="list.m3u8"),
    "inference": partial(post, path="/inference", name="list.m3u8"),
    "listen": lambda server, data: httpx.post(f"{server.url}/v1/listen", content=data, timeout=60),
}
"""Every way to send a recording."""


@pytest.fixture(scope="module")
def short_server() -> Iterator[ServerThread]:
    with serving(SlowModel(), limits=ServerLimits(duration_s=20.0)) as server:
        yield server


@pytest.mark.parametrize("door", DOORS)
def test_a_playlist_reaches_nothing_at_every_door(
    short_server: ServerThread, door: str, listener: tuple[int, list[str]], tmp_path: Path
) -> None:
    port, came = listener
    said = tmp_path / "said.wav"
    said.write_bytes(wav(16_000))
    files = (
        str(said),
        f"file://{said}",
        f"subfile,,start,0,end,0,,:{said}",
        "/etc/passwd",
        "file:///etc/passwd",
    )
    for target in (*files, *(f"{scheme}://127.0.0.1:{port}/said.wav" for scheme in ("http", "tcp", "rtmp"))):
        for data in playlists(target).values():
            answer = DOORS[door](short_server, data=data)
            assert answer.status_code == 400
            assert "root:" not in answer.text
    assert came == []


def silence(seconds: int) -> bytes:
    """A few kilobytes of FLAC that hold a long silence."""
    file = io.BytesIO()
    with av.open(file, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), np.int16), format="s16", layout="mono")
        frame.sample_rate = 16_000
        for i in range(seconds):
            frame.pts = i * 16_000
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


@pytest.mark.parametrize("door", DOORS)
def test_a_bomb_is_refused_at_every_door(short_server: ServerThread, door: str) -> None:
    bomb = silence(120)
    assert len(bomb) < 40_000
    answer = DOORS[door](short_server, data=bomb)
    assert answer.status_code == 413
    assert "expected at most 20 s of audio" in answer.text


def test_a_compressed_body_is_not_unpacked(short_server: ServerThread) -> None:
    packed = gzip.compress(wav(16_000))
    answer = httpx.post(f"{short_server.url}/v1/listen", content=packed, headers={"content-encoding": "gzip"})
    assert answer.status_code == 400
    assert "no known format" in answer.json()["err_msg"]


def test_sockets_are_not_compressed(short_server: ServerThread) -> None:
    with connected(short_server, compression="deflate") as client:
        assert list(client.protocol.extensions) == []


def test_uploads_leave_no_file(
    quiet_server: ServerThread, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where they are too large to stay in memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    data = wav(16_000 * 40)
    for door in DOORS.values():
        assert door(quiet_server, data=data).status_code == 200
        assert list(tmp_path.iterdir()) == []


BY_LINK = "/v1/captions/read"
"""Its readers have no key: the link itself is secret, and none was given."""


def test_every_route_but_the_open_ones_asks_for_a_key() -> None:
    with serving(SlowModel(), access=LOCKED) as server:
        for route in (route for api in APIS for route in api.routes):
            if route.auth.is_open and route.path != BY_LINK:
                continue
            for method in route.methods - {"WEBSOCKET"}:
                path = route.path.replace("{name:path}", "nano").replace("{id}", "job_1")
                expected = 404 if path == BY_LINK else 401
                assert httpx.request(method, server.url + path).status_code == expected, (method, path)


SECRETS = (KEY, "Kowalczyk", "garden", "private-talk", "quarterly")


def test_logs_hold_neither_words_nor_keys_nor_names(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="sottovoce")
    caplog.set_level(logging.INFO)
    said = (CLIPS / "en.flac").read_bytes()
    with serving(SlowModel(), access=LOCKED) as server:
        for path in ("/v1/live?terms=Kowalczyk", "/v1/listen?encoding=linear16&keyterm=Kowalczyk"):
            with connected(server, path, additional_headers=bearer(KEY)) as client:
                say(client, SECOND, '{"type": "quarterly garden"}')
                client.recv()
        connected(server, subprotocols=[f"sottovoce-key.{KEY}"]).close()
        for fields in (
            {"prompt": "quarterly garden", "temperature": "9"},
            {"keywords[]": "Kowalczyk", "seed": "first"},
        ):
            assert post(server, data=said, name="private-talk.flac", key=KEY, **fields).status_code == 400
        query = {"keyterm": "Kowalczyk", "language": "private-talk"}
        listen = httpx.post(f"{server.url}/v1/listen", content=b"a", params=query, headers=bearer(KEY))
        assert listen.status_code == 400
        assert httpx.get(f"{server.url}/private-talk?quarterly", headers=bearer(KEY)).status_code == 404
    ours = [record for record in caplog.records if record.name.startswith(("sottovoce", "uvicorn"))]
    assert len(ours) >= 7
    written = json.dumps([{**vars(record), "said": record.getMessage()} for record in ours], default=str)
    assert [secret for secret in SECRETS if secret in written] == []


def test_metrics_hold_nothing_that_clients_made_up(short_server: ServerThread) -> None:
    httpx.request("MAKEUP", f"{short_server.url}/made-up/path")
    httpx.get(f"{short_server.url}/made-up/path")
    httpx.get(f"{short_server.url}/v1/models/made-up-model")
    written = httpx.get(f"{short_server.url}/metrics").text
    assert "made-up" not in written.lower()
    assert 'route="other"' in written
    assert 'route="/v1/models/{name}"' in written


def test_close_codes_that_clients_make_up_are_counted_as_one(short_server: ServerThread) -> None:
    for code in range(4000, 4010):
        with connected(short_server) as client:
            client.recv()
            client.close(code)
    wait_until(lambda: 'code="other",route="/v1/live"} 10.0' in httpx.get(f"{short_server.url}/metrics").text)
    assert 'code="40' not in httpx.get(f"{short_server.url}/metrics").text


def test_the_health_check_knows_a_server_without_a_certificate(short_server: ServerThread) -> None:
    assert is_ready(int(short_server.address.rpartition(":")[2]))
    assert not is_ready(1)


def test_every_point_of_the_page_has_its_test() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "security.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    packages = ("server", "audio", "benchmarks", "speakers", "runtime", "offline")
    files = [file for package in packages for file in root.glob(f"tests/{package}/*.py")]
    there = {
        name for file in files for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))
    }
    assert len(named) > 30
    assert named - there == set()


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
UPGRADE = (
    b"GET /v1/live HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)


def certificate_in(folder: Path) -> tuple[Path, Path]:
    """A certificate of this machine's own address, and its key."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=test"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@needs_openssl
def test_a_server_ends_while_a_client_has_not_closed_its_end(tmp_path: Path) -> None:
    certificate, key = certificate_in(tmp_path)
    trusting = ssl.create_default_context(cafile=str(certificate))
    listening = Listening(port=0, certificate=str(certificate), key=str(key))
    with serving(SlowModel(), listening=listening) as server:
        host, _, port = server.address.rpartition(":")
        client = trusting.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)
        client.sendall(UPGRADE % server.address.encode())
        client.sendall(b"\x88\x82" + bytes(4) + (1000).to_bytes(2, "big"))  # a close frame
        while (byte := client.recv(1)) != b"\x88":  # of the server's close frame
            assert byte
    client.close()


async def first_message(url: str, trusting: ssl.SSLContext) -> dict[str, object]:
    """Of asyncio's client. The other uses TLS in two threads, and loses data before Python 3.13."""
    async with connect(url, ssl=trusting) as client:
        return dict(json.loads(await client.recv()))


@needs_openssl
def test_with_a_certificate_all_is_https(tmp_path: Path) -> None:
    certificate, key = certificate_in(tmp_path)
    listening = Listening(port=0, certificate=str(certificate), key=str(key))
    with serving(SlowModel(), listening=listening) as server:
        trusting = ssl.create_default_context(cafile=str(certificate))
        assert server.url.startswith("https://127.0.0.1:")
        assert httpx.get(f"{server.url}/health", verify=trusting).status_code == 200
        assert asyncio.run(first_message(f"wss://{server.address}/v1/live", trusting))["type"] == "ready"
        assert is_ready(int(server.address.rpartition(":")[2])), "the health check of the container"
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{server.url}/health")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://{server.address}/health")
