"""Subtitle cues from segments: laid out for reading or by openai-whisper's rules, in one language or two.

For reading, cues end at sentences, clauses or pauses, lines are balanced, and widths are terminal cells. A
segment without words stays a cue, and only its lines are broken. With the layout "segments", lines and cues
are as long as their limits allow, as in openai-whisper (`whisper/utils.py`, `SubtitlesWriter`), and widths
count grapheme clusters.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import TypeAlias

from sottovoce.errors import OptionError
from sottovoce.formats.output import TranscriptInfo, Writer
from sottovoce.offline.regroup import StartOrder
from sottovoce.options.transcribe import WriterOptions
from sottovoce.text.languages import CLAUSE_ENDS, CLOSING_MARKS, SENTENCE_ENDS
from sottovoce.text.normalize import n_clusters, shared_out, unbreakable, width
from sottovoce.types import Segment, Word

RIGHT_TO_LEFT_MARK = "\u200f"
JOINER = "\u2060"
"""Invisible (U+2060, word joiner); it parts signs that would begin a command."""


@dataclass(frozen=True, slots=True)
class CueWord:
    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Cue:
    """A subtitle.

    is_timed: its words have times of their own. reading_s: how long it stays at least if the next one begins
    later. below: lines of its translation.
    """

    start: float
    end: float
    words: tuple[CueWord, ...]
    speaker: str | None = None
    language: str = ""
    language_probability: float | None = None
    is_timed: bool = True
    reading_s: float = 0.0
    below: str = ""

    @property
    def text(self) -> str:
        return "".join(word.text for word in self.words) + self.below

    def highlighted(self) -> Iterator[Cue]:
        """Yield one cue per word, underlined with <u>, and plain cues for the pauses between."""
        last = self.start
        for i, word in enumerate(self.words):
            bare = word.text.lstrip()
            if not bare:
                continue
            if milliseconds(last) < milliseconds(word.start):
                yield replace(self, start=last, end=word.start)
            space = word.text[: len(word.text) - len(bare)]
            marked = replace(word, text=f"{space}<u>{bare}</u>")
            words = (*self.words[:i], marked, *self.words[i + 1 :])
            last = max(word.start, word.end)
            yield replace(self, start=word.start, end=last, words=words)


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def timestamp(seconds: float, *, marker: str, hours: bool, digits: int = 3) -> str:
    """Format `[HH:]MM:SS` with digits of seconds after the marker; hours: always, else from one hour on."""
    whole, fraction = divmod(round(seconds * 10**digits), 10**digits)
    minutes, whole = divmod(whole, 60)
    n_hours, minutes = divmod(minutes, 60)
    head = f"{n_hours:02d}:" if hours or n_hours else ""
    return f"{head}{minutes:02d}:{whole:02d}{marker}{fraction:0{digits}d}"


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


LINE_WIDTHS = {"ja": 26, "ko": 32, "yue": 32, "zh": 32}
LINE_WIDTH = 42
N_LINES = 2
SHORTEST_S = 5 / 6
LONGEST_S = 7.0
GAP_S = 0.08
"""2 frames. Source of the limits: Netflix, Timed Text Style Guide, general requirements (2 lines, 5/6 to 7 s,
2 frames between cues) and those of languages (42 characters a line; 16 of double width in Korean and Chinese,
13 in Japanese).
"""
READING_SPEED = 17.0
"""Cells a second. Source: Netflix, Timed Text Style Guide, most languages (adult programmes; English: 20)."""
LONG_PAUSE_S = 3.0
"""Pause between beginnings of words that ends a cue across segments. Source: openai-whisper."""
READING_PAUSE_S = 1.0
"""Pause during which no cue is shown. Source: BBC, Subtitle Guidelines, 4.5 "Gaps" (at least a second)."""
LONGEST_RUN = 160
"""Words without a pause that are laid out together, which bounds memory (a minute of talk)."""

OPENING = "\"'“‘«([（「『"
ABBREVIATIONS = frozenset(
    {
        *("mr", "mrs", "ms", "dr", "prof", "st", "sr", "sra", "jr", "vs"),
        *("hr", "fr", "mme", "mlle", "bzw", "ca", "nr"),
    }
)
"""Words whose full stop rarely ends a sentence; single letters are initials."""


_Cost: TypeAlias = tuple[int, float]
"""The number of lines, if fewest are wanted, then points: one for each cue and each rule of the guide that it
breaks, or the share by which it does.
"""


@dataclass(frozen=True, slots=True)
class _Unit:
    """Text that no break may part. n_cells: its width; n_first_cells: its width where a line begins."""

    text: str
    n_cells: int
    n_first_cells: int
    words: tuple[Word, ...]
    segment: Segment

    @property
    def start(self) -> float:
        return self.words[0].start

    @property
    def end(self) -> float:
        return max(word.end for word in self.words)

    @property
    def voice(self) -> tuple[str | None, str]:
        speaker, language = self.segment.speaker, self.segment.language
        for word in self.words[:1]:
            speaker, language = word.speaker or speaker, word.language or language
        return speaker, language


class CueMaker:
    """Makes cues of segments; the starts of both never decrease.

    escape: the format's escaping; widths are counted before it.
    """

    def __init__(self, options: WriterOptions | None = None, escape: Callable[[str], str] = str) -> None:
        self._options = options = options or WriterOptions()
        self._escape = escape
        self._is_for_reading = options.is_for_reading
        self._n_lines = options.max_line_count or (N_LINES if self._is_for_reading else math.inf)
        self._run: list[_Unit] = []
        self._order: StartOrder[Cue] = StartOrder()
        self._held: list[Cue] = []

    def segment(self, segment: Segment) -> list[Cue]:
        """Add a segment; return the cues that are complete. Raises: OptionError if it needs word times."""
        if segment.words is None and self._options.need_words:
            raise OptionError("subtitle layout needs word times: ask for word timestamps")
        units = list(self._units(segment))
        crosses_segments = self._is_for_reading or self._options.max_line_count is not None
        is_timed = bool(units) or not segment.text.strip()
        joins_run = crosses_segments and segment.translation is None and is_timed
        cues = [] if joins_run else self._laid_out()
        for unit in units:
            if joins_run and self._run and self._ends_run(unit):
                cues += self._laid_out()
            self._run.append(unit)
        if not joins_run:
            cues += self._with_translation(self._laid_out() or self._untimed(segment), segment)
        elif self._run and (not self._is_for_reading or len(self._run) > LONGEST_RUN):
            cues += self._laid_out(is_open=True)
        return self._in_order(cues, min([segment.start, *(unit.start for unit in self._run)]))

    def flush(self) -> list[Cue]:
        cues = self._in_order(self._laid_out(), math.inf)
        return cues + [self._shown(cue, math.inf) for cue in self._held]

    def _units(self, segment: Segment) -> Iterator[_Unit]:
        for words in unbreakable(segment.words or (), lambda word: word.word):
            text = one_line("".join(word.word for word in words))
            if text.strip():
                yield self._unit(text, tuple(words), segment)

    def _unit(self, text: str, words: tuple[Word, ...], segment: Segment) -> _Unit:
        measure = width if self._is_for_reading else n_clusters
        return _Unit(text, measure(text), measure(text.strip()), words, segment)

    def _ends_run(self, unit: _Unit) -> bool:
        last = self._run[-1]
        overlaps = unit.segment is not last.segment and unit.segment.start < last.segment.end
        if overlaps or unit.voice != last.voice:
            return True
        if self._is_for_reading:
            return unit.start - last.end >= READING_PAUSE_S
        return unit.start - last.words[-1].start > LONG_PAUSE_S

    def _laid_out(self, *, is_open: bool = False) -> list[Cue]:
        """Lay out the run. is_open: keep the last cue, which may grow."""
        units, self._run = self._run, []
        pieces = self._cues_of(units)
        if is_open:
            self._run = pieces.pop()
        return [self._cue(piece) for piece in pieces]

    def _cues_of(self, units: Sequence[_Unit]) -> list[list[_Unit]]:
        def cost(first: int, last: int) -> _Cost:
            cue, rest = units[first:last], units[last : last + 1]
            next_start = rest[0].start if rest else cue[-1].end + READING_PAUSE_S
            hurry = max(0.0, 1 - (next_start - cue[0].start) / self._reading_s(cue))
            splits_sentence = bool(rest) and not ends_with(cue[-1].text, SENTENCE_ENDS)
            splits_clause = splits_sentence and not ends_with(cue[-1].text, CLAUSE_ENDS)
            closeness = 1 - max(0.0, next_start - cue[-1].end) / READING_PAUSE_S
            return 0, 1 + hurry + (len(cue) == 1) + splits_sentence + splits_clause * closeness

        ends = partial(self._ends, units, self._n_lines)
        return _cheapest_pieces(units, ends, cost if self._is_for_reading else None)

    def _lines_of(self, units: Sequence[_Unit]) -> list[list[_Unit]]:
        def cost(first: int, last: int) -> _Cost:
            n_cells = units[first].n_first_cells + n_before[last] - n_before[first + 1]
            splits_clause = last < len(units) and not ends_clause[last - 1]
            return 1, (n_cells / even - 1) ** 2 + (last - first == 1) + splits_clause

        ends = partial(self._ends, units, 1)
        longest = _cheapest_pieces(units, ends, None)
        if not self._is_for_reading or len(longest) < 2:
            return longest
        even = max(1.0, _n_cells(units) / len(longest))  # a soft hyphen alone has no width
        n_before = [0, *accumulate(unit.n_cells for unit in units)]
        ends_clause = [ends_with(unit.text, SENTENCE_ENDS + CLAUSE_ENDS) for unit in units]
        return _cheapest_pieces(units, ends, cost)

    def _line_width(self, unit: _Unit) -> float:
        if self._options.max_line_width is not None:
            return self._options.max_line_width
        return LINE_WIDTHS.get(unit.voice[1], LINE_WIDTH) if self._is_for_reading else math.inf

    def _ends(self, units: Sequence[_Unit], most_lines: float, first: int) -> Iterator[int]:
        """Yield the ends of a cue, or of a line, that begins with a unit; the first one at any length."""
        line_width = self._line_width(units[first])
        most_words = self._options.max_words_per_line or math.inf
        most_s = LONGEST_S if self._is_for_reading else math.inf
        n_lines, n_cells, n_words = 0, 0, 0
        for last in range(first + 1, len(units) + 1):
            unit = units[last - 1]
            n_cells += unit.n_cells
            if not n_lines or n_cells > line_width:
                n_lines, n_cells = n_lines + 1, unit.n_first_cells
            n_words += len(unit.words)
            seconds = unit.end - units[first].start if unit.words else 0.0
            if last > first + 1 and (n_lines > most_lines or n_words > most_words or seconds > most_s):
                return
            yield last

    def _reading_s(self, units: Sequence[_Unit]) -> float:
        return max(SHORTEST_S, _n_cells(units) / (self._options.reading_speed or READING_SPEED))

    def _cue(self, units: Sequence[_Unit]) -> Cue:
        words: list[CueWord] = []
        for line in self._lines_of(units):
            for place, word in enumerate(word for unit in line for word in unit.words):
                text = one_line(word.word)
                text = text if place else ("\n" if words else "") + text.strip()
                words.append(CueWord(self._escape(text), word.start, word.end))
        start, end = words[0].start, max(max(word.start, word.end) for word in words)
        speaker, language = units[0].voice
        segment = units[0].segment
        probability = segment.language_probability if segment.language == language else None
        reading_s = min(LONGEST_S, self._reading_s(units))
        return Cue(start, end, tuple(words), speaker, language, probability, reading_s=reading_s)

    def _untimed(self, segment: Segment) -> list[Cue]:
        start, end = segment.start, max(segment.start, segment.end)
        lines = self._lines_of_pieces(shared_out(segment.text, [1])[0], segment)
        voice = (segment.speaker, segment.language, segment.language_probability)
        words = (CueWord("\n".join(lines), start, end),)
        return [Cue(start, end, words, *voice, is_timed=False)] if lines else []

    def _with_translation(self, cues: list[Cue], segment: Segment) -> list[Cue]:
        if segment.translation is None or not cues:
            return cues
        parts = shared_out(segment.translation, [width(cue.text) for cue in cues])
        translated = replace(segment, language="")
        below = ["".join(f"\n{line}" for line in self._lines_of_pieces(part, translated)) for part in parts]
        return [replace(cue, below=part) for cue, part in zip(cues, below, strict=True)]

    def _lines_of_pieces(self, pieces: Sequence[str], segment: Segment) -> list[str]:
        lines = self._lines_of([self._unit(piece, (), segment) for piece in pieces])
        return [self._escape("".join(unit.text for unit in line).strip()) for line in lines]

    def _in_order(self, cues: Iterable[Cue], begun_s: float) -> list[Cue]:
        if self._options.highlight_words:
            cues = [part for cue in cues for part in cue.highlighted()]
        ordered = self._order.add(cues, begun_s)
        if not self._is_for_reading:
            return ordered
        ordered = [*self._held, *ordered]
        if self._options.dialogue:
            ordered = _dialogues(ordered)
        self._held = ordered[-1:]
        return [self._shown(cue, after.start) for cue, after in pairwise(ordered)]

    def _shown(self, cue: Cue, next_start: float) -> Cue:
        cue = _lengthened(cue, next_start)
        return replace(cue, speaker=None) if self._options.dialogue else cue


def _dialogues(cues: Sequence[Cue]) -> list[Cue]:
    """Join neighbours that are lines of two speakers, if there is no pause and they are read in time."""
    joined: list[Cue] = []
    for cue in cues:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.speaker
            and cue.speaker
            and last.speaker != cue.speaker
            and "\n" not in last.text + cue.text
            and cue.start - last.end < READING_PAUSE_S
            and cue.end - last.start <= LONGEST_S
        ):
            words = (CueWord("-", last.start, last.start), *last.words, CueWord("\n-", cue.start, cue.start))
            joined[-1] = replace(
                last,
                end=max(last.end, cue.end),
                words=(*words, *cue.words),
                reading_s=min(LONGEST_S, last.reading_s + cue.reading_s),
            )
        else:
            joined.append(cue)
    return joined


def _lengthened(cue: Cue, next_start: float) -> Cue:
    return replace(cue, end=max(cue.end, min(cue.start + cue.reading_s, next_start - GAP_S)))


def _n_cells(units: Sequence[_Unit]) -> int:
    """The width of units on one line."""
    return units[0].n_first_cells + sum(unit.n_cells for unit in units[1:])


def _cheapest_pieces(
    units: Sequence[_Unit], ends: Callable[[int], Iterable[int]], cost: Callable[[int, int], _Cost] | None
) -> list[list[_Unit]]:
    """Cut units where the sum of costs is lowest; without a cost, into pieces as long as possible.

    ends: the possible ends of a piece by its start.
    """

    def with_rest(first: int, last: int) -> tuple[_Cost, int]:
        (n_pieces, points), rest = cost(first, last) if cost else (0, 0.0), cheapest[last][0]
        return (n_pieces + rest[0], points + rest[1]), last

    cheapest: list[tuple[_Cost, int]] = [((0, 0.0), 0)] * (len(units) + 1)
    for first in reversed(range(len(units))) if cost else ():
        cheapest[first] = min(with_rest(first, last) for last in ends(first))
    pieces, first = [], 0
    while first < len(units):
        last = cheapest[first][1] if cost else max(ends(first))
        pieces.append(list(units[first:last]))
        first = last
    return pieces


def ends_with(word: str, signs: tuple[str, ...]) -> bool:
    """Return whether a word ends with one of the signs, before closing marks, and is no abbreviation."""
    bare = word.strip().rstrip(CLOSING_MARKS)
    stem = bare.removesuffix(".").lstrip(OPENING).casefold()
    is_abbreviation = stem in ABBREVIATIONS or (len(stem) == 1 and stem.isalpha())
    return bare.endswith(signs) and not (bare.endswith(".") and is_abbreviation)


class CueWriter(Writer):
    """A writer of a format that consists of cues; `render` formats one cue."""

    _cues: CueMaker

    def __init__(self, options: WriterOptions | None = None) -> None:
        self.options = options or WriterOptions()

    def begin(self, info: TranscriptInfo) -> str:
        self._cues = CueMaker(self.options, self.escape)
        return ""

    def segment(self, segment: Segment) -> str:
        return "".join(map(self.render, self._cues.segment(segment)))

    def end(self, info: TranscriptInfo) -> str:
        return "".join(map(self.render, self._cues.flush()))

    def escape(self, text: str) -> str:
        return text

    def render(self, cue: Cue) -> str:
        raise NotImplementedError
