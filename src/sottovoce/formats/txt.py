"""Plain text: one segment a line, its translation in the next."""

from __future__ import annotations

from sottovoce.formats.base import TranscriptInfo
from sottovoce.types import Segment


class TxtWriter:
    """Source: openai-whisper's `WriteTXT`."""

    extension = "txt"

    def begin(self, info: TranscriptInfo) -> str:
        return ""

    def segment(self, segment: Segment) -> str:
        translation = "" if segment.translation is None else segment.translation.strip() + "\n"
        return segment.text.strip() + "\n" + translation

    def end(self, info: TranscriptInfo) -> str:
        return ""
