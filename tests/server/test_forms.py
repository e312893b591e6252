"""Forms: fields in every spelling, parts without `filename`, limits, and the threads that read them."""

from __future__ import annotations

import base64
import threading
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from sottovoce.audio.io import load_audio
from sottovoce.server.apis import openai_files
from sottovoce.server.errors import ApiError
from sottovoce.server.fields import MAX_LIST_LETTERS, Fields
from sottovoce.server.uploads import FORM_BYTES
from sottovoce.server.worker import THREAD_NAME
from tests.server.servers import CLIPS, TRANSCRIPTIONS, QuietModel, ServerThread, SlowFile, post, serving, wav

BOUNDARY = "XXBOUND"
ROUTES = (TRANSCRIPTIONS, "/v1/audio/translations", "/inference", "/v1/jobs")
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


@pytest.mark.parametrize("names", [("a[]", "a[]"), ("a", "a"), ("a[0]", "a[1]")])
def test_lists_of_a_form_in_every_spelling(names: tuple[str, str]) -> None:
    fields = Fields([(names[0], "x"), (names[1], "y")])
    assert fields.many("a") == ["x", "y"]
    assert fields.unread == ()


def test_objects_of_a_form_in_every_spelling() -> None:
    expected = {"type": "server_vad", "threshold": "0.4"}
    assert Fields([("a[type]", "server_vad"), ("a[threshold]", "0.4")]).nested("a") == expected
    assert Fields([("a", '{"type": "server_vad", "threshold": "0.4"}')]).nested("a") == expected
    assert Fields([("a", "auto")]).nested("a") == "auto"
    assert Fields([]).nested("a") is None
    for wrong in ([("a", "auto"), ("a[type]", "x")], [("a", "{")], [("a", "x" * 10_000)]):
        with pytest.raises(ApiError):
            Fields(wrong).nested("a")


def test_a_value_given_twice_and_a_name_nobody_knows() -> None:
    with pytest.raises(ApiError, match="expected one value, got 2"):
        Fields([("a", "1"), ("a", "2")]).text("a")
    fields = Fields([("modle", "x")])
    fields.text("model")
    assert fields.unread == ("modle",)


@pytest.fixture(scope="module")
def second() -> bytes:
    return wav(load_audio(CLIPS / "en.flac")[:16_000])


@pytest.mark.parametrize(("disposition", "name"), DISPOSITIONS)
def test_the_name_is_that_of_the_part_or_of_its_type(
    quiet_server: ServerThread, second: bytes, disposition: str, name: str
) -> None:
    answer = httpx.post(f"{quiet_server.url}/v1/jobs", timeout=60, **form(second, disposition))
    assert (answer.status_code, answer.json().get("filename")) == (202, name), answer.text


@pytest.mark.parametrize(
    ("path", "kind"),
    [*((path, "audio/wav") for path in ROUTES), *((ROUTES[0], kind) for kind in ("what/ever; a=b", ""))],
)
def test_it_is_taken_by_every_route(quiet_server: ServerThread, second: bytes, path: str, kind: str) -> None:
    answer = httpx.post(quiet_server.url + path, timeout=60, **form(second, kind=kind))
    assert answer.status_code in (200, 202), answer.text


@pytest.mark.parametrize("path", ROUTES)
def test_one_that_is_no_recording_is_an_error_that_says_so(quiet_server: ServerThread, path: str) -> None:
    answer = httpx.post(quiet_server.url + path, timeout=60, **form(b"talk.mp3", kind=""))
    assert answer.status_code == 400
    assert "upload" in str(answer.json()["error"])


def test_a_text_field_stays_one_and_a_file_elsewhere_is_refused(quiet_server: ServerThread) -> None:
    url = quiet_server.url + ROUTES[0]
    answer = httpx.post(url, timeout=60, **form(b"en", 'form-data; name="language"', kind="text/plain"))
    assert answer.json()["error"]["code"] == "missing_parameter"
    elsewhere = "form-data; name=\"audio\"; filename*=UTF-8''a.mp3"
    answer = httpx.post(url, timeout=60, **form(b"en", elsewhere))
    assert answer.json()["error"]["code"] == "invalid_form"


@pytest.mark.parametrize("name", ["keywords", "languages", "include", "timestamp_granularities"])
def test_a_list_has_a_limit_in_all(name: str) -> None:
    half = "a" * 1_000
    within = Fields([(f"{name}[]", half)] * (MAX_LIST_LETTERS // 1_000))
    assert len(within.many(name)) == MAX_LIST_LETTERS // 1_000
    with pytest.raises(
        ApiError, match=f"{MAX_LIST_LETTERS} characters in all, got {MAX_LIST_LETTERS + 1_000}"
    ):
        Fields([(f"{name}[]", half)] * (MAX_LIST_LETTERS // 1_000 + 1)).many(name)


def test_a_field_that_is_too_long_is_named(server: ServerThread) -> None:
    answer = post(server, prompt="a" * 70_000)
    assert answer.status_code == 400
    assert "Field 'prompt' exceeded maximum size of 64KB" in answer.json()["error"]["message"]


def test_fields_have_a_limit_together(server: ServerThread) -> None:
    fields = {"known_speaker_references[]": ["a" * 7_000_000] * (FORM_BYTES // 7_000_000 + 1)}
    answer = post(server, **fields)
    assert answer.status_code == 400
    assert "Fields exceeded maximum size" in answer.json()["error"]["message"]


class PhraseModel(QuietModel):
    """Notes the thread in which phrases become part of a search."""

    tokenizer = SimpleNamespace(encode=lambda text: [])

    def __init__(self) -> None:
        super().__init__()
        self.fusion_threads: list[str] = []

    def fusion(self, hotwords: object) -> object:
        self.fusion_threads.append(threading.current_thread().name)
        return object()

    def transcribe(self, source: object, **options: Any) -> SlowFile:
        assert options["fusion"] is not None
        return super().transcribe(source, **options)


def test_phrases_are_prepared_once_and_off_the_threads_of_the_model() -> None:
    model = PhraseModel()
    with serving(model) as server:
        for phrase in ("garden", "garden", "gate", "garden"):
            assert post(server, **{"keywords[]": [phrase]}).status_code == 200
    assert len(model.fusion_threads) == 2
    assert not [
        fusion_thread
        for fusion_thread in model.fusion_threads
        if fusion_thread.startswith((THREAD_NAME, "sottovoce-server"))
    ]


def test_a_known_speaker_may_have_half_a_minute(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def noted(*given: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return np.zeros(16_000 * 30, np.float32)

    monkeypatch.setattr(openai_files, "load_audio", noted)
    reference = "data:audio/wav;base64," + base64.b64encode(wav(3 * 16_000 * 30)).decode()
    fields = {
        "response_format": "diarized_json",
        "known_speaker_names[]": ["Ann", "Ben"],
        "known_speaker_references[]": [reference, reference],
        "temperature": "9",
    }
    answer = post(server, **fields)
    assert answer.json()["error"]["param"] != "known_speaker_references[]"
    fields["temperature"] = "0"
    post(server, data=b"none", **fields)
    assert len(threads) == 2
    assert all(name.startswith("sottovoce-decode") for name in threads)
