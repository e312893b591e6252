"""The text to align: lines, and words with tokens and known times."""

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
    text: str
    segment: Segment | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """A word or punctuation mark of a line.

    times: seconds in the transcript to refine, if any.
    """

    line: int
    text: str
    tokens: tuple[int, ...]
    letters: str
    times: tuple[float, float] | None = None


def letters_of(text: str) -> str:
    return plain(text).replace(" ", "")


def lines_of(text: str | Sequence[str] | Transcript) -> list[Line]:
    """Split a text into lines at sentence ends; list items and segments stay whole.

    Raises: OptionError for a text without words.
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
    """Split lines into words and punctuation marks; characters in scripts without spaces."""
    units: list[Unit] = []
    lead = " " if tokenizer.splits_on_spaces else ""
    for number, line in enumerate(lines):
        words, tokens = tokenizer.split_to_word_tokens(tokenizer.encode(lead + line.text))
        times = _times(line, words)
        for word, ids, span in zip(words, tokens, times, strict=True):
            units.append(Unit(number, word, tuple(ids), letters_of(word), span))
    return units


def _times(line: Line, words: Sequence[str]) -> Sequence[tuple[float, float] | None]:
    """Interpolate the times of a line's words by letters."""
    if line.segment is None:
        return [None] * len(words)
    spans = _letter_spans(line.segment)
    lengths = [len(letters_of(word)) for word in words]
    total = max(1, sum(lengths))
    times, done = [], 0
    for length in lengths:
        times.append((_time_at(spans, done / total), _time_at(spans, (done + length) / total)))
        done += length
    return times


def _letter_spans(segment: Segment) -> list[tuple[float, float, int]]:
    words = [(word.start, word.end, len(letters_of(word.word))) for word in segment.words or ()]
    return [word for word in words if word[2]] or [(segment.start, segment.end, 1)]


def _time_at(spans: Sequence[tuple[float, float, int]], share: float) -> float:
    left = share * sum(n for _, _, n in spans)
    for start, end, n_letters in spans:
        if left <= n_letters:
            return start + (end - start) * left / n_letters
        left -= n_letters
    return spans[-1][1]
