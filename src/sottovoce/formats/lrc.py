"""LRC lyrics: the time of the first word before each line, in hundredths of a second."""

from __future__ import annotations

from sottovoce.formats.base import TranscriptInfo
from sottovoce.formats.subtitles import behind_speaker
from sottovoce.types import Segment


class LrcWriter:
    """Simple LRC; minutes run past 60. An empty line marks the end of the last segment.

    Source: the format as whisper.cpp writes it (`examples/cli`, `output_lrc`).
    """

    extension = "lrc"

    def __init__(self) -> None:
        self._last_end = 0.0

    def begin(self, info: TranscriptInfo) -> str:
        self._last_end = 0.0
        return "[by:sottovoce]\n"

    def segment(self, segment: Segment) -> str:
        self._last_end = max(self._last_end, segment.end)
        start = segment.words[0].start if segment.words else segment.start
        text = behind_speaker(segment.speaker, segment.text.strip())
        lines = [text] if segment.translation is None else [text, segment.translation]
        return "".join(f"[{_time(start)}]{' '.join(line.split())}\n" for line in lines)

    def end(self, info: TranscriptInfo) -> str:
        return f"[{_time(self._last_end)}]\n" if self._last_end else ""


def _time(seconds: float) -> str:
    minutes, hundredths = divmod(round(seconds * 100), 6000)
    return f"{minutes:02d}:{hundredths // 100:02d}.{hundredths % 100:02d}"
