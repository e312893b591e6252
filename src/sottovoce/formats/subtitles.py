"""Subtitle cues from segments: by openai-whisper's rules, laid out for reading, or in two languages.

`CueMaker` gives the cues of openai-whisper (`whisper/utils.py`, `SubtitlesWriter`); widths count code points.

`ReadableCues` ends cues at sentences, clauses or pauses, and balances lines; widths are terminal cells.
Source of the limits: Netflix, Timed Text Style Guide (42 characters a line, 2 lines, 5/6 to 7 seconds).

`BilingualCues` distributes a translation over the cues of its text by width.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sottovoce.errors import OptionError
from sottovoce.formats.base import TranscriptInfo, Writer
from sottovoce.options.transcribe import WriterOptions
from sottovoce.text.languages import CLAUSE_ENDS, CLOSING_MARKS, SENTENCE_ENDS
from sottovoce.text.normalize import shared_out, width
from sottovoce.types import Segment, Word

RIGHT_TO_LEFT_MARK = "\u200f"
JOINER = "\u2060"
"""Invisible (U+2060, word joiner); it parts signs that would begin a command."""

LONG_PAUSE_S = 3.0
"""Pause between word beginnings that ends a subtitle across segments."""
_NO_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class CueWord:
    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Cue:
    """A subtitle. is_timed: its words have times of their own."""

    start: float
    end: float
    words: tuple[CueWord, ...]
    speaker: str | None = None
    is_timed: bool = True

    @property
    def text(self) -> str:
        return "".join(word.text for word in self.words)

    def highlighted(self) -> Iterator[Cue]:
        """Yield one cue per word, underlined with <u>, and plain cues for the pauses between."""
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


class CueMaker:
    """Makes cues of segments as they come. escape: the format's escaping; widths are counted before it."""

    def __init__(self, options: WriterOptions | None = None, escape: Callable[[str], str] = str) -> None:
        self._options, self._escape = options or WriterOptions(), escape
        self._open: list[CueWord] = []
        self._line_length, self._n_lines = 0, 1
        self._last_start: float | None = None
        self._speaker: str | None = None

    def segment(self, segment: Segment) -> list[Cue]:
        """Add a segment; return the cues that it completes. Raises: OptionError if it needs word times."""
        if segment.words is None and self._options.need_words:
            raise OptionError("line breaking and highlighting need word times: ask for word timestamps")
        is_apart = segment.words is None or segment.speaker != self._speaker
        before = self.flush() if is_apart else []
        self._speaker = segment.speaker
        if segment.words is None:
            text = self._escape(one_line(segment.text).strip())
            words = (CueWord(text, segment.start, segment.end),)
            whole = Cue(segment.start, segment.end, words, segment.speaker, is_timed=False)
            return [*before, whole] if text else before
        added = (cue for place, word in enumerate(segment.words) for cue in self._place(place, word))
        return [*before, *self._finish(added)]

    def flush(self) -> list[Cue]:
        return self._finish(self._close())

    def _place(self, place: int, word: Word) -> Iterator[Cue]:
        options, n_open = self._options, self._line_length
        crosses_segments = options.max_line_count is not None
        begins_chunk = place % (options.max_words_per_line or _NO_LIMIT) == 0
        breaks_cue = begins_chunk and bool(self._open) and not crosses_segments
        pause = word.start - (word.start if self._last_start is None else self._last_start)
        long_pause = crosses_segments and pause > LONG_PAUSE_S
        text = one_line(word.word)
        self._last_start = word.start
        has_room = n_open + len(text) <= (options.max_line_width or _NO_LIMIT)
        if n_open > 0 and has_room and not long_pause and not breaks_cue:
            self._line_length += len(text)
        else:
            text = text.strip()
            is_full = options.max_line_count is not None and self._n_lines >= options.max_line_count
            if breaks_cue or (self._open and (long_pause or is_full)):
                yield from self._close()
            elif n_open > 0:
                self._n_lines += 1
                text = "\n" + text
            self._line_length = len(text.strip())
        self._open.append(CueWord(self._escape(text), word.start, word.end))

    def _close(self) -> Iterator[Cue]:
        words, self._open, self._n_lines, self._line_length = tuple(self._open), [], 1, 0
        if any(word.text.strip() for word in words):
            yield Cue(words[0].start, words[-1].end, words, self._speaker)

    def _finish(self, cues: Iterable[Cue]) -> list[Cue]:
        if not self._options.highlight_words:
            return list(cues)
        return [part for cue in cues for part in cue.highlighted()]


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def timestamp(seconds: float, *, marker: str, hours: bool) -> str:
    """Format `[HH:]MM:SS` with milliseconds after the marker; hours: always, else from one hour on."""
    minutes, rest = divmod(milliseconds(seconds), 60_000)
    n_hours, minutes = divmod(minutes, 60)
    head = f"{n_hours:02d}:" if hours or n_hours else ""
    return f"{head}{minutes:02d}:{rest // 1000:02d}{marker}{rest % 1000:03d}"


