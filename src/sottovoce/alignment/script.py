"""The text that is given: lines, their words with tokens, and what is known of their times already."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sottovoce.errors import OptionError
from sottovoce.text.normalize import plain
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Segment, Transcript

SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])(?=\S)")


@dataclass(frozen=True, slots=True)
class Line:
    """What becomes one segment. segment: where it is known already, in the transcript that is refined."""

    text: str
    segment: Segment | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """A word or sign of the text: the line it is in, its tokens, and its letters alone, to compare.

    known: start and end in seconds, if the transcript that is refined tells them; text times where only its
    segment has some, by letters.
    """

    line: int
    text: str
    tokens: tuple[int, ...]
    letters: str
    known: tuple[float, float] | None = None


def lines_of(text: str | Sequence[str] | Transcript) -> list[Line]:
    """The lines of a text, cut at the ends of sentences; strings of a list, and segments, as they are.

    Raises: OptionError where nothing is written.
    """
    if isinstance(text, Transcript):
        lines = [Line(segment.text.strip(), segment) for segment in text.segments if plain(segment.text)]
    elif isinstance(text, str):
        rows = [row.strip() for row in text.lstrip("\ufeff").splitlines()]
        lines = [Line(part) for row in rows for part in _sentences(row) if plain(part)]
    else:
        lines = [Line(" ".join(row.split())) for row in text if plain(row)]
    if not lines:
        raise OptionError("text: expected words to align, got none")
    return lines


def _sentences(row: str) -> Iterator[str]:
    start = 0
    for found in SENTENCE_END.finditer(row):
        if plain(row[start : found.end()]):
            yield row[start : found.end()].strip()
            start = found.end()
    if row[start:].strip():
        yield row[start:].strip()


def units_of(lines: Sequence[Line], tokenizer: Tokenizer) -> list[Unit]:
    """The words and signs of the lines, with the tokens that the model writes them with.

    tokenizer: with the language; where it writes no spaces, units are characters.
    """
    units: list[Unit] = []
    lead = " " if tokenizer.splits_on_spaces else ""
    for number, line in enumerate(lines):
        words, tokens = tokenizer.split_to_word_tokens(tokenizer.encode(lead + line.text))
        times = _times(line, words)
        for word, ids, known in zip(words, tokens, times, strict=True):
            units.append(Unit(number, word, tuple(ids), plain(word).replace(" ", ""), known))
    return units


def _times(line: Line, words: Sequence[str]) -> Sequence[tuple[float, float] | None]:
    """When the words of a line are, as the transcript says: its share of letters within the segment, or
    within the words of the transcript where it has them."""
    if line.segment is None:
        return [None] * len(words)
    clock = _Letters(line.segment)
    lengths = [len(plain(word).replace(" ", "")) for word in words]
    total = max(1, sum(lengths))
    times, done = [], 0
    for length in lengths:
        times.append((clock.at(done / total), clock.at((done + length) / total)))
        done += length
    return times


class _Letters:
    """When a share of the letters of a segment was said."""

    def __init__(self, segment: Segment) -> None:
        words = [(w.start, w.end, len(plain(w.word).replace(" ", ""))) for w in segment.words or ()]
        self._spans = [word for word in words if word[2]] or [(segment.start, segment.end, 1)]
        self._n_letters = sum(n for _, _, n in self._spans)

    def at(self, share: float) -> float:
        left = share * self._n_letters
        for start, end, n_letters in self._spans:
            if left <= n_letters:
                return start + (end - start) * left / n_letters
            left -= n_letters
        return self._spans[-1][1]
