"""Writers of subtitles as text: SubRip (srt) and WebVTT."""

from __future__ import annotations

import re
from collections.abc import Callable

from sottovoce.formats.base import TranscriptInfo
from sottovoce.formats.bilingual import cue_maker
from sottovoce.formats.subtitles import Cue, behind_speaker, timestamp
from sottovoce.options.writer import WriterOptions
from sottovoce.types import Segment

_ARROW = re.compile("--+>")
"""What stands between times: players take a line that has it for the beginning of a cue."""


class _CueWriter:
    """A writer of cues. escape: what the format does to text before it goes into a cue."""

    def __init__(self, options: WriterOptions, escape: Callable[[str], str] = str) -> None:
        self._options = options
        self._escape = escape
        self._cues = cue_maker(options, escape)

    def begin(self, info: TranscriptInfo) -> str:
        self._cues = cue_maker(self._options, self._escape)
        return ""

    def segment(self, segment: Segment) -> str:
        return "".join([self._render(cue) for cue in self._cues.segment(segment)])

    def end(self, info: TranscriptInfo) -> str:
        return "".join([self._render(cue) for cue in self._cues.flush()])

    def _render(self, cue: Cue) -> str:
        raise NotImplementedError


class SrtWriter(_CueWriter):
    """SubRip: numbered cues, hours always, comma before the milliseconds.

    Source: openai-whisper's `WriteSRT`; the format has no specification.
    """

    extension = "srt"

    def __init__(self, options: WriterOptions | None = None) -> None:
        super().__init__(options or WriterOptions())
        self._number = self._options.offset_n

    def begin(self, info: TranscriptInfo) -> str:
        self._number = self._options.offset_n
        return super().begin(info)

    def _render(self, cue: Cue) -> str:
        self._number += 1
        start, end = (timestamp(t, marker=",", hours=True) for t in (cue.start, cue.end))
        text = _ARROW.sub("->", behind_speaker(cue.speaker, cue.text))
        return f"{self._number}\n{start} --> {end}\n{text}\n\n"


class VttWriter(_CueWriter):
    """WebVTT: hours only where needed, and text escaped as the specification asks.

    That of openai-whisper writes `&` and `<` bare, which players take for entities and tags and swallow, and
    shortens `-->`; here they are escaped (section 3.1 of the specification), and come back as they were. A
    speaker is the voice of a cue (`<v A>`), on one line and with single spaces, as players read it. Nothing
    else differs.

    Source: https://www.w3.org/TR/webvtt1/, laid out as openai-whisper's `WriteVTT` does.
    """

    extension = "vtt"

    def __init__(self, options: WriterOptions | None = None) -> None:
        super().__init__(options or WriterOptions(), _escape_vtt)

    def begin(self, info: TranscriptInfo) -> str:
        return super().begin(info) + "WEBVTT\n\n"

    def _render(self, cue: Cue) -> str:
        start, end = (timestamp(t, marker=".", hours=False) for t in (cue.start, cue.end))
        name = " ".join((cue.speaker or "").split())
        voice = f"<v {_escape_vtt(name)}>" if name else ""
        return f"{start} --> {end}\n{voice}{cue.text}\n\n"


def _escape_vtt(text: str) -> str:
    """Escape text that would be markup or a time; a null would be read as U+FFFD."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("\0", "\ufffd")
