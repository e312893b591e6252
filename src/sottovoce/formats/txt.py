"""Plain text: one segment a line, behind its speaker where known, its translation in the next."""

from __future__ import annotations

from sottovoce.formats.base import TranscriptInfo
from sottovoce.formats.subtitles import behind_speaker
from sottovoce.types import Segment


class TxtWriter:
    """Source: openai-whisper's `WriteTXT`."""

    extension = "txt"

    def begin(self, info: TranscriptInfo) -> str:
        return ""

    def segment(self, segment: Segment) -> str:
        translation = "" if segment.translation is None else segment.translation.strip() + "\n"
        return behind_speaker(segment.speaker, segment.text.strip()) + "\n" + translation

    def end(self, info: TranscriptInfo) -> str:
        return ""
