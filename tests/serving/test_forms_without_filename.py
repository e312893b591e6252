"""A part that is a recording is one without `filename` too, as some clients send it, on every route."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.serving.http.server import ServerThread
from sottovoce.serving.settings import JobSettings
from tests.serving.servers import CLIPS, serving

BOUNDARY = "XXBOUND"
ROUTES = ("/v1/audio/transcriptions", "/v1/audio/translations", "/inference", "/v1/jobs")
PLAIN = 'form-data; name="file"'
DISPOSITIONS = [
    (PLAIN, "upload.flac"),
    ("form-data; name=file", "upload.flac"),
    ("form-data; name=\"file\"; filename*=UTF-8''na%C3%AFve%20talk.mp3", "naïve talk.mp3"),
    ('form-data; filename*0="ta"; filename*1="lk.mp3"; name="file"', "talk.mp3"),
    ("form-data; name=\"file\"; filename*=UTF-8''a%22%0D%0Ab%5C.mp3", "ab.mp3"),
    ('form-data; name="file"; filename*=', "upload.flac"),
    ('form-data; name="file"; filename="x.mp3"; filename*=UTF-8\'\'y.mp3', "x.mp3"),
    ('form-data; name="file"; filename=""', "the upload"),
]
"""How parts are headed, and the name that a recording of FLAC has then."""


def form(content: bytes, disposition: str = PLAIN, kind: str = "audio/flac") -> dict[str, Any]:
    """A request whose form has one part; kind: its content type, "" for none."""
    head = f"--{BOUNDARY}\r\nContent-Disposition: {disposition}\r\n" + (
        f"Content-Type: {kind}\r\n" if kind else ""
    )
    body = head.encode() + b"\r\n" + content + f"\r\n--{BOUNDARY}--\r\n".encode()
    return {"content": body, "headers": {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}}


@pytest.fixture(scope="module")
def jobs(nano: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with serving(nano, jobs=JobSettings(str(tmp_path_factory.mktemp("jobs")))) as server:
        yield server


@pytest.fixture(scope="module")
def second() -> bytes:
    samples = load_audio(CLIPS / "en.flac")[:16_000]
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes((samples * 32767).astype("<i2").tobytes())
    return file.getvalue()


@pytest.mark.parametrize(("disposition", "name"), DISPOSITIONS)
def test_the_name_is_that_of_the_part_or_of_its_type(
    jobs: ServerThread, second: bytes, disposition: str, name: str
) -> None:
    answer = httpx.post(f"{jobs.url}/v1/jobs", timeout=60, **form(second, disposition))
    assert (answer.status_code, answer.json().get("filename")) == (202, name), answer.text


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        *((path, "audio/wav") for path in ROUTES),
        *((ROUTES[0], kind) for kind in ("what/ever; a=b", "")),
    ],
)
def test_it_is_taken_by_every_route(jobs: ServerThread, second: bytes, path: str, kind: str) -> None:
    answer = httpx.post(jobs.url + path, timeout=60, **form(second, kind=kind))
    assert answer.status_code in (200, 202), answer.text


@pytest.mark.parametrize("path", ROUTES)
def test_one_that_is_no_recording_is_an_error_that_says_so(jobs: ServerThread, path: str) -> None:
    answer = httpx.post(jobs.url + path, timeout=60, **form(b"talk.mp3", kind=""))
    assert answer.status_code == 400
    assert "upload" in str(answer.json()["error"])


def test_a_text_field_stays_one_and_a_file_elsewhere_is_refused(jobs: ServerThread) -> None:
    url = jobs.url + ROUTES[0]
    answer = httpx.post(url, timeout=60, **form(b"en", 'form-data; name="language"', kind="text/plain"))
    assert answer.json()["error"]["code"] == "missing_parameter"
    elsewhere = "form-data; name=\"audio\"; filename*=UTF-8''a.mp3"
    answer = httpx.post(url, timeout=60, **form(b"en", elsewhere))
    assert answer.json()["error"]["code"] == "invalid_form"
