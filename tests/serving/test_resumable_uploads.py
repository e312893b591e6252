"""Recordings of jobs that come in pieces, as clients of tus send them."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import anyio
import httpx
import pytest

from sottovoce.api import Model
from sottovoce.serving.http.server import ServerThread
from sottovoce.serving.jobs.upload_store import UploadStore
from sottovoce.serving.settings import Access, JobSettings, ServerLimits
from tests.serving.servers import SlowModel, serving, until
from tests.serving.test_jobs import QuietModel, ended, wav

TUS = {"tus-resumable": "1.0.0"}
PIECE = {**TUS, "content-type": "application/offset+octet-stream"}
DATA = wav(16_000)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with serving(cast(Model, QuietModel()), jobs=JobSettings(str(tmp_path))) as running:
        yield running


def begun(server: ServerThread, n_bytes: int = len(DATA), **headers: str) -> str:
    name = base64.b64encode(b"talk.wav").decode()
    given = {**TUS, "upload-length": str(n_bytes), "upload-metadata": f"filename {name}, other", **headers}
    made = httpx.post(f"{server.url}/v1/uploads", headers=given)
    assert made.status_code == 201, made.text
    assert "upload-expires" in made.headers
    return server.url + made.headers["location"]


def send(url: str, offset: int, piece: bytes, **headers: str) -> httpx.Response:
    return httpx.patch(url, content=piece, headers={**PIECE, "upload-offset": str(offset), **headers})


def offset_of(url: str) -> int:
    found = httpx.head(url, headers=TUS)
    assert found.status_code == 200
    assert found.headers["upload-length"] == str(len(DATA))
    return int(found.headers["upload-offset"])


def job_of(server: ServerThread, url: str) -> httpx.Response:
    fields = {"upload_id": (None, url.rsplit("/", 1)[1]), "response_format": (None, "json")}
    return httpx.post(f"{server.url}/v1/jobs", files=cast(Any, fields))


def test_a_recording_in_pieces_becomes_a_job_and_the_upload_goes(
    server: ServerThread, tmp_path: Path
) -> None:
    url = begun(server)
    assert send(url, 0, DATA[:10_000]).headers["upload-offset"] == "10000"
    assert send(url, 0, DATA[:10_000]).status_code == 409, "it has these already"
    incomplete = job_of(server, url)
    assert (incomplete.status_code, incomplete.json()["error"]["code"]) == (400, "upload_incomplete")
    assert offset_of(url) == 10_000
    assert send(url, 10_000, DATA[10_000:]).status_code == 204
    made = job_of(server, url)
    assert made.status_code == 202
    assert made.json()["filename"] == "talk.wav"
    assert ended(server, made.json()["id"])["status"] == "succeeded"
    assert httpx.head(url, headers=TUS).status_code == 404
    assert list((tmp_path / "uploads").iterdir()) == []


def test_what_came_before_a_connection_broke_stays_over_a_new_start(tmp_path: Path) -> None:
    with serving(SlowModel(), jobs=JobSettings(str(tmp_path))) as server:
        url = begun(server)
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port))) as broken:
            head = f"PATCH {url.removeprefix(server.url)} HTTP/1.1\r\nhost: {server.address}\r\n"
            lines = "".join(f"{name}: {value}\r\n" for name, value in {**PIECE, "upload-offset": "0"}.items())
            broken.sendall(f"{head}{lines}content-length: {len(DATA)}\r\n\r\n".encode() + DATA[:5_000])
            until(lambda: offset_of(url) == 5_000)
        until(lambda: send(url, 5_000, DATA[5_000:6_000]).status_code == 204)
    (tmp_path / "uploads" / "upload_x.json").write_text("{}")
    with serving(cast(Model, QuietModel()), jobs=JobSettings(str(tmp_path))) as server:
        url = f"{server.url}/v1/uploads/{url.rsplit('/', 1)[1]}"
        assert offset_of(url) == 6_000
        assert send(url, 6_000, DATA[6_000:]).status_code == 204
        assert job_of(server, url).status_code == 202


def test_uploads_are_bounded_and_go_after_a_while(tmp_path: Path) -> None:
    jobs = JobSettings(str(tmp_path), keep_s=3.0, most=2, most_mb=1.0)
    with serving(SlowModel(), jobs=jobs, limits=ServerLimits(upload_mb=0.9)) as server:

        def status(n_bytes: int) -> int:
            headers = {**TUS, "upload-length": str(n_bytes)}
            return httpx.post(f"{server.url}/v1/uploads", headers=headers).status_code

        assert status(950_000) == 413
        assert status(600_000) == 201
        assert status(600_000) == 429, "bytes"
        assert status(1_000) == 201
        assert status(1_000) == 429, "number"
        until(lambda: server.services.jobs is not None and server.services.jobs.uploads.count() == 0)
        until(lambda: list((tmp_path / "uploads").iterdir()) == [])


def test_uploads_are_those_of_a_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[one]\nkey = "key-of-one"\n[two]\nkey = "key-of-two"\n')
    jobs = JobSettings(str(tmp_path / "jobs"))
    with serving(SlowModel(), jobs=jobs, access=Access(keys_file=str(keys))) as server:
        assert httpx.post(f"{server.url}/v1/uploads", headers=TUS).status_code == 401
        url = begun(server, authorization="Bearer key-of-one")
        for method in ("HEAD", "PATCH", "DELETE"):
            theirs = {**PIECE, "upload-offset": "0", "authorization": "Bearer key-of-two"}
            assert httpx.request(method, url, headers=theirs).status_code == 404
        own = {**TUS, "authorization": "Bearer key-of-one"}
        assert httpx.delete(url, headers=own).status_code == 204
        assert httpx.delete(url, headers=own).status_code == 404


def test_what_is_wrong_is_told(server: ServerThread) -> None:
    url = begun(server)
    assert httpx.options(f"{server.url}/v1/uploads").headers["tus-extension"].startswith("creation")
    for headers, status in (
        ({}, 412),
        ({**TUS, "upload-length": "-1"}, 400),
        ({**TUS, "upload-length": "9" * 30}, 400),
        ({**TUS, "upload-length": "5", "upload-metadata": "filename ***"}, 400),
    ):
        assert httpx.post(f"{server.url}/v1/uploads", headers=headers).status_code == status
    assert send(url, 0, DATA + b"more").status_code == 413
    assert send(url, offset_of(url), b"x", **{"content-type": "text/plain"}).status_code == 415
    for name in ("upload_x", "..%2f..%2fetc", "job_" + "0" * 32):
        assert httpx.head(f"{server.url}/v1/uploads/{name}", headers=TUS).status_code == 404
    with serving(SlowModel()) as without:
        refused = httpx.post(f"{without.url}/v1/uploads", headers={**TUS, "upload-length": "5"})
        assert refused.status_code == 403


def fields_of(url: str) -> Any:
    return {"upload_id": (None, url.rsplit("/", 1)[1]), "response_format": (None, "json")}


@pytest.mark.parametrize("keys", ["", '[one]\nkey = "key-of-one"\n'])
def test_an_upload_that_is_whole_becomes_a_job_where_all_places_and_bytes_are_taken(
    keys: str, tmp_path: Path
) -> None:
    """An upload is counted once: its job takes its place and its bytes."""
    (tmp_path / "keys.toml").write_text(keys)
    access = Access(keys_file=str(tmp_path / "keys.toml")) if keys else Access()
    jobs = JobSettings(str(tmp_path / "jobs"), most=2, most_mb=2 * len(DATA) / 1e6)
    client = httpx.Client(headers={"authorization": "Bearer key-of-one"})
    with client, serving(cast(Model, QuietModel()), jobs=jobs, access=access) as server:
        for _ in range(1 if keys else 2):  # a key has half of the places
            url = begun(server, authorization="Bearer key-of-one")
            assert send(url, 0, DATA, authorization="Bearer key-of-one").status_code == 204
        new = {**TUS, "upload-length": "1"}
        assert client.post(f"{server.url}/v1/uploads", headers=new).status_code == 429
        whole = client.post(f"{server.url}/v1/jobs", files={"file": ("talk.wav", DATA)})
        assert whole.status_code == 429, "another recording has no place"
        made = client.post(f"{server.url}/v1/jobs", files=fields_of(url))
        assert made.status_code == 202, made.text
        assert client.post(f"{server.url}/v1/uploads", headers=new).status_code == 429, "as many as before"
        runner = server.services.jobs
        assert runner is not None
        until(lambda: client.get(f"{server.url}/v1/jobs/{made.json()['id']}").json()["status"] == "succeeded")
        assert runner.uploads.count() == (0 if keys else 1)


def test_a_job_that_cannot_be_kept_leaves_its_upload(
    server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = begun(server)
    send(url, 0, DATA)
    monkeypatch.setattr("sottovoce.serving.jobs.job_store.write_whole", full_disk)
    assert job_of(server, url).status_code == 503
    monkeypatch.undo()
    assert offset_of(url) == len(DATA)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("job_")] == []
    assert job_of(server, url).status_code == 202


def full_disk(path: Path, text: str) -> None:
    raise OSError(28, "No space left on device")


def test_files_without_a_record_go_at_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "uploads"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"upload_{name * 32}").write_bytes(b"of a start that ended here")
    (folder / f"upload_{'b' * 32}.part").write_text("{")
    (folder / f"upload_{'c' * 32}.json").write_text(json.dumps({"id": "upload_" + "c" * 32}))
    with serving(SlowModel(), jobs=JobSettings(str(tmp_path))):
        assert list(folder.iterdir()) == []


def test_uploads_are_counted_while_others_come_and_go(tmp_path: Path) -> None:
    """What counts on the event loop and what works in threads never meet in the middle of a change."""

    async def churn() -> None:
        store = UploadStore(tmp_path)
        with anyio.move_on_after(1.0):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(come_and_go, store)
                while True:
                    for _ in range(200):
                        assert store.count() * 10 == store.n_bytes
                    await anyio.sleep(0)
        assert store.count() <= 20

    async def come_and_go(store: UploadStore) -> None:
        while True:
            made = await store.create("", 10, "a")
            await store.remove(made)
            await anyio.sleep(0)

    anyio.run(churn)
