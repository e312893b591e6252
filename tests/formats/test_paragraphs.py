"""Documents for people: paragraphs, Markdown and word processors, read back by other programs."""

from __future__ import annotations

import html
import io
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.cli.main import run
from sottovoce.errors import MissingExtraError
from sottovoce.formats import write_document, write_transcript, writer_for, writers_for
from sottovoce.formats.pages import LONG, paragraphs
from sottovoce.types import Segment, Transcript
from tests.formats.transcripts import module

NASTY = (
    "# heading",
    "1. one",
    "12345) x",
    "- a * b _c_ `d`",
    "> quoted <b>bold</b> <!-- x -->",
    "[link](http://x) ![i](j) <http://y>",
    "&amp; & &#65; AT&T",
    "--- *** ___",
    "=== ~~~ ~a~",
    "\\* back\\slash \\",
    "| a | b |",
    "a\n\nb\u2028c\x00d\x1be",
    "+ plus",
    "שלום, עולם.",
)


def said(number: int, start: float, text: str, **more: Any) -> Segment:
    return Segment(number, start, start + 1.0, text, more.pop("language", "en"), **more)


def talk(*segments: Segment) -> Transcript:
    return Transcript(segments, "en", max((segment.end for segment in segments), default=0.0), "nano")


def flat(text: str) -> str:
    return " ".join("".join(" " if category(c) == "Cc" or c in "\ufffe\uffff" else c for c in text).split())


def test_segments_are_joined_until_a_pause_or_another_voice() -> None:
    blocks = list(
        paragraphs(
            [
                said(0, 0.0, " One.", speaker="A", translation="Eins."),
                said(1, 1.5, " Two.", speaker="A", translation="Zwei."),
                said(2, 3.0, " Drei.", speaker="A", language="de"),
                said(3, 4.0, " Vier.", speaker="B", language="de"),
                said(4, 5.0, " ", speaker="A"),
                said(5, 7.5, " Fünf.", speaker="B", language="de"),
            ]
        )
    )
    assert [(block.start, block.end, block.text, block.speaker, block.language) for block in blocks] == [
        (0.0, 2.5, "One. Two.", "A", "en"),
        (3.0, 4.0, "Drei.", "A", "de"),
        (4.0, 5.0, "Vier.", "B", "de"),
        (7.5, 8.5, "Fünf.", "B", "de"),
    ]
    assert blocks[0].translation == "Eins. Zwei."


def test_speech_without_pauses_has_paragraphs() -> None:
    segments = [said(i, float(i), f" This is {i} and" if i % 3 else f" said. Now {i}.") for i in range(400)]
    blocks = list(paragraphs(segments))
    assert len(blocks) > 3
    assert all(block.text.endswith(".") for block in blocks[:-1])
    assert all(LONG <= len(block.text) < LONG + 100 for block in blocks[:-1])
    assert " ".join(block.text for block in blocks) == flat("".join(block.text for block in segments))


def test_languages_without_spaces_are_joined_without() -> None:
    chinese = [said(i, float(i), text, language="zh") for i, text in enumerate(("你好。", "再见。"))]
    assert [block.text for block in paragraphs(chinese)] == ["你好。再见。"]


def test_markdown() -> None:
    transcript = talk(
        said(0, 0.0, " One.", speaker="A*", translation="Eins."),
        said(1, 1.0, " Two.", speaker="A*"),
        said(2, 3700.0, " Drei.", language="de"),
    )
    assert write_transcript(writer_for("md"), transcript, source="my_talk.v2.mp3") == (
        "# my\\_talk.v2\n\n1:01:41 · English, German · nano\n\n"
        "**A\\*** · 0:00 · English\n\nOne. Two.\n\n> Eins.\n\n1:01:40 · German\n\nDrei.\n"
    )
    assert write_transcript(writer_for("md"), talk(said(0, 0.0, " One."))) == (
        "# Transcript\n\n0:01 · English · nano\n\n0:00\n\nOne.\n"
    )
    assert write_transcript(writer_for("md"), talk()) == "# Transcript\n\n0:00 · nano\n"


def rendered(markdown: str) -> list[str]:
    """The text of every block that CommonMark makes of a page."""
    page = module("markdown_it").MarkdownIt("commonmark").render(markdown)
    assert not re.search(r"<(?!/?(?:h1|p|strong|blockquote)>)", page), page
    return [html.unescape(re.sub(r"<[^>]*>", "", line)) for line in page.splitlines() if line.strip()]


def blocks_of(transcript: Transcript) -> list[str]:
    return [line for line in rendered(write_transcript(writer_for("md"), transcript)) if line.strip()][2:]


@pytest.mark.parametrize("text", NASTY)
def test_markdown_shows_what_was_said(text: str) -> None:
    segment = said(0, 0.0, " " + text, speaker=text, translation=text)
    head, *blocks = [flat(block) for block in blocks_of(talk(segment))]
    assert head == f"{flat(text)} · 0:00"
    assert blocks == [flat(text), flat(text)]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_markdown_shows_any_text(text: str) -> None:
    texts = [flat(block) for block in blocks_of(talk(said(0, 0.0, text)))]
    assert texts[1:] == ([flat(text)] if flat(text) else [])


