"""Writer of documents for word processors (Office Open XML), with styles that people can change.

The same transcript gives the same bytes: dates are removed.
"""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

from sottovoce.formats.base import TranscriptInfo
from sottovoce.formats.paragraphs import (
    Paragraph,
    clock,
    facts_of,
    languages_of,
    name_of,
    paragraphs,
    title_of,
)
from sottovoce.formats.subtitles import direction
from sottovoce.types import Segment

if TYPE_CHECKING:
    from docx.document import Document
    from docx.text.paragraph import Paragraph as Block
    from docx.text.run import Run

GREY = "6B7280"
FIRST_DAY = (1980, 1, 1, 0, 0, 0)
"""The earliest that an archive can tell."""
EAST_ASIAN = ("zh", "yue", "ja", "ko")


class DocxWriter:
    """A title, what is known of the recording, and its paragraphs under their speaker and time.

    The parts of a document are one archive, so all segments are held.
    """

    extension = "docx"

    def __init__(self) -> None:
        self._segments: list[Segment] = []

    def begin(self, info: TranscriptInfo) -> bytes:
        self._segments = []
        return b""

    def segment(self, segment: Segment) -> bytes:
        self._segments.append(segment)
        return b""

    def end(self, info: TranscriptInfo) -> bytes:
        found = list(paragraphs(self._segments))
        self._segments = []
        languages = languages_of(found)
        document = _empty_document(title_of(info))
        document.add_paragraph(" · ".join(facts_of(info, languages)), style="Facts")
        for paragraph in found:
            _add(document, paragraph, names_language=len(languages) > 1)
        data = io.BytesIO()
        document.save(data)
        return without_dates(data.getvalue())


def _empty_document(title: str) -> Document:
    """Create a document with its styles, a title, page numbers, and no author."""
    import docx
    from docx.shared import Mm

    document = docx.Document()
    properties = document.core_properties
    properties.title, properties.author, properties.comments, properties.revision = title, "", "", 1
    for name in ("created", "modified"):
        for found in properties._element.findall(f"{{http://purl.org/dc/terms/}}{name}"):
            properties._element.remove(found)
    page = document.sections[0]
    page.page_width, page.page_height = Mm(210), Mm(297)
    page.left_margin = page.right_margin = page.top_margin = page.bottom_margin = Mm(25)
    _add_styles(document)
    _add_page_number(document)
    heading = document.add_paragraph(title, style="Title")
    _set_direction(heading, title)
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


def _add(document: Document, paragraph: Paragraph, *, names_language: bool) -> None:
    """Add the line of the speaker, the text, and its translation."""
    from docx.shared import RGBColor

    line = document.add_paragraph(style="Speaker")
    if paragraph.speaker:
        name = line.add_run(paragraph.speaker)
        name.font.bold = name.font.cs_bold = True  # of other scripts too
        name.font.rtl = direction(paragraph.speaker) == "rtl" or None
    language = name_of(paragraph.language) if names_language and paragraph.language else ""
    facts = [fact for fact in (clock(paragraph.start), language) if fact]
    facts_run = line.add_run(("  " if paragraph.speaker else "") + " · ".join(facts))
    facts_run.font.color.rgb = RGBColor.from_string(GREY)
    _set_size(facts_run, 9)
    facts_run.font.rtl = False if direction(paragraph.text) == "rtl" else None
    _set_direction(line, paragraph.text, runs=False)
    text_block = document.add_paragraph(paragraph.text)
    _set_direction(text_block, paragraph.text)
    for run in text_block.runs:
        _set_language(run, paragraph.language)
    if paragraph.translation:
        below = document.add_paragraph(paragraph.translation, style="Translation")
        _set_direction(below, paragraph.translation)


def _set_size(run: Run, points: int) -> None:
    """Set the size of letters, and of those of complex scripts."""
    from docx.oxml import OxmlElement
    from docx.oxml.ns import qn
    from docx.shared import Pt

    run.font.size = Pt(points)
    other = OxmlElement("w:szCs")
    other.set(qn("w:val"), str(2 * points))
    run._r.get_or_add_rPr().find(qn("w:sz")).addnext(other)


def _set_direction(block: Block, text: str, *, runs: bool = True) -> None:
    """Mark text that runs from right to left. runs: the characters too, not the paragraph alone."""
    from docx.oxml import OxmlElement

    if direction(text) == "ltr":
        return
    block._p.get_or_add_pPr().append(OxmlElement("w:bidi"))
    for run in block.runs if runs else []:
        run.font.rtl = True


def _set_language(run: Run, language: str) -> None:
    """Set the language in which a word processor checks the spelling."""
    from docx.oxml import OxmlElement
    from docx.oxml.ns import qn

    if not language:
        return
    mark = OxmlElement("w:lang")
    kind = "w:eastAsia" if language in EAST_ASIAN else "w:bidi" if direction(run.text) == "rtl" else "w:val"
    mark.set(qn(kind), language)
    run._r.get_or_add_rPr().append(mark)


def _add_page_number(document: Document) -> None:
    from docx.enum.text import WD_ALIGN_PARAGRAPH
    from docx.oxml import OxmlElement
    from docx.oxml.ns import qn

    line = document.sections[0].footer.paragraphs[0]
    line.alignment = WD_ALIGN_PARAGRAPH.CENTER
    number = OxmlElement("w:fldSimple")
    number.set(qn("w:instr"), "PAGE")
    line._p.append(number)


def without_dates(archive: bytes) -> bytes:
    """Write the same archive with a fixed date in all entries."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as source, zipfile.ZipFile(written, "w") as target:
        for entry in source.infolist():
            plain = zipfile.ZipInfo(entry.filename, FIRST_DAY)
            plain.compress_type, plain.create_system = zipfile.ZIP_DEFLATED, 3
            target.writestr(plain, source.read(entry))
    return written.getvalue()
