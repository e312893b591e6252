"""Transcripts are read as they were written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sottovoce.errors import OptionError
from sottovoce.formats.base import write_transcript
from sottovoce.formats.files import load_transcript
from sottovoce.formats.writers import writer_for
from tests.formats.transcripts import spoken


@pytest.mark.parametrize("with_words", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_our_json_comes_back(tmp_path: Path, seed: int, with_words: bool) -> None:
    written = spoken(seed, with_words=with_words)
    path = tmp_path / "talk.json"
    path.write_text(write_transcript(writer_for("json"), written), encoding="utf-8")
    read = load_transcript(path)
    assert [(s.text, s.start, s.end) for s in read.segments] == [
        (s.text, s.start, s.end) for s in written.segments
    ]
    words = [word for segment in read.segments for word in segment.words or ()]
    assert [(w.word, w.start) for w in words] == [
        (w.word, w.start) for s in written.segments for w in s.words or ()
    ]
    assert (read.language, read.model) == ("en", "nano")


@pytest.mark.parametrize("kind", ["srt", "vtt"])
@pytest.mark.parametrize("seed", range(5))
def test_subtitles_come_back(tmp_path: Path, seed: int, kind: str) -> None:
    written = spoken(seed, with_words=False)
    path = tmp_path / f"talk.{kind}"
    path.write_text(write_transcript(writer_for(kind), written), encoding="utf-8")
    expected = [s for s in written.segments if s.text.strip()]
    read = load_transcript(path).segments
    assert [s.text.split() for s in read] == [s.text.split() for s in expected]
    assert [(s.start, s.end) for s in read] == [
        (pytest.approx(s.start), pytest.approx(s.end)) for s in expected
    ]


def test_other_programs_documents_are_read(tmp_path: Path) -> None:
    cpp = tmp_path / "cpp.json"
    rows = [{"offsets": {"from": 500, "to": 1500}, "text": " Hello."}]
    cpp.write_text(json.dumps({"result": {"language": "en"}, "transcription": rows}), encoding="utf-8")
    (segment,) = load_transcript(cpp).segments
    assert (segment.start, segment.end, segment.text, segment.language) == (0.5, 1.5, " Hello.", "en")
    subtitles = tmp_path / "talk.vtt"
    subtitles.write_bytes(
        b"WEBVTT\r\n\r\nNOTE said\r\n\r\n01:02.500 --> 01:03.250 line:0\r\n<v Ann><b>Good</b>\r\nmorning\r\n"
    )
    (segment,) = load_transcript(subtitles).segments
    assert (segment.start, segment.end, segment.text) == (62.5, 63.25, " Good morning")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("talk.json", "{", "expected JSON, got something else (Expecting property name"),
        ("talk.json", "5", "the document: expected an object, got a number"),
        ("talk.json", '{"a": 1}', "expected 'segments' with start, end and text, got 'a'"),
        ("talk.json", '{"segments": [{"start": "x", "end": 1, "text": ""}]}', "'x' is no time in seconds"),
        ("talk.json", '{"segments": [{"end": 1, "text": ""}]}', "'start' is missing"),
        ("talk.json", '{"segments": 5}', "'segments': expected a list, got a number"),
        ("talk.json", '{"segments": [[]]}', "an entry of 'segments': expected an object, got a list"),
        (
            "talk.json",
            '{"segments": [{"start": 0, "end": 1, "text": 5}]}',
            "'text': expected a text, got a number",
        ),
        ("talk.json", "[" * 100_000, "expected JSON"),
        ("talk.txt", "{}", "expected a name that ends in .json, .srt, .vtt"),
        (
            "talk.srt",
            "Only text.\n",
            "line 1: expected times such as 00:00:01,000 --> 00:00:03,500, got 'Only",
        ),
    ],
)
def test_what_is_no_transcript_is_told(tmp_path: Path, name: str, content: str, told: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(OptionError, match="transcript ") as caught:
        load_transcript(path)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_not_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        load_transcript(tmp_path / "none.srt")
    path = tmp_path / "latin.srt"
    path.write_bytes("1\n00:01,0 --> 00:02,0\ncafé".encode("cp1252"))
    with pytest.raises(OptionError, match="the byte 0xe9, which is not UTF-8, in line 3"):
        load_transcript(path)
