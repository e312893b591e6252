"""Phrase search: the most similar stretches of a transcript, compared by letters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sottovoce.alignment.forced import letters_of
from sottovoce.errors import OptionError
from sottovoce.text.languages import UNSPACED, UNSPACED_LETTERS
from sottovoce.text.normalize import plain
from sottovoce.types import Segment, Transcript, Word

JOINING = 0.25
"""Cost of one word written as two, or two as one."""
_UNIT = re.compile(rf"[{UNSPACED_LETTERS}]|[^\s{UNSPACED_LETTERS}]+")
"""A letter of a script without spaces, else a word."""


@dataclass(frozen=True, slots=True)
class Match:
    """An occurrence of a phrase, in seconds, with a similarity of up to 1."""

    start: float
    end: float
    text: str
    score: float
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class _PlacedUnit:
    letters: str
    word: Word


def find_phrase(transcript: Transcript, phrase: str, *, least_score: float = 0.7) -> list[Match]:
    """Find the occurrences of a phrase, in order, without overlaps.

    least_score: 1 requires the same letters, 0.7 lets three of ten differ.
    Raises: OptionError for a phrase without letters, or a score out of range.
    """
    if not 0.0 < least_score <= 1.0:
        raise OptionError(f"least_score: expected above 0 up to 1, got {least_score}")
    apart = transcript.language in UNSPACED
    wanted = _units(phrase, apart)
    if not wanted:
        raise OptionError(f"phrase: expected letters or digits to look for, got {phrase!r}")
    placed = [unit for segment in transcript.segments for unit in _placed_units(segment, apart)]
    hits = [hit for hit in _ends(wanted, [unit.letters for unit in placed]) if hit[0] >= least_score]
    return [_match(placed[first:end], score) for score, first, end in _apart(hits)]


def _units(text: str, apart: bool) -> list[str]:
    return list(letters_of(text)) if apart else _UNIT.findall(plain(text))


def _placed_units(segment: Segment, apart: bool) -> Iterator[_PlacedUnit]:
    for word in segment.words or _shares(segment):
        units = _units(word.word, apart)
        if len(units) == 1:
            yield _PlacedUnit(units[0], word)
            continue
        start, a_letter = word.start, (word.end - word.start) / max(1, sum(map(len, units)))
        for unit in units:
            end = start + a_letter * len(unit)
            yield _PlacedUnit(unit, Word(unit, start, end, word.probability, word.language, word.speaker))
            start = end


def _shares(segment: Segment) -> Iterator[Word]:
    words = segment.text.split()
    total = max(1, sum(len(word) + 1 for word in words))
    done = 0
    for word in words:
        start = segment.start + (segment.end - segment.start) * done / total
        done += len(word) + 1
        end = segment.start + (segment.end - segment.start) * done / total
        yield Word(" " + word, start, end, float("nan"), segment.language, segment.speaker)


def _ends(wanted: Sequence[str], placed: Sequence[str]) -> Iterator[tuple[float, int, int]]:
    """Yield the best stretch that ends with each word: score, first word, end.

    Edit distance with a free start; words weigh by their letters.
    """
    weights = [len(word) for word in wanted]
    total = sum(weights)
    start: list[tuple[float, int]] = [(0.0, 0)]
    for weight in weights:
        start.append((start[-1][0] + weight, 0))
    columns = [start]
    for j, word in enumerate(placed, 1):
        column: list[tuple[float, int]] = [(0.0, j)]
        for i, sought in enumerate(wanted, 1):
            weight = weights[i - 1]
            steps = [
                _add(columns[j - 1][i - 1], weight * unlikeness(sought, word)),
                _add(columns[j - 1][i], len(word)),
                _add(column[i - 1], weight),
            ]
            if j > 1:
                two = unlikeness(sought, placed[j - 2] + word)
                steps.append(_add(columns[j - 2][i - 1], weight * two + JOINING))
            if i > 1:
                two = unlikeness(wanted[i - 2] + sought, word)
                steps.append(_add(columns[j - 1][i - 2], (weight + weights[i - 2]) * two + JOINING))
            column.append(min(steps))
        columns.append(column)
        cost, first = column[-1]
        if first < j:
            yield max(0.0, 1 - cost / total), first, j
        if j > 2:
            columns[j - 2] = []  # no longer needed


def _add(cell: tuple[float, int], cost: float) -> tuple[float, int]:
    return cell[0] + cost, cell[1]


def _apart(hits: Sequence[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    chosen: list[tuple[float, int, int]] = []
    for hit in sorted(hits, key=lambda hit: (-hit[0], hit[2] - hit[1], hit[1])):
        if all(hit[2] <= other[1] or hit[1] >= other[2] for other in chosen):
            chosen.append(hit)
    return sorted(chosen, key=lambda hit: hit[1])


def _match(placed: Sequence[_PlacedUnit], score: float) -> Match:
    words = tuple(unit.word for unit in placed)
    text = "".join(word.word for word in words).strip()
    return Match(words[0].start, words[-1].end, text, round(score, 3), words)


@lru_cache(maxsize=100_000)
def unlikeness(first: str, second: str) -> float:
    """Return the edit distance over the length of the longer word: 0 to 1."""
    if first == second:
        return 0.0
    if not first or not second:
        return 1.0
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(second, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != other))
    return row[-1] / max(len(first), len(second))
