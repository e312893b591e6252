"""RTTM: who speaks when, one turn a line, for programs that score or join diarizations."""

from __future__ import annotations

from sottovoce.formats.base import TranscriptInfo
from sottovoce.types import Segment, Turn


class RttmWriter:
    """Turns as they were found, overlaps included; where only segments have speakers, those.

    Source: NIST, The Rich Transcription 2009 evaluation plan, appendix A. Fields are ended by spaces, so
    names have none.
    """

    extension = "rttm"

    def __init__(self) -> None:
        self._segments: list[Turn] = []

    def begin(self, info: TranscriptInfo) -> str:
        self._segments = []
        return ""

    def segment(self, segment: Segment) -> str:
        if segment.speaker:
            self._segments.append(Turn(segment.start, segment.end, segment.speaker))
        return ""

    def end(self, info: TranscriptInfo) -> str:
        turns = info.turns or self._segments
        recording = field((info.source or "recording").rpartition(".")[0] or info.source or "recording")
        return "".join(
            f"SPEAKER {recording} 1 {turn.start:.3f} {max(0.0, turn.end - turn.start):.3f} <NA> <NA> "
            f"{field(turn.speaker)} <NA> <NA>\n"
            for turn in turns
        )


def field(text: str) -> str:
    """A name in one piece."""
    return "_".join(text.split()) or "_"
