"""Writer of Advanced SubStation Alpha subtitles; with word times as karaoke, each word lit as it is
spoken.
"""

from __future__ import annotations

from dataclasses import replace

from sottovoce.formats.base import TranscriptInfo
from sottovoce.formats.bilingual import cue_maker
from sottovoce.formats.subtitles import Cue, CueWord, one_line
from sottovoce.options.writer import WriterOptions
from sottovoce.types import Segment

STYLE = "Default,Arial,60,&H0000D7FF,&H00FFFFFF,&H00101010,&H80000000,0,0,0,0,100,100,0,0,1,3,1,2,80,80,60,-1"
"""White, gold (&HAABBGGRR) once spoken, at the bottom; encoding -1 finds the direction of the text."""
CENTRED = STYLE.replace(",60,&H0000D7FF", ",84,&H0000D7FF").replace(",2,80,80,60,", ",5,80,80,60,")
"""Larger, and in the middle: for a picture with nothing else in it."""
HEAD = """\
[Script Info]
ScriptType: v4.00+
PlayResX: 1920
PlayResY: 1080
WrapStyle: 0
ScaledBorderAndShadow: yes

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, Italic, \
Underline, StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, Alignment, MarginL, \
MarginR, MarginV, Encoding
Style: {style}
Style: {plain}

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""
JOINER = "\u2060"


class AssWriter:
    """Writes ASS events; times are hundredths of a second.

    Subtitles without word times are plain. A speaker is the name of an event, and stands before its text.
    Braces begin commands, and no player knows the same way to write them: they become full-width ones; a
    backslash gets an invisible joiner behind it.

    Source: the format as Aegisub writes it and libass reads it.
    """

    extension = "ass"

    def __init__(self, options: WriterOptions | None = None, *, style: str = STYLE) -> None:
        self._options = replace(options or WriterOptions(), highlight_words=False)
        self._head = head(style)
        self._cues = cue_maker(self._options, escape)

    def begin(self, info: TranscriptInfo) -> str:
        self._cues = cue_maker(self._options, escape)
        return self._head

    def segment(self, segment: Segment) -> str:
        is_timed = bool(segment.words) if segment.translation is not None else segment.words is not None
        before = [] if is_timed else self._cues.flush()
        cues = self._cues.segment(segment)
        return "".join([*(line(cue, True) for cue in before), *(line(cue, is_timed) for cue in cues)])

    def end(self, info: TranscriptInfo) -> str:
        return "".join([line(cue, True) for cue in self._cues.flush()])


def head(style: str) -> str:
    """Build what stands before the events; plain text is not in gold."""
    plain = style.replace("Default", "Plain").replace("&H0000D7FF", "&H00FFFFFF")
    return HEAD.format(style=style, plain=plain)


def line(cue: Cue, is_timed: bool) -> str:
    """Format one event; karaoke where the words are timed."""
    text = (karaoke(cue) if is_timed else cue.text).replace("\n", "\\N")
    style = "Default" if is_timed else "Plain"
    # A comma would end the field of the name.
    name = escape(one_line(cue.speaker)).replace(",", "") if cue.speaker else ""
    text = f"{name}: {text}" if name else text
    start, end = clock(cue.start), clock(max(cue.start, cue.end))
    return f"Dialogue: 0,{start},{end},{style},{name},0,0,0,,{text}\n"


def karaoke(cue: Cue) -> str:
    """Write each word behind its duration; rounding errors do not add up, since ends are rounded."""
    parts: list[str] = []
    at = hundredths(cue.start)
    for word in cue.words:
        start, end = max(at, hundredths(word.start)), max(at, hundredths(word.end))
        parts += [f"{{\\k{start - at}}}"] if start > at else []
        parts += [karaoke_word(word, end - start)]
        at = max(start, end)
    return "".join(parts)


def karaoke_word(word: CueWord, duration: int) -> str:
    """Put the command of a word before it, after the space or line break that precedes it."""
    bare = word.text.lstrip()
    return f"{word.text[: len(word.text) - len(bare)]}{{\\k{max(0, duration)}}}{bare}"


def escape(text: str) -> str:
    """Escape text that a player would take for a command."""
    return text.replace("\\", "\\" + JOINER).replace("{", "｛").replace("}", "｝")


def hundredths(seconds: float) -> int:
    """Round seconds to hundredths."""
    return round(seconds * 100)


def clock(seconds: float) -> str:
    """Format seconds as h:mm:ss.cc."""
    minutes, rest = divmod(hundredths(seconds), 6000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest // 100:02d}.{rest % 100:02d}"