def behind_speaker(speaker: str | None, text: str) -> str:
    """Prefix the speaker: "A: Good morning." A mark keeps the full stop of right-to-left text in place."""
    if not speaker:
        return text
    mark = RIGHT_TO_LEFT_MARK if direction(text) == "rtl" else ""
    return f"{mark}{one_line(speaker)}: {text}"


def direction(text: str) -> str:
    for kind in map(unicodedata.bidirectional, text):
        if kind in ("L", "R", "AL"):
            return "ltr" if kind == "L" else "rtl"
    return "ltr"


def one_line(text: str) -> str:
    return " ".join(text.splitlines())


LINE_WIDTH = 42
N_LINES = 2
SHORTEST_S = 5 / 6
LONGEST_S = 7.0
RUN_PAUSE_S = 1.0
CLAUSE_PAUSE_S = 0.3
GAP_S = 0.08
LONGEST_RUN = 160
OPENING = "\"'“‘«([（「『"
ABBREVIATIONS = frozenset(
    {
        *("mr", "mrs", "ms", "dr", "prof", "st", "sr", "sra", "jr", "vs"),
        *("hr", "fr", "mme", "mlle", "bzw", "ca", "nr"),
    }
)
"""Words whose full stop rarely ends a sentence; single letters are initials."""


