"""Writers of line-based formats: txt, tsv, csv, lrc, Audacity labels, RTTM, and Praat's TextGrid."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sottovoce.formats.base import TranscriptInfo
from sottovoce.formats.subtitles import behind_speaker, milliseconds
from sottovoce.types import Segment, Turn


class LineWriter:
    extension = ""

    def begin(self, info: TranscriptInfo) -> str:
        return ""

    def segment(self, segment: Segment) -> str:
        raise NotImplementedError

    def end(self, info: TranscriptInfo) -> str:
        return ""


class TxtWriter(LineWriter):
    """Plain text: one segment a line, with its speaker in front and its translation on the next line.

    Source: openai-whisper's `WriteTXT`.
    """

    extension = "txt"

    def segment(self, segment: Segment) -> str:
        translation = "" if segment.translation is None else segment.translation.strip() + "\n"
        return behind_speaker(segment.speaker, segment.text.strip()) + "\n" + translation


class TsvWriter(LineWriter):
    """Tab-separated columns start, end (milliseconds), text, and translation if any.

    Source: openai-whisper's `WriteTSV`; line breaks become spaces too.
    """

    extension = "tsv"
    _is_translated: bool

    def begin(self, info: TranscriptInfo) -> str:
        self._is_translated = info.translation is not None
        return "start\tend\ttext" + ("\ttranslation" if self._is_translated else "") + "\n"

    def segment(self, segment: Segment) -> str:
        start, end, text = milliseconds(segment.start), milliseconds(segment.end), _flat(segment.text)
        text = text.replace("\t", " ")
        if self._is_translated:
            text += "\t" + _flat(segment.translation or "").replace("\t", " ")
        return f"{start}\t{end}\t{text}\n"


class CsvWriter(LineWriter):
    """Columns start, end (milliseconds), language, speaker, text, and translation if any.

    Quoted as in RFC 4180, with lines ended by LF.
    """

    extension = "csv"
    _is_translated: bool

    def begin(self, info: TranscriptInfo) -> str:
        self._is_translated = info.translation is not None
        return _row("start", "end", "language", "speaker", "text", *["translation"] * self._is_translated)

    def segment(self, segment: Segment) -> str:
        start, end = (str(milliseconds(t)) for t in (segment.start, segment.end))
        more = [_flat(segment.translation or "")] if self._is_translated else []
        return _row(start, end, segment.language, segment.speaker or "", _flat(segment.text), *more)


class LrcWriter(LineWriter):
    """Simple LRC lyrics: each line after the time of its first word; minutes may exceed 60.

    An empty line marks the end. Source: whisper.cpp (`examples/cli`, `output_lrc`).
    """

    extension = "lrc"
    _last_end: float

    def begin(self, info: TranscriptInfo) -> str:
        self._last_end = 0.0
        return "[by:sottovoce]\n"

    def segment(self, segment: Segment) -> str:
        self._last_end = max(self._last_end, segment.end)
        start = segment.words[0].start if segment.words else segment.start
        text = behind_speaker(segment.speaker, segment.text.strip())
        lines = [text] if segment.translation is None else [text, segment.translation]
        return "".join(f"[{_lrc_time(start)}]{' '.join(line.split())}\n" for line in lines)

    def end(self, info: TranscriptInfo) -> str:
        return f"[{_lrc_time(self._last_end)}]\n" if self._last_end else ""


class LabelsWriter(LineWriter):
    """Audacity's labels, one a segment, tab-separated: start and end in seconds, speaker and text.

    Source: Audacity's manual, "Importing and Exporting Labels".
    """

    extension = "labels.txt"

    def segment(self, segment: Segment) -> str:
        text = f"{segment.speaker}: {segment.text.strip()}" if segment.speaker else segment.text
        if segment.translation:
            text += f" | {segment.translation}"
        # A line that begins with a backslash carries frequencies; a label's line begins with a number.
        return f"{segment.start:.6f}\t{segment.end:.6f}\t{' '.join(text.split())}\n"


class RttmWriter(LineWriter):
    """Speaker turns, one a line, overlaps included; without turns, the speakers of segments.

    Source: NIST, The Rich Transcription 2009 evaluation plan, appendix A.
    """

    extension = "rttm"
    _segments: list[Turn]

    def begin(self, info: TranscriptInfo) -> str:
        self._segments = []
        return ""

    def segment(self, segment: Segment) -> str:
        if segment.speaker:
            self._segments.append(Turn(segment.start, segment.end, segment.speaker))
        return ""

    def end(self, info: TranscriptInfo) -> str:
        turns = info.turns or self._segments
        recording = rttm_field((info.source or "recording").rpartition(".")[0] or info.source or "recording")
        return "".join(
            f"SPEAKER {recording} 1 {turn.start:.3f} {max(0.0, turn.end - turn.start):.3f} <NA> <NA> "
            f"{rttm_field(turn.speaker)} <NA> <NA>\n"
            for turn in turns
        )


def rttm_field(text: str) -> str:
    return "_".join(text.split()) or "_"


def _flat(text: str) -> str:
    return " ".join(text.strip().splitlines())


def _row(*cells: str) -> str:
    line = io.StringIO(newline="")
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _lrc_time(seconds: float) -> str:
    minutes, hundredths = divmod(round(seconds * 100), 6000)
    return f"{minutes:02d}:{hundredths // 100:02d}.{hundredths % 100:02d}"


SHORTEST_S = 0.001
"""Praat has no empty intervals, but Whisper writes words without duration."""


@dataclass(frozen=True, slots=True)
class Interval:
    start: float
    end: float
    text: str


class TextGridWriter(LineWriter):
    """Writes tiers of segments, of words if they have times, and of speakers if known.

    Intervals tile a tier: an overlapping one begins at the end of the one before. Source: Praat's manual,
    "TextGrid file formats" (the long text format, UTF-8).
    """

    extension = "TextGrid"
    _tiers: dict[str, list[Interval]]

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
        return head + "".join(tier(i, name, placed[name], last) for i, name in enumerate(placed, start=1))

    def _add(self, name: str, start: float, end: float, text: str) -> None:
        if text.strip():
            self._tiers.setdefault(name, []).append(Interval(start, end, " ".join(text.split())))


def tidy(intervals: Iterable[Interval]) -> list[Interval]:
    placed: list[Interval] = []
    for interval in intervals:
        start = max(round(interval.start, 3), placed[-1].end if placed else 0.0)
        placed.append(Interval(start, max(round(interval.end, 3), start + SHORTEST_S), interval.text))
    return placed


def tiled(intervals: Sequence[Interval], last: float) -> list[Interval]:
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
    tiles = tiled(intervals, last)
    head = (
        f'    item [{number}]:\n        class = "IntervalTier"\n        name = "{name}"\n'
        f"        xmin = 0\n        xmax = {last:.6f}\n        intervals: size = {len(tiles)}\n"
    )
    return head + "".join(entry(index, tile) for index, tile in enumerate(tiles, start=1))


def entry(index: int, tile: Interval) -> str:
    text = tile.text.replace('"', '""')
    return (
        f"        intervals [{index}]:\n            xmin = {tile.start:.6f}\n"
        f'            xmax = {tile.end:.6f}\n            text = "{text}"\n'
    )
