"""Make subtitle cues of segments: lines broken between words, one cue a segment without word times.

The rules are openai-whisper's (`whisper/utils.py`, `SubtitlesWriter`), so that the same options give the same
cues; here they run over a stream of segments. Widths count code points.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from sottovoce.errors import OptionError
from sottovoce.options.writer import WriterOptions
from sottovoce.types import Segment, Word

RIGHT_TO_LEFT_MARK = "\u200f"

LONG_PAUSE_S = 3.0
"""A pause between word beginnings that ends a subtitle which runs across segments."""
_NO_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class CueWord:
    """A word as it stands in its subtitle: with its space, with a line break before it, or bare."""

    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Cue:
    """A subtitle: seconds, and text in words; without word times the whole text is one word."""

    start: float
    end: float
    words: tuple[CueWord, ...]
    speaker: str | None = None

    @property
    def text(self) -> str:
        return "".join(word.text for word in self.words)

    def highlighted(self) -> Iterator[Cue]:
        """Yield one cue a word, that word underlined with <u>, and plain cues for the pauses between."""
        last = self.start
        for i, word in enumerate(self.words):
            if milliseconds(last) != milliseconds(word.start):
                yield replace(self, start=last, end=word.start)
            bare = word.text.lstrip()
            space = word.text[: len(word.text) - len(bare)]
            marked = replace(word, text=f"{space}<u>{bare}</u>")
            words = (*self.words[:i], marked, *self.words[i + 1 :])
            yield replace(self, start=word.start, end=word.end, words=words)
            last = word.end


@dataclass(slots=True)
class CueMaker:
    """Makes cues of segments as they come; holds the subtitle that is still open.

    escape: what the format does to text before it goes into a cue; widths are counted before it. Cues without
    text are left out.
    """

    options: WriterOptions = field(default_factory=WriterOptions)
    escape: Callable[[str], str] = str
    _open: list[CueWord] = field(default_factory=list, init=False)
    _line_length: int = field(default=0, init=False)
    _n_lines: int = field(default=1, init=False)
    _last_start: float | None = field(default=None, init=False)
    _speaker: str | None = field(default=None, init=False)

    def segment(self, segment: Segment) -> list[Cue]:
        """Add a segment; return the cues that it completes.

        Raises: OptionError when the options place words and the segment has no word times.
        """
        if segment.words is None and self.options.need_words:
            raise OptionError("line breaking and highlighting need word times: ask for word timestamps")
        before = self.flush() if segment.speaker != self._speaker else []
        self._speaker = segment.speaker
        return before + self._cues(segment)

    def _cues(self, segment: Segment) -> list[Cue]:
        if segment.translation is not None:
            return [*self.flush(), *self._bilingual(segment)]
        if segment.words is None:
            return [*self.flush(), *self._whole(segment)]
        return self._finish(cue for chunk in self._chunks(segment.words) for cue in self._add(chunk))

    def _whole(self, segment: Segment) -> list[Cue]:
        """Make one cue of a segment without word times."""
        text = self.escape(one_line(segment.text).strip())
        words = (CueWord(text, segment.start, segment.end),)
        return [Cue(segment.start, segment.end, words, segment.speaker)] if text else []

    def _bilingual(self, segment: Segment) -> list[Cue]:
        """Make one cue of a segment and its translation, neither of them laid out (see `bilingual`)."""
        cues = self._finish([*self._add(segment.words), *self._close()]) if segment.words else []
        text = self.escape(one_line(segment.translation or "").strip())
        below = CueWord("\n" + text, segment.end, segment.end)
        return [
            replace(cue, words=(*cue.words, below)) if text else cue for cue in cues or self._whole(segment)
        ]

    def flush(self) -> list[Cue]:
        """Complete the open cue."""
        return self._finish(self._close())

    @property
    def _keeps_segments(self) -> bool:
        return self.options.max_line_count is None

    def _chunks(self, words: tuple[Word, ...]) -> Iterator[tuple[Word, ...]]:
        size = self.options.max_words_per_line or _NO_LIMIT
        for i in range(0, len(words), size):
            yield words[i : i + size]

    def _add(self, words: tuple[Word, ...]) -> Iterator[Cue]:
        for i, word in enumerate(words):
            breaks_segment = i == 0 and bool(self._open) and self._keeps_segments
            yield from self._place(word, breaks_segment)

    def _place(self, word: Word, breaks_segment: bool) -> Iterator[Cue]:
        width = self.options.max_line_width or _NO_LIMIT
        pause = word.start - (word.start if self._last_start is None else self._last_start)
        long_pause = not self._keeps_segments and pause > LONG_PAUSE_S
        text = one_line(word.word)
        self._last_start = word.start
        has_room = self._line_length + len(text) <= width
        if self._line_length > 0 and has_room and not long_pause and not breaks_segment:
            self._line_length += len(text)
        else:
            text = text.strip()
            if breaks_segment or self._is_full(long_pause):
                yield from self._close()
            elif self._line_length > 0:
                self._n_lines += 1
                text = "\n" + text
            self._line_length = len(text.strip())
        self._open.append(CueWord(self.escape(text), word.start, word.end))

    def _is_full(self, long_pause: bool) -> bool:
        limit = self.options.max_line_count
        return bool(self._open) and limit is not None and (long_pause or self._n_lines >= limit)

    def _close(self) -> Iterator[Cue]:
        cue_words, self._open, self._n_lines, self._line_length = tuple(self._open), [], 1, 0
        if any(word.text.strip() for word in cue_words):
            yield Cue(cue_words[0].start, cue_words[-1].end, cue_words, self._speaker)

    def _finish(self, cues: Iterable[Cue]) -> list[Cue]:
        if not self.options.highlight_words:
            return list(cues)
        return [part for cue in cues for part in cue.highlighted()]


def milliseconds(seconds: float) -> int:
    """Round seconds to milliseconds."""
    return round(seconds * 1000)


def timestamp(seconds: float, *, marker: str, hours: bool) -> str:
    """Format `[HH:]MM:SS` with milliseconds after the marker; hours always, or only from one hour on."""
    minutes, rest = divmod(milliseconds(seconds), 60_000)
    n_hours, minutes = divmod(minutes, 60)
    head = f"{n_hours:02d}:" if hours or n_hours else ""
    return f"{head}{minutes:02d}:{rest // 1000:02d}{marker}{rest % 1000:03d}"


def behind_speaker(speaker: str | None, text: str) -> str:
    """Put the speaker before the text: "A: Good morning." The name is not counted in the width of a line.

    A mark before a name keeps the direction of text that runs from right to left, whose full stop would stand
    on the wrong side otherwise.
    """
    if not speaker:
        return text
    mark = RIGHT_TO_LEFT_MARK if direction(text) == "rtl" else ""
    return f"{mark}{one_line(speaker)}: {text}"


def direction(text: str) -> str:
    """Return which way the text runs, "ltr" or "rtl", by its first letter."""
    for kind in map(unicodedata.bidirectional, text):
        if kind in ("L", "R", "AL"):
            return "ltr" if kind == "L" else "rtl"
    return "ltr"


def one_line(text: str) -> str:
    """Remove line breaks, which would end a cue."""
    return " ".join(text.splitlines())