class ReadableCues:
    """Makes cues of segments as they come. escape: as in `CueMaker`."""

    def __init__(self, options: WriterOptions, escape: Callable[[str], str] = str) -> None:
        self._escape = escape
        self._line_width = options.max_line_width or LINE_WIDTH
        self._most_lines = options.max_line_count or N_LINES
        self._reading_speed = options.reading_speed or math.inf
        self._run: list[Word] = []
        self._held: Cue | None = None

    def segment(self, segment: Segment) -> list[Cue]:
        if segment.words is None:
            raise OptionError("reading speed needs word times: ask for word timestamps")
        own = (segment.language, segment.speaker)
        words = [
            replace(word, language=word.language or own[0], speaker=word.speaker or own[1])
            for word in segment.words
            if one_line(word.word).strip()
        ]
        return [cue for word in words for cue in self._add(word)]

    def flush(self) -> list[Cue]:
        return [*self._lay_out(len(self._run)), *self._release(None)]

    def _add(self, word: Word) -> Iterator[Cue]:
        if self._run and _begins_run(self._run[-1], word):
            yield from self._lay_out(len(self._run))
        elif len(self._run) >= LONGEST_RUN:
            ends = [n for n, one in enumerate(self._run, start=1) if ends_with(one.word, SENTENCE_ENDS)]
            yield from self._lay_out(ends[-1] if ends else len(self._run))
        self._run.append(word)

    def _lay_out(self, n_words: int) -> Iterator[Cue]:
        words, self._run = self._run[:n_words], self._run[n_words:]
        for first, last in _cheapest_pieces(n_words, lambda first: self._ends(words, first)):
            yield from self._release(self._cue(words[first:last]))

    def _ends(self, words: Sequence[Word], first: int) -> Iterator[tuple[int, float]]:
        n_lines, used = 1, 0
        for index in range(first, len(words)):
            text = one_line(words[index].word)
            size = width(text)
            if used and used + size > self._line_width:
                n_lines, used = n_lines + 1, 0
            used += size if used else width(text.strip())
            is_too_much = n_lines > self._most_lines or words[index].end - words[first].start > LONGEST_S
            if is_too_much and index > first:
                return
            yield index + 1, self._cost(words, first, index + 1)

    def _cost(self, words: Sequence[Word], first: int, last: int) -> float:
        start, end = words[first].start, words[last - 1].end
        room = (words[last].start if last < len(words) else end + RUN_PAUSE_S) - start
        n_cells = width("".join(word.word for word in words[first:last]).strip())
        too_fast = max(0.0, n_cells / max(room, 0.1) / self._reading_speed - 1)
        too_short = max(0.0, SHORTEST_S - room)
        is_orphan = last - first == 1 and len(words) > 1 and n_cells < self._line_width / 2
        inner = 0.0
        for before, word in pairwise(words[first:last]):
            pause = max(0.0, word.start - before.end - CLAUSE_PAUSE_S)
            inner += 0.3 * ends_with(before.word, SENTENCE_ENDS) + 0.8 * pause
        if last == len(words) or ends_with(words[last - 1].word, SENTENCE_ENDS):
            cut = 0.0
        elif ends_with(words[last - 1].word, CLAUSE_ENDS):
            cut = 0.4
        else:
            cut = 0.5 if words[last].start - end >= CLAUSE_PAUSE_S else 1.2
        return 1.0 + cut + 2 * min(too_fast, 2.0) + too_short + 1.5 * is_orphan + inner

    def _release(self, following: Cue | None) -> Iterator[Cue]:
        held, self._held = self._held, following
        if held is not None:
            next_start = math.inf if following is None else following.start
            seconds = min(LONGEST_S, max(SHORTEST_S, width(held.text) / self._reading_speed))
            yield replace(held, end=max(held.end, min(held.start + seconds, next_start - GAP_S)))

    def _cue(self, words: Sequence[Word]) -> Cue:
        lines = _balanced_lines([one_line(word.word) for word in words], self._line_width)
        texts = [
            ("\n" if place == 0 and number else "") + (text.strip() if place == 0 else text)
            for number, line in enumerate(lines)
            for place, text in enumerate(line)
        ]
        placed = [
            CueWord(self._escape(text), word.start, word.end) for text, word in zip(texts, words, strict=True)
        ]
        return Cue(words[0].start, max(word.end for word in words), tuple(placed), words[0].speaker)


def _begins_run(before: Word, word: Word) -> bool:
    is_other = (word.speaker, word.language) != (before.speaker, before.language)
    return is_other or word.start - before.end >= RUN_PAUSE_S


def _balanced_lines(texts: Sequence[str], line_width: int) -> list[list[str]]:
    n_texts, fewest, line = len(texts), 0, ""
    for text in texts:
        has_room = fewest > 0 and width((line + text).strip()) <= line_width
        fewest, line = (fewest, line + text) if has_room else (fewest + 1, text)
    target = max(1.0, width("".join(texts).strip()) / fewest)  # a soft hyphen alone has no width

    def ends(first: int) -> Iterator[tuple[int, float]]:
        for last in range(first + 1, n_texts + 1):
            cells = width("".join(texts[first:last]).strip())
            if cells > line_width and last > first + 1:
                return
            is_orphan = last - first == 1 and n_texts > 2 and cells < target
            good_end = last == n_texts or ends_with(texts[last - 1], SENTENCE_ENDS + CLAUSE_ENDS)
            uneven = ((cells - target) / target) ** 2
            yield last, uneven + 0.5 * is_orphan + (0.0 if good_end else 0.2)

    return [list(texts[first:last]) for first, last in _cheapest_pieces(n_texts, ends, fewest=True)]


