"""SubRip subtitles: numbered cues, hours always, comma before the milliseconds."""

from __future__ import annotations

from sottovoce.formats.base import TranscriptInfo, WriterOptions
from sottovoce.formats.bilingual import cue_maker
from sottovoce.formats.subtitles import Cue, behind_speaker, timestamp
from sottovoce.types import Segment


class SrtWriter:
    """Source: openai-whisper's `WriteSRT`; the format has no specification."""

    extension = "srt"

    def __init__(self, options: WriterOptions | None = None) -> None:
        self._options = options or WriterOptions()
        self._cues = cue_maker(self._options)
        self._number = self._options.offset_n

    def begin(self, info: TranscriptInfo) -> str:
        self._cues, self._number = cue_maker(self._options), self._options.offset_n
        return ""

    def segment(self, segment: Segment) -> str:
        return "".join([self._render(cue) for cue in self._cues.segment(segment)])

    def end(self, info: TranscriptInfo) -> str:
        return "".join([self._render(cue) for cue in self._cues.flush()])

    def _render(self, cue: Cue) -> str:
        self._number += 1
        start, end = (timestamp(t, marker=",", hours=True) for t in (cue.start, cue.end))
        return f"{self._number}\n{start} --> {end}\n{behind_speaker(cue.speaker, cue.text)}\n\n"
