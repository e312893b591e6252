"""A transcript as one HTML page: a player, the spectrogram, lanes of languages and speakers, clickable text.

The text needs no scripts; `page.js` draws the lanes and follows the player. The content security policy lets
the page load the recording alone.
"""

from __future__ import annotations

import base64
import math
import mimetypes
import os
from html import escape
from importlib.resources import files
from pathlib import Path, PurePath
from urllib.parse import quote

from sottovoce.errors import OptionError, cause_of
from sottovoce.formats.document import VERY_LOW_CONFIDENCE, has_low_confidence
from sottovoce.formats.output import TranscriptInfo, Writer
from sottovoce.formats.paragraphs import clock, is_text
from sottovoce.formats.subtitles import direction
from sottovoce.types import Segment, Word

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "media-src 'self' file: data: blob: http: https:; img-src data:"
)


class HtmlWriter(Writer):
    extension = "html"

    def begin(self, info: TranscriptInfo) -> str:
        title = plain(info.source or "Transcript")
        audio = f' src="{plain(info.audio)}"' if info.audio else ""
        picture = f'<img id="spectrogram" alt="" src="{plain(info.spectrogram)}">' if info.spectrogram else ""
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title>\n<style>\n{asset('page.css')}</style>\n</head>\n<body>\n"
            f'<header>\n<h1 dir="auto">{title}</h1>\n<p id="facts">{plain(info.model)}</p>\n'
            f'<audio id="player" controls preload="metadata"{audio}></audio>\n'
            f'<div id="lanes" aria-hidden="true">{picture}</div>\n{TOOLS}</header>\n<main id="text">\n'
        )

    def segment(self, segment: Segment) -> str:
        speaker = f'<b class="speaker" dir="auto">{plain(segment.speaker)}</b> ' if segment.speaker else ""
        marks = (
            f'data-s="{time(segment.start)}" data-e="{time(segment.end)}" lang="{plain(segment.language)}"'
        )
        if segment.speaker:
            marks += f' data-speaker="{plain(segment.speaker)}"'
        text = "".join(map(word_span, segment.words)) if segment.words else plain(segment.text)
        text_span = f'<span class="said" dir="{direction(segment.text)}">{speaker}{text.strip()}</span>'
        if segment.translation:
            shown = plain(segment.translation)
            text_span += f'<span class="translation" dir="{direction(segment.translation)}">{shown}</span>'
        link = f'<a class="at" href="#t={time(segment.start)}">{clock(segment.start)}</a>'
        return f'<p class="segment" {marks}>{link}{text_span}</p>\n'

    def end(self, info: TranscriptInfo) -> str:
        facts = [info.model, info.language, None if info.duration is None else clock(info.duration)]
        facts_text = plain(" · ".join(fact for fact in facts if fact))
        duration = time(info.duration or 0.0)
        return (
            f'</main>\n<div id="end" data-duration="{duration}" data-facts="{facts_text}"></div>\n'
            f"<script>\n{asset('page.js')}</script>\n</body>\n</html>\n"
        )


TOOLS = """\
<div id="tools">
<label><input type="checkbox" id="colours" checked> Confidence</label>
<span id="legend"><span class="w c1">not sure</span> <span class="w c0">a guess</span></span>
<label><input type="checkbox" id="follow" checked> Follow</label>
<label id="choose">Recording: <input type="file" id="file" accept="audio/*,video/*"></label>
<span id="keys"><kbd>space</kbd> play <kbd>←</kbd> <kbd>→</kbd> 5 s <kbd>↑</kbd> <kbd>↓</kbd> line \
<kbd>c</kbd> confidence</span>
</div>
"""


def word_span(word: Word) -> str:
    text = plain(word.word)
    bare = text.strip()
    if not bare:
        return text
    before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    marks = f'data-s="{time(word.start)}" data-e="{time(word.end)}"'
    if word.language:
        marks += f' lang="{plain(word.language)}"'
    title = "" if not math.isfinite(word.probability) else f' title="{word.probability:.0%}"'
    level = " c0" if word.probability < VERY_LOW_CONFIDENCE else " c1"
    confidence = level if has_low_confidence(word.probability) else ""
    return f'{before}<span class="w{confidence}" {marks}{title}>{bare}</span>{after}'


def plain(text: str) -> str:
    return escape("".join(" " if c.isspace() else c for c in text if c.isspace() or is_text(c)))


def time(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


LARGEST_EMBEDDED_BYTES = 200_000_000
"""Browsers fail on longer `data:` addresses."""


def audio_link(recording: Path, folder: Path) -> str:
    """Build the relative address of a recording from a page in `folder`."""
    here, there = os.path.realpath(folder), os.path.realpath(recording)
    try:
        relative = os.path.relpath(there, here)
    except ValueError:  # another drive
        return Path(there).as_uri()
    return quote(os.fsencode(PurePath(relative).as_posix()))


def embedded_audio(recording: Path) -> str:
    """Encode a recording as a `data:` address. Raises: OptionError if it cannot be read or is too long."""
    try:
        size = recording.stat().st_size
        if size > LARGEST_EMBEDDED_BYTES:
            limit = LARGEST_EMBEDDED_BYTES // 1_000_000
            raise OptionError(
                f"input '{recording}': expected at most {limit} MB to put into a page, "
                f"got {size / 1e6:.0f} MB"
            )
        data = recording.read_bytes()
    except OSError as error:
        raise OptionError(f"input '{recording}': cannot be put into a page ({cause_of(error)})") from None
    kind = mimetypes.guess_type(recording.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
