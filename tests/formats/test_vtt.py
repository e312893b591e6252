"""WebVTT by its specification: whatever was said, and whoever said it, comes back as it was."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pytest

from sottovoce.formats import WriterOptions, write_transcript, writer_for
from sottovoce.formats.files import parse_transcript
from sottovoce.types import Segment, Transcript, Word
from tests.formats.transcripts import CHROMIUM, module

TEXTS = (
    "a < b & c --> d",
    "&amp; is written &amp;amp;",
    "<v B>not me</v>",
    "<c.red>x</c> <00:01.000> {\\an8}",
    "NOTE nobody speaks",
    "00:01.000 --> 00:02.000",
    "שלום, עולם.",
    "مرحبا & <أهلا>",
    "&lrm;x",
    "& > <",
)
NAMES = (
    "A",
    "B & Co",
    "x > y < z",
    "two\nlines\r\nof it",
    "  much \t space ",
    "&gt;",
    "אבי",
    "v.loud",
    None,
    " ",
)


def talk(said: list[tuple[str, str | None]], *, timed: bool = False) -> Transcript:
    segments = []
    for number, (text, speaker) in enumerate(said):
        words = (Word(f" {text}", number, number + 0.5, 0.9, speaker=speaker),) if timed else None
        segments.append(Segment(number, number, number + 0.5, f" {text}", "en", words=words, speaker=speaker))
    return Transcript(tuple(segments), "en", float(len(said)), "nano")


def document(transcript: Transcript, **options: Any) -> str:
    return write_transcript(writer_for("vtt", WriterOptions(**options)), transcript)


def flat(text: str | None) -> str:
    return " ".join((text or "").split())


SAID = [(text, NAMES[number % len(NAMES)]) for number, text in enumerate(TEXTS)] + [
    ("Good morning.", name) for name in NAMES
]
EXPECTED = [(flat(text), flat(name) or None) for text, name in SAID]


@pytest.mark.parametrize("options", [{}, {"max_line_width": 200}, {"reading_speed": 17.0}])
def test_we_read_what_we_wrote(options: dict[str, Any]) -> None:
    written = document(talk([*SAID, ("", "A"), ("  ", None)], timed=True), **options)
    segments = parse_transcript(written.encode(), "vtt").segments
    assert [(flat(segment.text), segment.speaker) for segment in segments] == EXPECTED


def test_webvtt_py_reads_it() -> None:
    """It leaves character references as they are written."""
    captions = module("webvtt").from_string(document(talk(SAID)))
    assert [
        (flat(html.unescape(caption.text)), html.unescape(caption.voice) if caption.voice else None)
        for caption in captions
    ] == EXPECTED


def test_a_null_is_what_the_specification_makes_of_it() -> None:
    assert "a\ufffdb" in document(talk([("a\0b", None)]))


def test_several_voices_of_a_cue_are_nobodys() -> None:
    text = "WEBVTT\n\n00:00.000 --> 00:01.000\n<v.loud Ann>Hi.</v>\n<v Bob>Hello.</v>\n"
    (segment,) = parse_transcript(text.encode(), "vtt").segments
    assert (segment.text, segment.speaker) == (" Hi. Hello.", None)


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_shows_what_was_said(tmp_path: Path) -> None:
    """Chromium's parser is one of those that the specification was written by."""
    playwright = module("playwright.sync_api")
    (tmp_path / "page.html").write_text(
        f"<video><track default kind=captions src='data:text/vtt,{_quoted(document(talk(SAID)))}'></video>"
    )
    script = """async () => {
        const track = document.querySelector('track');
        track.track.mode = 'hidden';
        while (track.readyState < 2) await new Promise(done => setTimeout(done, 20));
        return [...track.track.cues].map(cue => {
            const shown = cue.getCueAsHTML();
            const voice = shown.querySelector('span[title]');
            return [shown.textContent, voice && voice.title];
        });
    }"""
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        cues = page.evaluate(script)
        chromium.close()
    assert [(flat(text), flat(name) or None) for text, name in cues] == EXPECTED


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def test_a_change_of_language_is_a_comment_with_its_posterior() -> None:
    said = [
        ("Hello.", "en", 0.97),
        ("Hallo.", "de", 0.984),
        ("Wie geht es?", "de", 0.9),
        ("Ciao.", "it", None),
    ]
    segments = tuple(
        Segment(number, number, number + 0.5, f" {text}", language, language_probability=probability)
        for number, (text, language, probability) in enumerate(said)
    )
    written = document(Transcript(segments, "en", 4.0, "nano"))
    notes = [line for line in written.splitlines() if line.startswith("NOTE")]
    assert notes == ["NOTE language de 0.98"]
    assert written.index("NOTE") < written.index("Hallo.")
    assert [flat(each.text) for each in parse_transcript(written.encode(), "talk.vtt").segments] == [
        text for text, *_ in said
    ]
