"""Documents for readers: Markdown (https://spec.commonmark.org), Word (docx) in paragraphs, and HTML pages.

A docx has editable styles and no dates, so the same transcript gives the same bytes.

The page has a player, the spectrogram, lanes of languages and speakers, and clickable text. The text needs no
scripts; `page.js` draws the lanes and follows the player. The content security policy lets the page load the
recording alone.
"""

from __future__ import annotations

import base64
import io
import math
import mimetypes
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path, PurePath
from typing import TYPE_CHECKING
from urllib.parse import quote

from sottovoce.errors import OptionError, cause_of
from sottovoce.formats.document import VERY_LOW_CONFIDENCE, has_low_confidence
from sottovoce.formats.output import TranscriptInfo, Writer
from sottovoce.formats.plain import WholeWriter
from sottovoce.formats.subtitles import direction, ends_with
from sottovoce.text.languages import SENTENCE_ENDS, UNSPACED, language_name
from sottovoce.types import Segment, Word

if TYPE_CHECKING:
    from docx.document import Document
    from docx.oxml.xmlchemy import BaseOxmlElement
    from docx.text.paragraph import Paragraph as Block
    from docx.text.run import Run

LONG = 600
"""Characters after which a paragraph ends at the next sentence, without a pause."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    start: float
    end: float
    text: str
    language: str
    speaker: str | None = None
    translation: str | None = None


def paragraphs(segments: Iterable[Segment]) -> Iterator[Paragraph]:
    current: Paragraph | None = None
    for segment in segments:
        speaker, translation = (flat(text or "") or None for text in (segment.speaker, segment.translation))
        following = Paragraph(
            segment.start, segment.end, flat(segment.text), segment.language, speaker, translation
        )
        if not following.text:
            continue
        if current is None:
            current = following
        elif _ends_before(current, following):
            yield current
            current = following
        else:
            has_space = following.language not in UNSPACED or segment.text[:1].isspace()
            translations = filter(None, (current.translation, following.translation))
            current = replace(
                current,
                end=max(current.end, following.end),
                text=current.text + (" " if has_space else "") + following.text,
                translation=" ".join(translations) or None,
            )
    if current is not None:
        yield current


def _ends_before(paragraph: Paragraph, following: Paragraph) -> bool:
    if (paragraph.speaker, paragraph.language) != (following.speaker, following.language):
        return True
    is_long = len(paragraph.text) >= LONG and ends_with(paragraph.text.split(" ")[-1], SENTENCE_ENDS)
    return is_long or following.start - paragraph.end >= 2.0  # seconds of a pause


def _language_name(language: str) -> str:
    try:
        return language_name(language).title()
    except (KeyError, ValueError):
        return language


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def flat(text: str) -> str:
    allowed = (c if is_text(c) and c not in "\ufffe\uffff" else " " for c in text)
    return " ".join("".join(allowed).split())


def is_text(character: str) -> bool:
    return not (character < " " or "\x7f" <= character <= "\x9f" or "\ud800" <= character <= "\udfff")


class ParagraphWriter(WholeWriter):
    """The base of documents for people: a title, facts, and paragraphs."""

    def contents(self, info: TranscriptInfo) -> tuple[str, str, list[tuple[Paragraph, str]]]:
        """Return the title, the facts, and paragraphs with their start, and language if there are several."""
        blocks = list(paragraphs(self._segments))
        languages = list(dict.fromkeys(block.language for block in blocks if block.language))
        name = flat(info.source or "")
        title = PurePath(name.removesuffix(".full.json")).stem if name else "Transcript"
        length = "" if info.duration is None else clock(info.duration)
        facts = (length, ", ".join(map(_language_name, languages)), flat(info.model))
        shown = _language_name if len(languages) > 1 else lambda _: ""
        placed = [(block, _joined(clock(block.start), shown(block.language))) for block in blocks]
        return title, _joined(*facts), placed


def _joined(*facts: str) -> str:
    return " · ".join(filter(None, facts))


_ANYWHERE = re.compile(r"[\\`*_\[\]<~]|&(?=[#\w])")
_AT_START = re.compile(r"^(?:[#>+=-]|\d{1,9}(?=[.)]))")


class MarkdownWriter(ParagraphWriter):
    extension = "md"

    def end(self, info: TranscriptInfo) -> str:
        title, facts, placed = self.contents(info)
        parts = [f"# {escaped(title)}", escaped(facts)]
        for paragraph, place in placed:
            speaker = f"**{escaped(paragraph.speaker)}**" if paragraph.speaker else ""
            parts += [_joined(speaker, escaped(place)), escaped(paragraph.text)]
            parts += [f"> {escaped(paragraph.translation)}"] if paragraph.translation else []
        return "\n\n".join(part for part in parts if part) + "\n"


def escaped(text: str) -> str:
    plain = _ANYWHERE.sub(r"\\\g<0>", flat(text))
    return _AT_START.sub(lambda sign: sign[0] + "\\" if sign[0].isdigit() else "\\" + sign[0], plain)


GREY = "6B7280"
EAST_ASIAN = ("zh", "yue", "ja", "ko")


class DocxWriter(ParagraphWriter):
    extension = "docx"

    def end(self, info: TranscriptInfo) -> bytes:
        title, facts, placed = self.contents(info)
        document = _empty_document(title)
        document.add_paragraph(facts, style="Facts")
        for paragraph, place in placed:
            _add(document, paragraph, place)
        data = io.BytesIO()
        document.save(data)
        return without_dates(data.getvalue())


def _empty_document(title: str) -> Document:
    import docx
    from docx.enum.text import WD_ALIGN_PARAGRAPH
    from docx.shared import Mm

    document = docx.Document()
    properties = document.core_properties
    properties.title, properties.author, properties.comments, properties.revision = title, "", "", 1
    for name in ("created", "modified"):
        for date in properties._element.findall(f"{{http://purl.org/dc/terms/}}{name}"):
            properties._element.remove(date)
    page = document.sections[0]
    page.page_width, page.page_height = Mm(210), Mm(297)
    page.left_margin = page.right_margin = page.top_margin = page.bottom_margin = Mm(25)
    _add_styles(document)
    footer = document.sections[0].footer.paragraphs[0]
    footer.alignment = WD_ALIGN_PARAGRAPH.CENTER
    footer._p.append(_element("fldSimple", instr="PAGE"))
    _set_direction(document.add_paragraph(title, style="Title"), title)
    return document


def _add_styles(document: Document) -> None:
    from docx.enum.style import WD_STYLE_TYPE
    from docx.shared import Pt, RGBColor

    styles = document.styles
    normal = styles["Normal"]
    normal.font.name, normal.font.size, normal.paragraph_format.line_spacing = "Calibri", Pt(11), 1.15
    normal.paragraph_format.space_after = Pt(6)
    facts = styles.add_style("Facts", WD_STYLE_TYPE.PARAGRAPH)
    facts.base_style, facts.next_paragraph_style = normal, normal
    facts.font.size, facts.font.color.rgb = Pt(10), RGBColor.from_string(GREY)
    speaker = styles.add_style("Speaker", WD_STYLE_TYPE.PARAGRAPH)
    speaker.base_style, speaker.next_paragraph_style = normal, normal
    speaker.paragraph_format.keep_with_next = True
    speaker.paragraph_format.space_before, speaker.paragraph_format.space_after = Pt(12), Pt(2)
    translation = styles.add_style("Translation", WD_STYLE_TYPE.PARAGRAPH)
    translation.base_style, translation.font.italic = normal, True
    translation.font.color.rgb = RGBColor.from_string(GREY)
    translation.paragraph_format.left_indent = Pt(18)


def _add(document: Document, paragraph: Paragraph, place: str) -> None:
    from docx.oxml.ns import qn
    from docx.shared import Pt, RGBColor

    line = document.add_paragraph(style="Speaker")
    if paragraph.speaker:
        name = line.add_run(paragraph.speaker)
        name.font.bold = name.font.cs_bold = True  # for other scripts too
        name.font.rtl = direction(paragraph.speaker) == "rtl" or None
    facts_run = line.add_run(("  " if paragraph.speaker else "") + place)
    facts_run.font.color.rgb, facts_run.font.size = RGBColor.from_string(GREY), Pt(9)
    facts_run._r.get_or_add_rPr().find(qn("w:sz")).addnext(_element("szCs", val="18"))
    facts_run.font.rtl = False if direction(paragraph.text) == "rtl" else None
    _set_direction(line, paragraph.text, runs=False)
    text_block = document.add_paragraph(paragraph.text)
    _set_direction(text_block, paragraph.text)
    for run in text_block.runs:
        _set_language(run, paragraph.language)
    if paragraph.translation:
        below = document.add_paragraph(paragraph.translation, style="Translation")
        _set_direction(below, paragraph.translation)


def _element(name: str, **attributes: str) -> BaseOxmlElement:
    from docx.oxml import OxmlElement
    from docx.oxml.ns import qn

    element = OxmlElement(f"w:{name}")
    for key, value in attributes.items():
        element.set(qn(f"w:{key}"), value)
    return element


def _set_direction(block: Block, text: str, *, runs: bool = True) -> None:
    if direction(text) == "ltr":
        return
    block._p.get_or_add_pPr().append(_element("bidi"))
    for run in block.runs if runs else []:
        run.font.rtl = True


def _set_language(run: Run, language: str) -> None:
    if language:
        kind = (
            "eastAsia"
            if language in ("zh", "yue", "ja", "ko")
            else "bidi"
            if direction(run.text) == "rtl"
            else "val"
        )
        run._r.get_or_add_rPr().append(_element("lang", **{kind: language}))


def without_dates(archive: bytes) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as source, zipfile.ZipFile(written, "w") as target:
        for entry in source.infolist():
            plain = zipfile.ZipInfo(entry.filename)  # of the first day of 1980
            plain.compress_type, plain.create_system = zipfile.ZIP_DEFLATED, 3
            target.writestr(plain, source.read(entry))
    return written.getvalue()


POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "media-src 'self' file: data: blob: http: https:; img-src data:"
)


class HtmlWriter(Writer):
    extension = "html"

    def __init__(self) -> None:
        self._languages: dict[str, None] = {}

    def begin(self, info: TranscriptInfo) -> str:
        self._languages = {}
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
        self._languages[segment.language] = None
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
        languages = ", ".join(_language_name(language) for language in self._languages if language)
        facts = [info.model, languages, None if info.duration is None else clock(info.duration)]
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
