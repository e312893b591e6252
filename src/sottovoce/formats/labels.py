"""Audacity's labels: start and end in seconds, text, with tabs between."""

from __future__ import annotations

from sottovoce.formats.base import TranscriptInfo
from sottovoce.types import Segment


class LabelsWriter:
    """One label a segment, with its speaker before it where known; import them with File, Import, Labels.

    Source: Audacity's manual, "Importing and Exporting Labels".
    """

    extension = "labels.txt"

    def begin(self, info: TranscriptInfo) -> str:
        return ""

    def segment(self, segment: Segment) -> str:
        text = f"{segment.speaker}: {segment.text.strip()}" if segment.speaker else segment.text
        if segment.translation:
            text += f" | {segment.translation}"
        # A line that begins with a backslash carries frequencies; a label's line begins with a number.
        return f"{segment.start:.6f}\t{segment.end:.6f}\t{' '.join(text.split())}\n"

    def end(self, info: TranscriptInfo) -> str:
        return ""
