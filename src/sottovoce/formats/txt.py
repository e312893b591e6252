"""Plain text: one segment a line."""

from __future__ import annotations

from sottovoce.formats.base import TranscriptInfo
from sottovoce.types import Segment


class TxtWriter:
    """Source: openai-whisper's `WriteTXT`."""

    extension = "txt"

    def begin(self, info: TranscriptInfo) -> str:
        return ""

    def segment(self, segment: Segment) -> str:
        return segment.text.strip() + "\n"

    def end(self, info: TranscriptInfo) -> str:
        return ""
