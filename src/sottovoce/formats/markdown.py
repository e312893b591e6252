"""Writer of Markdown: paragraphs behind their speaker and time. Source: https://spec.commonmark.org."""

from __future__ import annotations

import re

from sottovoce.formats.base import TranscriptInfo
from sottovoce.formats.paragraphs import (
    Paragraph,
    clock,
    facts_of,
    flat,
    languages_of,
    name_of,
    paragraphs,
    title_of,
)
from sottovoce.types import Segment

_ANYWHERE = re.compile(r"[\\`*_\[\]<~]|&(?=[#\w])")
"""What marks emphasis, code, links, tags, and references to characters."""
_AT_START = re.compile(r"^(?:[#>+=-]|\d{1,9}(?=[.)]))")
"""What begins a heading, a quotation, a list or a rule."""


class MarkdownWriter:
    """Writes a heading, facts of the recording, and its paragraphs, a translation below each as a quotation.

    Duration and languages stand at the head, so all segments are held.
    """

    extension = "md"

    def __init__(self) -> None:
        self._segments: list[Segment] = []

    def begin(self, info: TranscriptInfo) -> str:
        self._segments = []
        return ""

    def segment(self, segment: Segment) -> str:
        self._segments.append(segment)
        return ""

    def end(self, info: TranscriptInfo) -> str:
        found = list(paragraphs(self._segments))
        self._segments = []
        languages = languages_of(found)
        facts = " · ".join(facts_of(info, languages))
        parts = [f"# {escaped(title_of(info))}", escaped(facts)]
        for paragraph in found:
            parts += [head(paragraph, names_language=len(languages) > 1), escaped(paragraph.text)]
            parts += [f"> {escaped(paragraph.translation)}"] if paragraph.translation else []
        return "\n\n".join(part for part in parts if part) + "\n"


def head(paragraph: Paragraph, *, names_language: bool) -> str:
    """Format speaker, start, and language where there are several: **Ann** · 0:05 · German."""
    first = f"**{escaped(paragraph.speaker)}** · " if paragraph.speaker else ""
    language = f" · {escaped(name_of(paragraph.language))}" if names_language and paragraph.language else ""
    return f"{first}{clock(paragraph.start)}{language}"


def escaped(text: str) -> str:
    """Escape text so that it is shown as it is, at the beginning of a line too."""
    plain = _ANYWHERE.sub(r"\\\g<0>", flat(text))
    return _AT_START.sub(lambda sign: sign[0] + "\\" if sign[0].isdigit() else "\\" + sign[0], plain)
