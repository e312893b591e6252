"""Lay out subtitles for reading: how words are distributed over cues and lines.

Cues end where sentences, clauses or pauses do, stay long enough on the screen to be read, have lines of
about the same width, and no word stands alone where that can be helped. Widths are cells of a terminal or
a fixed grid: a full-width character counts two, a combining one none. When words are said is never changed;
a cue may stay longer than its last word, but not into the next cue. What is spoken faster than can be read
stays too fast: no word is dropped.

Source of the limits: Netflix, Timed Text Style Guide (42 characters a line, 2 lines, 5/6 to 7 seconds).
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sottovoce.errors import OptionError
from sottovoce.formats.subtitles import Cue, CueWord, one_line
from sottovoce.options.writer import WriterOptions
from sottovoce.text.languages import CLAUSE_ENDS, CLOSING_MARKS, SENTENCE_ENDS
from sottovoce.types import Segment, Word

LINE_WIDTH = 42
N_LINES = 2
SHORTEST_S = 5 / 6
LONGEST_S = 7.0
RUN_PAUSE_S = 1.0
"""A pause that no cue runs across."""
CLAUSE_PAUSE_S = 0.3
GAP_S = 0.08
"""Between a cue that stays longer than its words and the next one: the eye sees that something changed."""
LONGEST_RUN = 160
"""Words held before some are laid out, where nobody ever pauses."""
OPENING = "\"'“‘«([（「『"
ABBREVIATIONS = frozenset(
    {
        "mr",
        "mrs",
        "ms",
        "dr",
        "prof",
        "st",
        "sr",
        "sra",
        "jr",
        "vs",
        "hr",
        "fr",
        "mme",
        "mlle",
        "bzw",
        "ca",
        "nr",
    }
)
"""Words whose full stop rarely ends a sentence; single letters are initials."""


@dataclass(slots=True)
class ReadableCues:
    """Makes cues of segments as they come; holds the words since the last long pause, and one cue.

    escape: what the format does to text before it goes into a cue; widths are counted before it.
    """

    options: WriterOptions
    escape: Callable[[str], str] = str
    _run: list[Word] = field(default_factory=list, init=False)
    _held: Cue | None = field(default=None, init=False)

    def segment(self, segment: Segment) -> list[Cue]:
        """Add a segment; return the cues that it completes.

        Raises: OptionError when the segment has no word times.
        """
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
        """Return the cues that are still held."""
        return [*self._lay_out(len(self._run)), *self._release(None)]

    def _add(self, word: Word) -> Iterator[Cue]:
        if self._run and begins_run(self._run[-1], word):
            yield from self._lay_out(len(self._run))
        elif len(self._run) >= LONGEST_RUN:
            yield from self._lay_out(last_sentence(self._run))
        self._run.append(word)

    def _lay_out(self, n_words: int) -> Iterator[Cue]:
        words, self._run = self._run[:n_words], self._run[n_words:]
        for part in share_out(words, self._limits):
            yield from self._release(self._cue(part))

    def _release(self, following: Cue | None) -> Iterator[Cue]:
        held, self._held = self._held, following
        if held is not None:
            yield self._stay(held, math.inf if following is None else following.start)

    def _cue(self, words: Sequence[Word]) -> Cue:
        lines = balanced_lines([one_line(word.word) for word in words], self._limits)
        texts = [
            ("\n" if place == 0 and number else "") + (text.strip() if place == 0 else text)
            for number, line in enumerate(lines)
            for place, text in enumerate(line)
        ]
        placed = [
            CueWord(self.escape(text), word.start, word.end) for text, word in zip(texts, words, strict=True)
        ]
        return Cue(words[0].start, max(word.end for word in words), tuple(placed), words[0].speaker)

    def _stay(self, cue: Cue, next_start: float) -> Cue:
        """Extend the end of a cue to the time it takes to read, where the next one leaves room."""
        wanted = cue.start + min(LONGEST_S, max(SHORTEST_S, width(cue.text) / self._limits.reading_speed))
        return replace(cue, end=max(cue.end, min(wanted, next_start - GAP_S)))

    @property
    def _limits(self) -> ReadingLimits:
        options = self.options
        assert options.reading_speed is not None
        return ReadingLimits(
            options.max_line_width or LINE_WIDTH, options.max_line_count or N_LINES, options.reading_speed
        )


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """Limits of a layout. line_width: cells a line. n_lines: lines a cue. reading_speed: cells a second."""

    line_width: int
    n_lines: int
    reading_speed: float


def begins_run(before: Word, word: Word) -> bool:
    """Tell whether no cue may hold both words: a long pause, another speaker, another language."""
    if word.start - before.end >= RUN_PAUSE_S:
        return True
    return (word.speaker, word.language) != (before.speaker, before.language)


def share_out(words: Sequence[Word], limits: ReadingLimits) -> Iterator[Sequence[Word]]:
    """Cut a run without long pauses into cues at the lowest cost; yields the words of each."""
    n_words = len(words)
    texts = [one_line(word.word) for word in words]
    best = [math.inf] * n_words + [0.0]
    cuts = [n_words] * n_words
    for first in range(n_words - 1, -1, -1):
        for last in cue_ends(words, texts, first, limits):
            cost = cue_cost(words, first, last, limits) + best[last]
            if cost < best[first]:
                best[first], cuts[first] = cost, last
    first = 0
    while first < n_words:
        yield words[first : cuts[first]]
        first = cuts[first]


def cue_ends(words: Sequence[Word], texts: Sequence[str], first: int, limits: ReadingLimits) -> Iterator[int]:
    """Yield the possible ends (exclusive) of a cue that begins with word `first`: it fits, and is not too
    long.
    """
    n_lines, used = 1, 0
    for index in range(first, len(words)):
        size = width(texts[index])
        if used and used + size > limits.line_width:
            n_lines, used = n_lines + 1, 0
        used += size if used else width(texts[index].strip())
        is_too_much = n_lines > limits.n_lines or words[index].end - words[first].start > LONGEST_S
        if is_too_much and index > first:
            return
        yield index + 1


def cue_cost(words: Sequence[Word], first: int, last: int, limits: ReadingLimits) -> float:
    """Compute the cost of the cue of words [first, last): 1 for a cue, plus its faults."""
    start, end = words[first].start, words[last - 1].end
    room = (words[last].start if last < len(words) else end + RUN_PAUSE_S) - start
    n_cells = width("".join(word.word for word in words[first:last]).strip())
    too_fast = max(0.0, n_cells / max(room, 0.1) / limits.reading_speed - 1)
    too_short = max(0.0, SHORTEST_S - room)
    is_orphan = last - first == 1 and len(words) > 1 and n_cells < limits.line_width / 2
    inner = sum(inner_cost(words, index) for index in range(first + 1, last))
    cut = cut_cost(words, last)
    return 1.0 + cut + 2 * min(too_fast, 2.0) + too_short + 1.5 * is_orphan + inner


def inner_cost(words: Sequence[Word], index: int) -> float:
    """Compute the cost of a cue that runs on before word `index`."""
    is_sentence = ends_with(words[index - 1].word, SENTENCE_ENDS)
    pause = words[index].start - words[index - 1].end
    return 0.3 * is_sentence + 0.8 * max(0.0, pause - CLAUSE_PAUSE_S)


def cut_cost(words: Sequence[Word], last: int) -> float:
    """Compute the cost of ending a cue before word `last`."""
    if last == len(words) or ends_with(words[last - 1].word, SENTENCE_ENDS):
        return 0.0
    if ends_with(words[last - 1].word, CLAUSE_ENDS):
        return 0.4
    return 0.5 if words[last].start - words[last - 1].end >= CLAUSE_PAUSE_S else 1.2


def balanced_lines(texts: Sequence[str], limits: ReadingLimits) -> list[list[str]]:
    """Break a cue into as few lines as hold it, about equally wide, cut after punctuation where possible."""
    fewest = len(greedy_lines(texts, limits.line_width))
    target = width("".join(texts).strip()) / fewest
    n_texts = len(texts)
    costs = [[math.inf] * (n_texts + 1) for _ in range(fewest + 1)]
    cuts = [[n_texts] * (n_texts + 1) for _ in range(fewest + 1)]
    costs[0][n_texts] = 0.0
    for left in range(1, fewest + 1):
        for first in range(n_texts - 1, -1, -1):
            for last in range(first + 1, n_texts + 1):
                cells = width("".join(texts[first:last]).strip())
                if cells > limits.line_width and last > first + 1:
                    break
                cost = line_cost(texts, first, last, target, cells) + costs[left - 1][last]
                if cost < costs[left][first]:
                    costs[left][first], cuts[left][first] = cost, last
    lines, first = [], 0
    for left in range(fewest, 0, -1):
        lines.append(list(texts[first : cuts[left][first]]))
        first = cuts[left][first]
    return lines


def line_cost(texts: Sequence[str], first: int, last: int, target: float, cells: int) -> float:
    """Compute the cost of the line of words [first, last): uneven width, an orphan, a bad end."""
    uneven = ((cells - target) / target) ** 2
    is_orphan = last - first == 1 and len(texts) > 2 and cells < target
    good_end = last == len(texts) or ends_with(texts[last - 1], SENTENCE_ENDS + CLAUSE_ENDS)
    return uneven + 0.5 * is_orphan + (0.0 if good_end else 0.2)


def greedy_lines(texts: Sequence[str], line_width: int) -> list[list[str]]:
    """Break words into lines, each as full as can be."""
    lines: list[list[str]] = []
    for text in texts:
        if lines and width("".join([*lines[-1], text]).strip()) <= line_width:
            lines[-1].append(text)
        else:
            lines.append([text])
    return lines


def last_sentence(words: Sequence[Word]) -> int:
    """Count the words up to the last end of a sentence, or all where there is none."""
    ends = [index + 1 for index, word in enumerate(words) if ends_with(word.word, SENTENCE_ENDS)]
    return ends[-1] if ends else len(words)


def ends_with(word: str, signs: tuple[str, ...]) -> bool:
    """Tell whether the word ends with one of the signs, before closing quotes and brackets."""
    bare = word.strip().rstrip(CLOSING_MARKS)
    return bare.endswith(signs) and not is_abbreviation(bare)


def is_abbreviation(word: str) -> bool:
    """Tell whether the full stop at the end of the word belongs to it."""
    stem = word.removesuffix(".").lstrip(OPENING).casefold()
    return word.endswith(".") and (stem in ABBREVIATIONS or (len(stem) == 1 and stem.isalpha()))


def width(text: str) -> int:
    """Count the cells of a text: two for a full-width character, none for a combining or invisible one."""
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
