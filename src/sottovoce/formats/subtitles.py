"""Subtitle cues from segments: by openai-whisper's rules, laid out for reading, or in two languages.

`CueMaker` gives the cues of openai-whisper (`whisper/utils.py`, `SubtitlesWriter`) for the same options.
Widths count code points.

`ReadableCues` ends cues at sentences, clauses or pauses, and balances lines. Widths are terminal cells. A cue
may outlast its last word, up to the next cue; no word is dropped. Source of the limits: Netflix, Timed Text
Style Guide (42 characters a line, 2 lines, 5/6 to 7 seconds).

`BilingualCues` distributes a translation over the cues of its text by width; a much longer translation gets
more lines.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sottovoce.errors import OptionError
from sottovoce.formats.base import TranscriptInfo
from sottovoce.options.writer import WriterOptions
from sottovoce.text.languages import CLAUSE_ENDS, CLOSING_MARKS, SENTENCE_ENDS
from sottovoce.text.width import shared_out, width
from sottovoce.types import Segment, Word

RIGHT_TO_LEFT_MARK = "\u200f"

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


@dataclass(slots=True)
class CueMaker:
    """Makes cues of segments as they come. escape: the format's escaping; widths are counted before it."""

    options: WriterOptions = field(default_factory=WriterOptions)
    escape: Callable[[str], str] = str
    _open: list[CueWord] = field(default_factory=list, init=False)
    _line_length: int = field(default=0, init=False)
    _n_lines: int = field(default=1, init=False)
    _last_start: float | None = field(default=None, init=False)
    _speaker: str | None = field(default=None, init=False)

    def segment(self, segment: Segment) -> list[Cue]:
        """Add a segment; return the cues that it completes.

        Raises: OptionError if the options place words and the segment has no word times.
        """
        if segment.words is None and self.options.need_words:
            raise OptionError("line breaking and highlighting need word times: ask for word timestamps")
        is_apart = segment.words is None or segment.speaker != self._speaker
        before = self.flush() if is_apart else []
        self._speaker = segment.speaker
        if segment.words is None:
            return [*before, *self._whole(segment)]
        added = (cue for chunk in self._chunks(segment.words) for cue in self._add(chunk))
        return [*before, *self._finish(added)]

    def _whole(self, segment: Segment) -> list[Cue]:
        text = self.escape(one_line(segment.text).strip())
        words = (CueWord(text, segment.start, segment.end),)
        return [Cue(segment.start, segment.end, words, segment.speaker, is_timed=False)] if text else []

    def flush(self) -> list[Cue]:
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
    return round(seconds * 1000)


def timestamp(seconds: float, *, marker: str, hours: bool) -> str:
    """Format `[HH:]MM:SS` with milliseconds after the marker; hours: always, else from one hour on."""
    minutes, rest = divmod(milliseconds(seconds), 60_000)
    n_hours, minutes = divmod(minutes, 60)
    head = f"{n_hours:02d}:" if hours or n_hours else ""
    return f"{head}{minutes:02d}:{rest // 1000:02d}{marker}{rest % 1000:03d}"


def behind_speaker(speaker: str | None, text: str) -> str:
    """Prefix the speaker: "A: Good morning." Line widths exclude the name.

    A direction mark keeps the full stop of right-to-left text in place.
    """
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


@dataclass(slots=True)
class ReadableCues:
    """Makes cues of segments as they come. escape: as in `CueMaker`."""

    options: WriterOptions
    escape: Callable[[str], str] = str
    _run: list[Word] = field(default_factory=list, init=False)
    _held: Cue | None = field(default=None, init=False)

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
    line_width: int
    n_lines: int
    reading_speed: float


def begins_run(before: Word, word: Word) -> bool:
    if word.start - before.end >= RUN_PAUSE_S:
        return True
    return (word.speaker, word.language) != (before.speaker, before.language)


def share_out(words: Sequence[Word], limits: ReadingLimits) -> Iterator[Sequence[Word]]:
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
    """Return the cost of the cue of words [first, last)."""
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
    is_sentence = ends_with(words[index - 1].word, SENTENCE_ENDS)
    pause = words[index].start - words[index - 1].end
    return 0.3 * is_sentence + 0.8 * max(0.0, pause - CLAUSE_PAUSE_S)