def _cheapest_pieces(
    n: int, ends: Callable[[int], Iterable[tuple[int, float]]], *, fewest: bool = False
) -> Iterator[tuple[int, int]]:
    """Cut n things where the sum of costs is lowest; yield the start and end of each piece.

    ends: the possible ends of a piece by its start, with their costs. fewest: among the fewest pieces.
    """
    best = [(math.inf, math.inf)] * n + [(0.0, 0.0)]
    cuts = [n] * n
    for first in range(n - 1, -1, -1):
        for last, cost in ends(first):
            total = (best[last][0] + fewest, cost + best[last][1])
            if total < best[first]:
                best[first], cuts[first] = total, last
    first = 0
    while first < n:
        yield first, cuts[first]
        first = cuts[first]


def ends_with(word: str, signs: tuple[str, ...]) -> bool:
    """Return whether a word ends with one of the signs, before closing marks, and is no abbreviation."""
    bare = word.strip().rstrip(CLOSING_MARKS)
    stem = bare.removesuffix(".").lstrip(OPENING).casefold()
    is_abbreviation = stem in ABBREVIATIONS or (len(stem) == 1 and stem.isalpha())
    return bare.endswith(signs) and not (bare.endswith(".") and is_abbreviation)


class BilingualCues:
    """Makes cues of segments as they come, with translations below. escape: as in `CueMaker`."""

    def __init__(self, options: WriterOptions, escape: Callable[[str], str] = str) -> None:
        self._options, self._escape = options, escape
        self._plain = _one_language(options, escape)

    def segment(self, segment: Segment) -> list[Cue]:
        if segment.translation is None:
            return self._plain.segment(segment)
        if segment.words is None and self._options.need_words:
            raise OptionError("line breaking and highlighting need word times: ask for word timestamps")
        return [*self._plain.flush(), *self._both(segment, segment.translation)]

    def flush(self) -> list[Cue]:
        return self._plain.flush()

    def _both(self, segment: Segment, translation: str) -> Iterator[Cue]:
        maker = _one_language(replace(self._options, highlight_words=False), self._escape)
        cues = [*maker.segment(segment), *maker.flush()]
        if not cues and not self._options.need_words:
            cues = maker.segment(replace(segment, words=None))
        if not cues:
            return
        parts = shared_out(translation, [width(cue.text) for cue in cues])
        for cue, part in zip(cues, parts, strict=True):
            below = "".join(f"\n{self._escape(line)}" for line in self._lines(part))
            for one in cue.highlighted() if self._options.highlight_words else (cue,):
                end = one.end if self._options.need_words else segment.end
                yield replace(one, words=(*one.words, CueWord(below, end, end))) if below else one

    def _lines(self, pieces: Sequence[str]) -> list[str]:
        if not pieces:
            return []
        line_width = self._options.max_line_width
        if line_width is None and self._options.reading_speed is None:
            return ["".join(pieces).strip()]
        return ["".join(line).strip() for line in _balanced_lines(pieces, line_width or LINE_WIDTH)]


def _one_language(options: WriterOptions, escape: Callable[[str], str]) -> CueMaker | ReadableCues:
    return CueMaker(options, escape) if options.reading_speed is None else ReadableCues(options, escape)


class CueWriter(Writer):
    """A writer of a format that consists of cues; `render` formats one cue."""

    _cues: BilingualCues

    def __init__(self, options: WriterOptions | None = None) -> None:
        self.options = options or WriterOptions()

    def begin(self, info: TranscriptInfo) -> str:
        self._cues = BilingualCues(self.options, self.escape)
        return ""

    def segment(self, segment: Segment) -> str:
        return "".join(map(self.render, self._cues.segment(segment)))

    def end(self, info: TranscriptInfo) -> str:
        return "".join(map(self.render, self._cues.flush()))

    def escape(self, text: str) -> str:
        return text

    def render(self, cue: Cue) -> str:
        raise NotImplementedError
