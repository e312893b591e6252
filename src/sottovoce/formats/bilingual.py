"""Cues in two languages: the text laid out as asked for, and its translation distributed below.

Each cue has the part of the translation that lies where its text does, by width, cut between words (between
characters where a language has no spaces), in lines of the same width. The limits hold for each language by
itself: a cue has up to so many lines of either. A translation that is much longer than the text has more
lines rather than losing words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from sottovoce.errors import OptionError
from sottovoce.formats.layout import LINE_WIDTH, N_LINES, ReadableCues, ReadingLimits, balanced_lines, width
from sottovoce.formats.subtitles import Cue, CueMaker, CueWord, one_line
from sottovoce.options.writer import WriterOptions
from sottovoce.types import Segment

_UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\u0e00-\u0eff"
_PIECES = re.compile(rf"\s*(?:[{_UNSPACED}]|[^\s{_UNSPACED}]+)")
"""Words with the spaces before them; characters, where words are not told apart by spaces."""


@dataclass(slots=True)
class BilingualCues:
    """Cues of segments as they come, translated or not."""

    options: WriterOptions
    escape: Callable[[str], str] = str
    _plain: CueMaker | ReadableCues = field(init=False)

    def __post_init__(self) -> None:
        self._plain = _one_language(self.options, self.escape)

    def segment(self, segment: Segment) -> list[Cue]:
        """Add a segment; return the cues that it completes.

        Raises: OptionError when the options place words and the segment has no word times.
        """
        if segment.translation is None or not self.options.need_words:
            return self._plain.segment(segment)
        if segment.words is None:
            raise OptionError("line breaking and highlighting need word times: ask for word timestamps")
        return [*self._plain.flush(), *self._both(segment, segment.translation)]

    def flush(self) -> list[Cue]:
        """Return the cues that are still held."""
        return self._plain.flush()

    def _both(self, segment: Segment, translation: str) -> Iterator[Cue]:
        maker = _one_language(replace(self.options, highlight_words=False), self.escape)
        cues = [*maker.segment(replace(segment, translation=None)), *maker.flush()]
        parts = shared_out(translation, [width(cue.text) for cue in cues])
        for cue, part in zip(cues, parts, strict=True):
            below = "".join(f"\n{self.escape(line)}" for line in self._lines(part))
            shown = cue.highlighted() if self.options.highlight_words else iter((cue,))
            for one in shown:
                yield replace(one, words=(*one.words, CueWord(below, one.end, one.end))) if below else one

    def _lines(self, pieces: Sequence[str]) -> list[str]:
        if not pieces:
            return []
        is_read = self.options.reading_speed is not None
        line_width = self.options.max_line_width or (LINE_WIDTH if is_read else None)
        if line_width is None:
            return ["".join(pieces).strip()]
        lines = balanced_lines(pieces, ReadingLimits(line_width, N_LINES, 1.0))
        return ["".join(line).strip() for line in lines]


def shared_out(text: str, widths: Sequence[int]) -> list[list[str]]:
    """Distribute the words of a text over cues, in order, in proportion to their widths."""
    parts: list[list[str]] = [[] for _ in widths]
    pieces = _PIECES.findall(one_line(text).strip())
    ends = list(accumulate(widths))
    total, done = max(1, width("".join(pieces))), 0
    for piece in pieces:
        middle = (done + width(piece) / 2) / total * (ends[-1] if ends else 0)
        done += width(piece)
        place = next((at for at, end in enumerate(ends) if middle <= end), len(ends) - 1)
        parts[place].append(piece)
    return parts


def cue_maker(options: WriterOptions, escape: Callable[[str], str] = str) -> BilingualCues:
    """Make the cues that the options ask for."""
    return BilingualCues(options, escape)


def _one_language(options: WriterOptions, escape: Callable[[str], str]) -> CueMaker | ReadableCues:
    return CueMaker(options, escape) if options.reading_speed is None else ReadableCues(options, escape)