def opened(document: bytes) -> Any:
    return module("docx").Document(io.BytesIO(document))


def test_a_word_processor_shows_what_was_said() -> None:
    transcript = talk(
        *(said(i, 4.0 * i, " " + text, speaker=text, translation=text) for i, text in enumerate(NASTY))
    )
    opened_document = opened(write_document(writer_for("docx"), transcript, source="talk & <x>.mp3"))
    title, facts, *rest = opened_document.paragraphs
    assert (title.text, title.style.name) == ("talk & <x>", "Title")
    assert (facts.text, facts.style.name) == ("0:53 · English · nano", "Facts")
    assert [(block.text.rsplit("  ", 1)[0], block.style.name) for block in rest[::3]] == [
        (flat(text), "Speaker") for text in NASTY
    ]
    assert [block.text for block in rest[1::3]] == [flat(text) for text in NASTY]
    assert [(block.text, block.style.name) for block in rest[2::3]] == [
        (flat(text), "Translation") for text in NASTY
    ]
    assert rest[0].runs[0].bold
    assert rest[0].runs[1].text == "  0:00"


def test_text_runs_as_its_script_does_and_is_spelt_in_its_language() -> None:
    transcript = talk(
        said(0, 0.0, " Guten Tag.", language="de", speaker="A"),
        said(1, 1.0, " שלום, עולם.", language="he", speaker="אבי"),
        said(2, 2.0, "你好。", language="zh"),
    )
    document = write_document(writer_for("docx"), transcript)
    xml = zipfile.ZipFile(io.BytesIO(document)).read("word/document.xml").decode()
    german, hebrew, chinese = (xml[: xml.index(text)][-200:] for text in ("Guten", "שלום", "你好"))
    assert '<w:lang w:val="de"/></w:rPr><w:t>' in german
    assert "bidi/>" not in german
    assert '<w:pPr><w:bidi/></w:pPr><w:r><w:rPr><w:rtl/><w:lang w:bidi="he"/></w:rPr><w:t>' in hebrew
    assert '<w:lang w:eastAsia="zh"/>' in chinese
    heads = [block.text for block in opened(document).paragraphs if block.style.name == "Speaker"]
    assert heads == ["A  0:00 · German", "אבי  0:01 · Hebrew", "0:02 · Chinese"]


def test_a_document_tells_neither_the_day_nor_an_author() -> None:
    document = write_document(writer_for("docx"), talk(said(0, 0.0, " One.")), source="talk.mp3")
    properties = opened(document).core_properties
    assert (properties.title, properties.author, properties.created) == ("talk", "", None)
    with zipfile.ZipFile(io.BytesIO(document)) as archive:
        assert archive.testzip() is None
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert b"dcterms:created" not in archive.read("docProps/core.xml")


@pytest.fixture
def finished(tmp_path: Path) -> str:
    talk(said(0, 0.0, " One.")).save(tmp_path / "talk.json")
    return str(tmp_path / "talk.json")


def test_bytes_go_through_a_pipe(finished: str, tmp_path: Path) -> None:
    assert run(["convert", finished, "-o", str(tmp_path / "talk.docx")]) == 0
    words = ["convert", finished, "-f", "docx", "-o", "-"]
    done = subprocess.run([sys.executable, "-m", "sottovoce", *words], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == (tmp_path / "talk.docx").read_bytes()


def test_a_pipe_that_is_closed_or_full_is_as_for_text(finished: str) -> None:
    command = [sys.executable, "-m", "sottovoce", "convert", finished, "-f", "docx", "-o", "-"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: standard output: cannot be written (No space left on device)\n"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_bytes_are_not_for_terminals_nor_beside_text(
    finished: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["convert", finished, "-f", "docx,txt", "-o", "-"]) == 2
    assert "'docx': is binary; expected no other documents on standard output" in capsys.readouterr().err
    assert run(["convert", finished, "-f", "all", "-o", "-"]) == 0
    assert "PK" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(["convert", finished, "-f", "docx", "-o", "-"]) == 2
    assert "'docx': is binary; expected a file (-o FILE), got a terminal" in capsys.readouterr().err


def test_a_missing_package_is_named_and_left_out_of_all(
    finished: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "docx", None)
    with pytest.raises(MissingExtraError, match="output format 'docx' needs the package 'python-docx'"):
        writer_for("docx")
    assert run(["convert", finished, "-f", "docx,md", "-o", str(tmp_path / "out")]) == 2
    assert "[docx]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert "docx" not in [writer.extension for writer in writers_for("all")]
    assert "sottovoce[docx]" in caplog.text
    assert run(["convert", finished, "-o", str(tmp_path / "talk.srt")]) == 0
