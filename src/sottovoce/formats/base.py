"""The seam of the writers: a document is begun, given segments one by one, and ended.

Segments come from a generator and a recording may be hours long, so a writer turns each segment into
text at once and keeps only what its format forces it to. Another format is one file with a class of
this shape, and one line in `registry.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from sottovoce.errors import OptionError
from sottovoce.types import Segment, Transcript, Turn


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """How subtitles are broken into lines, and counted. Lines need word times. Meaning as in openai-whisper.

    max_line_width: characters a line. max_line_count: lines a subtitle, together with max_line_width;
    subtitles may then run across segments. max_words_per_line: words a subtitle, where subtitles end
    with their segments. highlight_words: one cue a word, underlined as it is spoken.
    reading_speed: characters a second that people can read. Subtitles are then laid out for them (`layout`),
    in at most 2 lines of 42 where nothing else is said.
    offset_n: added to the numbers of srt, whose first is 1 without it; whisper.cpp's name.

    Raises: OptionError for values out of range or that exclude each other.
    """

    max_line_width: int | None = None
    max_line_count: int | None = None
    max_words_per_line: int | None = None
    highlight_words: bool = False
    reading_speed: float | None = None
    offset_n: int = 0

    def __post_init__(self) -> None:
        for name, value in self._limits.items():
            if value is not None and value < 1:
                raise OptionError(f"{name}: expected at least 1, got {value}")
        if self.offset_n < 0:
            raise OptionError(f"offset_n: expected at least 0, got {self.offset_n}")
        self._check_reading()
        if self.max_line_count is not None and self.max_line_width is None and self.reading_speed is None:
            raise OptionError(f"max_line_count {self.max_line_count}: needs max_line_width too")
        if self.max_line_count is not None and self.max_words_per_line is not None:
            raise OptionError("max_words_per_line: cannot be combined with max_line_count")

    def _check_reading(self) -> None:
        if self.reading_speed is None:
            return
        if not 1 <= self.reading_speed < math.inf:
            raise OptionError(f"reading_speed: expected at least 1 a second, got {self.reading_speed}")
        if self.highlight_words or self.max_words_per_line is not None:
            raise OptionError("reading_speed: cannot be combined with highlight_words or max_words_per_line")

    @property
    def need_words(self) -> bool:
        """Whether an option is set that places single words."""
        if self.highlight_words or self.reading_speed is not None:
            return True
        return any(value is not None for value in self._limits.values())

    @property
    def _limits(self) -> dict[str, int | None]:
        return {
            "max_line_width": self.max_line_width,
            "max_line_count": self.max_line_count,
            "max_words_per_line": self.max_words_per_line,
        }


@dataclass(frozen=True, slots=True)
class TranscriptInfo:
    """What is known of a recording beside its segments; duration in seconds.

    At the beginning language and duration may still be unknown (None); at the end they are known.
    source: the recording's name, for people. audio: its address for a page that plays it, relative to the
    page or a `data:` address. spectrogram: the address of its picture, for a page. translation: code of
    the language that segments are translated into, None where they are not. turns: who speaks when, at the
    end, where that was asked for.
    """

    model: str
    language: str | None = None
    duration: float | None = None
    source: str | None = None
    audio: str | None = None
    spectrogram: str | None = None
    translation: str | None = None
    turns: tuple[Turn, ...] = ()


class Writer(Protocol):
    """One document in one format. The pieces of text, joined, are the document."""

    @property
    def extension(self) -> str:
        """Of the file, without the dot."""
        ...

    def begin(self, info: TranscriptInfo) -> str:
        """The head of a document; forgets an earlier one."""
        ...

    def segment(self, segment: Segment) -> str:
        """What this segment adds; may be empty while the writer waits for more.

        Raises OptionError when the options need word times and the segment has none.
        """
        ...

    def end(self, info: TranscriptInfo) -> str:
        """What is still held, and the foot of the document."""
        ...


def write_transcript(writer: Writer, transcript: Transcript) -> str:
    """The whole document of a transcript."""
    info = TranscriptInfo(transcript.model, transcript.language, transcript.duration, turns=transcript.turns)
    pieces = [writer.begin(info), *map(writer.segment, transcript.segments), writer.end(info)]
    return "".join(pieces)
