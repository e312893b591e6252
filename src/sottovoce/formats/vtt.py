"""WebVTT subtitles: hours only where needed, and text escaped as the specification asks."""

from __future__ import annotations

from sottovoce.formats.base import TranscriptInfo, WriterOptions
from sottovoce.formats.bilingual import cue_maker
from sottovoce.formats.subtitles import Cue, one_line, timestamp
from sottovoce.types import Segment


class VttWriter:
    """Source: https://www.w3.org/TR/webvtt1/, laid out as openai-whisper's `WriteVTT` does.

    That one writes `&` and `<` bare, which players take for entities and tags and swallow; here they
    are escaped (section 3.1 of the specification). A speaker is the voice of a cue (`<v A>`). Nothing else
    differs.
    """

    extension = "vtt"

    def __init__(self, options: WriterOptions | None = None) -> None:
        self._options = options or WriterOptions()
        self._cues = cue_maker(self._options, _escape)

    def begin(self, info: TranscriptInfo) -> str:
        self._cues = cue_maker(self._options, _escape)
        return "WEBVTT\n\n"

    def segment(self, segment: Segment) -> str:
        return "".join([self._render(cue) for cue in self._cues.segment(segment)])

    def end(self, info: TranscriptInfo) -> str:
        return "".join([self._render(cue) for cue in self._cues.flush()])

    def _render(self, cue: Cue) -> str:
        start, end = (timestamp(t, marker=".", hours=False) for t in (cue.start, cue.end))
        voice = f"<v {_escape(one_line(cue.speaker))}>" if cue.speaker else ""
        return f"{start} --> {end}\n{voice}{cue.text}\n\n"


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
