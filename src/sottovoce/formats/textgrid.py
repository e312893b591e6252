"""Writer of Praat's TextGrid: segments, words and speakers as tiers of intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sottovoce.formats.base import TranscriptInfo
from sottovoce.types import Segment

SHORTEST_S = 0.001
"""Praat knows no interval without a length, and Whisper writes words that have none."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Start and end in seconds, and text; empty between texts."""

    start: float
    end: float
    text: str


class TextGridWriter:
    """Writes a tier of segments, one of words where they have times, and one of speakers where there are any.

    The number of intervals and the end stand at the head, so all segments are held. Intervals of a tier tile
    it: where they overlap, the later one begins at the end of the one before.
    Source: Praat's manual, "TextGrid file formats" (the long text format, UTF-8).
    """

    extension = "TextGrid"

    def __init__(self) -> None:
        self._tiers: dict[str, list[Interval]] = {}

    def begin(self, info: TranscriptInfo) -> str:
        self._tiers = {"segments": []}
        return ""

    def segment(self, segment: Segment) -> str:
        self._add("segments", segment.start, segment.end, segment.text)
        for word in segment.words or ():
            self._add("words", word.start, word.end, word.word)
        if segment.speaker:
            self._add("speakers", segment.start, segment.end, segment.speaker)
        if segment.translation:
            self._add("translations", segment.start, segment.end, segment.translation)
        return ""

    def end(self, info: TranscriptInfo) -> str:
        placed = {name: tidy(intervals) for name, intervals in self._tiers.items()}
        last = max([SHORTEST_S, round(info.duration or 0.0, 3), *(t[-1].end for t in placed.values() if t)])
        head = (
            'File type = "ooTextFile"\nObject class = "TextGrid"\n\n'
            f"xmin = 0\nxmax = {last:.6f}\ntiers? <exists>\nsize = {len(placed)}\nitem []:\n"
        )
        tiers = [tier(number, name, placed[name], last) for number, name in enumerate(placed, start=1)]
        self._tiers = {}
        return head + "".join(tiers)

    def _add(self, name: str, start: float, end: float, text: str) -> None:
        if text.strip():
            self._tiers.setdefault(name, []).append(Interval(start, end, " ".join(text.split())))


def tidy(intervals: Iterable[Interval]) -> list[Interval]:
    """Round intervals to milliseconds, without overlaps and without empty durations."""
    placed: list[Interval] = []
    for interval in intervals:
        start = max(round(interval.start, 3), placed[-1].end if placed else 0.0)
        placed.append(Interval(start, max(round(interval.end, 3), start + SHORTEST_S), interval.text))
    return placed


def tiled(intervals: Sequence[Interval], last: float) -> list[Interval]:
    """Fill the gaps between intervals with empty ones, from 0 to `last`."""
    tiles: list[Interval] = []
    at = 0.0
    for interval in [*intervals, Interval(last, last, "")]:
        if interval.start - at > SHORTEST_S / 2:
            tiles.append(Interval(at, interval.start, ""))
        if interval.text:
            tiles.append(interval)
        at = interval.end
    return tiles


def tier(number: int, name: str, intervals: Sequence[Interval], last: float) -> str:
    """Format one tier of the file."""
    tiles = tiled(intervals, last)
    head = (
        f'    item [{number}]:\n        class = "IntervalTier"\n        name = "{name}"\n'
        f"        xmin = 0\n        xmax = {last:.6f}\n        intervals: size = {len(tiles)}\n"
    )
    return head + "".join(entry(index, tile) for index, tile in enumerate(tiles, start=1))


def entry(index: int, tile: Interval) -> str:
    """Format one interval of a tier; a quote inside a text is doubled."""
    text = tile.text.replace('"', '""')
    return (
        f"        intervals [{index}]:\n            xmin = {tile.start:.6f}\n"
        f'            xmax = {tile.end:.6f}\n            text = "{text}"\n'
    )
