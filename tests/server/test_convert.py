"""Transcripts in other formats: the server writes what `sottovoce convert` writes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import docx
import httpx
import pytest

from sottovoce.cli.main import run
from sottovoce.formats.files import FORMATS
from sottovoce.server.apis import convert
from tests.server.servers import KEY, LOCKED, ServerThread, SlowModel, bearer, serving


def segment(number: int, text: str, speaker: str, **more: object) -> dict[str, Any]:
    words = [
        {"word": f" {word}", "start": number + i / 10, "end": number + i / 10 + 0.1, "probability": 0.9}
        for i, word in enumerate(text.split())
    ]
    times = {"start": float(number), "end": words[-1]["end"], "language": "en"}
    return {"id": number, **times, "text": f" {text}", "speaker": speaker, "words": words, **more}


DOCUMENT = {
    "text": "",
    "language": "en",
    "duration": 9.0,
    "model": "base",
    "segments": [
        segment(0, "Good morning, everybody.", "Anna <i>", translation="Guten Morgen."),
        segment(3, "Shall we begin with the budget? It is due.", "B"),
    ],
}


def converted(server: ServerThread, body: object = DOCUMENT, **query: object) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(f"{server.url}/v1/convert", params=query, content=content, timeout=60)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "query"),
    [
        *((name, {}) for name in FORMATS if name not in ("docx", "json-full")),
        ("srt", {"max_line_width": 20, "max_line_count": 1, "offset_n": 5}),
        ("vtt", {"regroup": "split after=.?!"}),
    ],
)
def test_a_document_is_that_of_the_command(
    server: ServerThread, tmp_path: Path, name: str, query: dict[str, Any]
) -> None:
    (tmp_path / "talk.json").write_text(json.dumps(DOCUMENT))
    options = [part for key, value in query.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    command = ["convert", str(tmp_path / "talk.json"), "-f", name, "--output-dir", str(tmp_path / "out")]
    assert run([*command, *options]) == 0
    (written,) = (tmp_path / "out").iterdir()
    answer = converted(server, title="talk", format=name, **query)
    assert answer.status_code == 200, answer.text
    assert answer.content == written.read_bytes()
    assert written.name.endswith(answer.headers["content-disposition"].rpartition("transcript")[2].strip('"'))


def test_word_has_the_title_and_every_paragraph(server: ServerThread) -> None:
    answer = converted(server, title="Meeting at 10.30", format="docx", more=1)
    assert answer.headers["x-ignored-parameters"] == "more"
    texts = [paragraph.text for paragraph in docx.Document(io.BytesIO(answer.content)).paragraphs]
    assert texts[0] == "Meeting at 10.30"
    assert {"Good morning, everybody.", "Guten Morgen."} < set(texts)


WITHOUT_WORDS = {"segments": [{"start": 0, "end": 1, "text": "one"}]}


@pytest.mark.parametrize(
    ("body", "query", "message"),
    [
        (b"x", {}, "body: expected"),
        (b"", {}, "body: expected"),
        ({"segments": [{}]}, {}, "body: "),
        (DOCUMENT, {"format": "pdf"}, "format: expected one of txt, srt"),
        (DOCUMENT, {"format": "srt", "max_line_width": "wide"}, "max_line_width: expected a whole number"),
        (DOCUMENT, {"format": "srt", "reading_speed": "0"}, "reading_speed: expected"),
        (DOCUMENT, {"format": "srt", "layout": "segments", "reading_speed": "9"}, "needs layout 'reading'"),
        (DOCUMENT, {"format": "txt", "max_line_width": "20"}, "line breaking and highlighting are for"),
        (DOCUMENT, {"regroup": "cut"}, "regroup: expected split or merge"),
        (WITHOUT_WORDS, {"format": "srt", "reading_speed": "17"}, "expected words with times"),
        (WITHOUT_WORDS, {"format": "rttm"}, "format: expected speakers"),
        (DOCUMENT, {"title": "x" * 9000}, "title: expected a text of at most"),
    ],
)
def test_what_cannot_be_written_is_told_in_one_line(
    server: ServerThread, body: object, query: dict[str, str], message: str
) -> None:
    answer = converted(server, body, **query)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]
    assert "\n" not in answer.json()["error"]["message"]


def test_a_missing_extra_tells_clients_no_path_of_the_server(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "docx", None)
    answer = converted(server, format="docx")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_value")
    assert answer.json()["error"]["message"] == "format: 'docx' is not available on this server"


def test_half_a_character_becomes_a_sign_that_can_be_written(server: ServerThread) -> None:
    answer = converted(server, b'{"segments": [{"start": 0, "end": 1, "text": "a\\ud800b"}]}', format="txt")
    assert (answer.status_code, answer.text) == (200, "a\ufffdb\n")


def test_a_transcript_has_a_size_and_a_server_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "MAX_BYTES", 1_000)
    with serving(SlowModel(), access=LOCKED) as server:
        assert converted(server).status_code == 401
        answer = httpx.post(f"{server.url}/v1/convert", content=json.dumps(DOCUMENT), headers=bearer(KEY))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