def cut_cost(words: Sequence[Word], last: int) -> float:
    if last == len(words) or ends_with(words[last - 1].word, SENTENCE_ENDS):
        return 0.0
    if ends_with(words[last - 1].word, CLAUSE_ENDS):
        return 0.4
    return 0.5 if words[last].start - words[last - 1].end >= CLAUSE_PAUSE_S else 1.2


def balanced_lines(texts: Sequence[str], limits: ReadingLimits) -> list[list[str]]:
    """Break a cue into the fewest lines, about equally wide, preferably after punctuation."""
    fewest = len(greedy_lines(texts, limits.line_width))
    target = max(1.0, width("".join(texts).strip()) / fewest)  # a soft hyphen alone has no width
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
    """Return the cost of a line of words [first, last): uneven width, an orphan, a bad end."""
    uneven = ((cells - target) / target) ** 2
    is_orphan = last - first == 1 and len(texts) > 2 and cells < target
    good_end = last == len(texts) or ends_with(texts[last - 1], SENTENCE_ENDS + CLAUSE_ENDS)
    return uneven + 0.5 * is_orphan + (0.0 if good_end else 0.2)


def greedy_lines(texts: Sequence[str], line_width: int) -> list[list[str]]:
    lines: list[list[str]] = []
    for text in texts:
        if lines and width("".join([*lines[-1], text]).strip()) <= line_width:
            lines[-1].append(text)
        else:
            lines.append([text])
    return lines


def last_sentence(words: Sequence[Word]) -> int:
    ends = [index + 1 for index, word in enumerate(words) if ends_with(word.word, SENTENCE_ENDS)]
    return ends[-1] if ends else len(words)


def ends_with(word: str, signs: tuple[str, ...]) -> bool:
    bare = word.strip().rstrip(CLOSING_MARKS)
    return bare.endswith(signs) and not is_abbreviation(bare)


def is_abbreviation(word: str) -> bool:
    stem = word.removesuffix(".").lstrip(OPENING).casefold()
    return word.endswith(".") and (stem in ABBREVIATIONS or (len(stem) == 1 and stem.isalpha()))


@dataclass(slots=True)
class BilingualCues:
    options: WriterOptions
    escape: Callable[[str], str] = str
    _plain: CueMaker | ReadableCues = field(init=False)

    def __post_init__(self) -> None:
        self._plain = _one_language(self.options, self.escape)

    def segment(self, segment: Segment) -> list[Cue]:
        if segment.translation is None:
            return self._plain.segment(segment)
        if segment.words is None and self.options.need_words:
            raise OptionError("line breaking and highlighting need word times: ask for word timestamps")
        return [*self._plain.flush(), *self._both(segment, segment.translation)]

    def flush(self) -> list[Cue]:
        return self._plain.flush()

    def _both(self, segment: Segment, translation: str) -> Iterator[Cue]:
        maker = _one_language(replace(self.options, highlight_words=False), self.escape)
        cues = [*maker.segment(segment), *maker.flush()]
        if not cues and not self.options.need_words:
            cues = maker.segment(replace(segment, words=None))
        if not cues:
            return
        parts = shared_out(translation, [width(cue.text) for cue in cues])
        for cue, part in zip(cues, parts, strict=True):
            below = "".join(f"\n{self.escape(line)}" for line in self._lines(part))
            for one in cue.highlighted() if self.options.highlight_words else (cue,):
                end = one.end if self.options.need_words else segment.end
                yield replace(one, words=(*one.words, CueWord(below, end, end))) if below else one

    def _lines(self, pieces: Sequence[str]) -> list[str]:
        if not pieces:
            return []
        is_read = self.options.reading_speed is not None
        line_width = self.options.max_line_width or (LINE_WIDTH if is_read else None)
        if line_width is None:
            return ["".join(pieces).strip()]
        lines = balanced_lines(pieces, ReadingLimits(line_width, N_LINES, 1.0))
        return ["".join(line).strip() for line in lines]


def _one_language(options: WriterOptions, escape: Callable[[str], str]) -> CueMaker | ReadableCues:
    return CueMaker(options, escape) if options.reading_speed is None else ReadableCues(options, escape)


class CueWriter:
    """The interface of writers, for formats of cues: `render` writes one."""

    extension = ""
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
