"""What docs/security.md says of the server, where no other test shows it: at every door."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
import re
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import av
import httpx
import numpy as np
import pytest
from websockets.asyncio.client import connect

from sottovoce.server.app import APIS
from sottovoce.server.health_check import is_ready
from sottovoce.server.settings import Access, Listening, ServerLimits
from tests.server.servers import CLIPS, ServerThread, SlowModel, serving, wait_until
from tests.server.test_uploads import listener, playlists, wav

__all__ = ["listener"]

Door: TypeAlias = Callable[[str, bytes], httpx.Response]
DOORS: dict[str, Door] = {
    "transcriptions": lambda url, data: form(f"{url}/v1/audio/transcriptions", data),
    "translations": lambda url, data: form(f"{url}/v1/audio/translations", data),
    "inference": lambda url, data: form(f"{url}/inference", data),
    "listen": lambda url, data: httpx.post(f"{url}/v1/listen", content=data, timeout=60),
}
"""Every way to send a recording."""


def form(url: str, data: bytes) -> httpx.Response:
    return httpx.post(url, files={"file": ("list.m3u8", data)}, timeout=60)


@pytest.fixture(scope="module")
def fake_server() -> Iterator[ServerThread]:
    with serving(SlowModel(), limits=ServerLimits(duration_s=20.0)) as server:
        yield server


@pytest.mark.parametrize("door", DOORS)
def test_a_playlist_reaches_nothing_at_every_door(
    fake_server: ServerThread, door: str, listener: tuple[int, list[str]], tmp_path: Path
) -> None:
    port, came = listener
    said = tmp_path / "said.wav"
    said.write_bytes(wav(16_000))
    for target in (str(said), f"http://127.0.0.1:{port}/said.wav", f"tcp://127.0.0.1:{port}"):
        for data in playlists(target).values():
            assert DOORS[door](fake_server.url, data).status_code == 400
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
def test_a_bomb_is_refused_at_every_door(fake_server: ServerThread, door: str) -> None:
    bomb = silence(120)
    assert len(bomb) < 40_000
    answer = DOORS[door](fake_server.url, bomb)
    assert answer.status_code == 413
    assert "expected at most 20 s of audio" in answer.text


def test_a_compressed_body_is_not_unpacked(fake_server: ServerThread) -> None:
    packed = gzip.compress(wav(16_000))
    answer = httpx.post(f"{fake_server.url}/v1/listen", content=packed, headers={"content-encoding": "gzip"})
    assert answer.status_code == 400
    assert "no known format" in answer.json()["err_msg"]


def test_sockets_are_not_compressed(fake_server: ServerThread) -> None:
    async def extensions() -> list[object]:
        async with connect(f"ws://{fake_server.address}/v1/live", compression="deflate") as client:
            return list(client.protocol.extensions)

    assert asyncio.run(extensions()) == []


def test_uploads_leave_no_file(server: ServerThread, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where they are too large to stay in memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    data = wav(16_000 * 40)
    for door in DOORS.values():
        assert door(server.url, data).status_code == 200
        assert list(tmp_path.iterdir()) == []


BY_LINK = "/v1/captions/read"
"""Its readers have no key: the link itself is secret, and none was given."""


def test_every_route_but_the_open_ones_asks_for_a_key() -> None:
    with serving(SlowModel(), access=Access(api_keys=("open-sesame",))) as server:
        for route in (route for api in APIS for route in api.routes):
            if route.auth.is_open and route.path != BY_LINK:
                continue
            for method in route.methods - {"WEBSOCKET"}:
                path = route.path.replace("{name:path}", "nano").replace("{id}", "job_1")
                expected = 404 if path == BY_LINK else 401
                assert httpx.request(method, server.url + path).status_code == expected, (method, path)


SECRETS = ("open-sesame", "Kowalczyk", "garden", "private-talk", "quarterly")


def test_logs_hold_neither_words_nor_keys_nor_names(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="sottovoce")
    caplog.set_level(logging.INFO)
    key = {"authorization": "Bearer open-sesame"}
    said = (CLIPS / "en.flac").read_bytes()

    async def sockets(address: str) -> None:
        for path in ("/v1/live?terms=Kowalczyk", "/v1/listen?encoding=linear16&keyterm=Kowalczyk"):
            async with connect(f"ws://{address}{path}", additional_headers=key) as client:
                await client.send(bytes(32_000))
                await client.send('{"type": "quarterly garden"}')
                await client.recv()
        async with connect(f"ws://{address}/v1/live", subprotocols=["sottovoce-key.open-sesame"]):  # type: ignore[list-item]
            pass

    with serving(SlowModel(), access=Access(api_keys=("open-sesame",))) as server:
        asyncio.run(sockets(server.address))
        for fields in (
            {"prompt": "quarterly garden", "temperature": "9"},
            {"keywords[]": "Kowalczyk", "seed": "first"},
        ):
            files = {"file": ("private-talk.flac", said)}
            url = f"{server.url}/v1/audio/transcriptions"
            assert httpx.post(url, data=fields, files=files, headers=key).status_code == 400
        query = {"keyterm": "Kowalczyk", "language": "private-talk"}
        assert (
            httpx.post(f"{server.url}/v1/listen", content=b"a", params=query, headers=key).status_code == 400
        )
        assert httpx.get(f"{server.url}/private-talk?quarterly", headers=key).status_code == 404
    ours = [record for record in caplog.records if record.name.startswith(("sottovoce", "uvicorn"))]
    assert len(ours) >= 7
    written = json.dumps([{**vars(record), "said": record.getMessage()} for record in ours], default=str)
    assert [secret for secret in SECRETS if secret in written] == []


def test_metrics_hold_nothing_that_clients_made_up(fake_server: ServerThread) -> None:
    httpx.request("MAKEUP", f"{fake_server.url}/made-up/path")
    httpx.get(f"{fake_server.url}/made-up/path")
    httpx.get(f"{fake_server.url}/v1/models/made-up-model")
    written = httpx.get(f"{fake_server.url}/metrics").text
    assert "made-up" not in written.lower()
    assert 'route="other"' in written
    assert 'route="/v1/models/{name}"' in written


def test_close_codes_that_clients_make_up_are_counted_as_one(fake_server: ServerThread) -> None:
    async def run() -> None:
        for code in range(4000, 4010):
            async with connect(f"ws://{fake_server.address}/v1/live") as client:
                await client.recv()
                await client.close(code)

    asyncio.run(run())
    wait_until(lambda: 'code="other",route="/v1/live"} 10.0' in httpx.get(f"{fake_server.url}/metrics").text)
    assert 'code="40' not in httpx.get(f"{fake_server.url}/metrics").text


def test_the_health_check_knows_a_server_without_a_certificate(fake_server: ServerThread) -> None:
    assert is_ready(int(fake_server.address.rpartition(":")[2]))
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


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_with_a_certificate_all_is_https(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=test"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    listening = Listening(port=0, certificate=str(certificate), key=str(key))
    with serving(SlowModel(), listening=listening) as server:
        trusting = ssl.create_default_context(cafile=str(certificate))
        assert server.url.startswith("https://127.0.0.1:")
        assert httpx.get(f"{server.url}/health", verify=trusting).status_code == 200

        async def first() -> str:
            address = f"wss://{server.address}/v1/live"
            async with connect(address, ssl=trusting) as client:
                return str(json.loads(await client.recv())["type"])

        assert asyncio.run(first()) == "ready"
        assert is_ready(int(server.address.rpartition(":")[2])), "the health check of the container"
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{server.url}/health")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://{server.address}/health")
