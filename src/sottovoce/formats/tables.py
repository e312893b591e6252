"""Tables, one segment a row, times in whole milliseconds: tab-separated and comma-separated."""

from __future__ import annotations

import csv
import io

from sottovoce.formats.base import TranscriptInfo
from sottovoce.formats.subtitles import milliseconds
from sottovoce.types import Segment


class TsvWriter:
    """Columns start, end, text, and translation where there is one.

    Source: openai-whisper's `WriteTSV`; line breaks become spaces too.
    """

    extension = "tsv"

    def begin(self, info: TranscriptInfo) -> str:
        return "start\tend\ttext" + ("\ttranslation" if info.translation else "") + "\n"

    def segment(self, segment: Segment) -> str:
        start, end, text = milliseconds(segment.start), milliseconds(segment.end), _flat(segment.text)
        text = text.replace("\t", " ")
        if segment.translation is not None:
            text += "\t" + _flat(segment.translation).replace("\t", " ")
        return f"{start}\t{end}\t{text}\n"

    def end(self, info: TranscriptInfo) -> str:
        return ""


class CsvWriter:
    """Columns start, end, language, speaker, text, and translation where there is one.

    Quoted as RFC 4180 says, lines ended by \\n.
    """

    extension = "csv"

    def begin(self, info: TranscriptInfo) -> str:
        return _row(
            "start", "end", "language", "speaker", "text", *(["translation"] if info.translation else [])
        )

    def segment(self, segment: Segment) -> str:
        start, end = (str(milliseconds(t)) for t in (segment.start, segment.end))
        more = [] if segment.translation is None else [_flat(segment.translation)]
        return _row(start, end, segment.language, segment.speaker or "", _flat(segment.text), *more)

    def end(self, info: TranscriptInfo) -> str:
        return ""


def _flat(text: str) -> str:
    return " ".join(text.strip().splitlines())


def _row(*cells: str) -> str:
    line = io.StringIO(newline="")
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
