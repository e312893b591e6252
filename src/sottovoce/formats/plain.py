"""Writers of line-based formats: txt, tsv, csv, lrc, Audacity labels, RTTM and Praat's TextGrid; and of XML:
TTML, for television and streaming, and EAF, for the annotation program ELAN.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TypeAlias, TypeVar

from sottovoce.errors import OptionError
from sottovoce.formats.output import TranscriptInfo, Writer
from sottovoce.formats.subtitles import Cue, CueWriter, behind_speaker, milliseconds, timestamp
from sottovoce.options.transcribe import WriterOptions
from sottovoce.text.files import read_lines
from sottovoce.types import Segment, Turn


class TxtWriter(Writer):
    """Plain text: one segment a line, with its speaker in front and its translation on the next line.

    Source: openai-whisper's `WriteTXT`.
    """

    extension = "txt"

    def segment(self, segment: Segment) -> str:
        translation = "" if segment.translation is None else segment.translation.strip() + "\n"
        return behind_speaker(segment.speaker, segment.text.strip()) + "\n" + translation


class _RowWriter(Writer):
    _info: TranscriptInfo
    columns: tuple[str, ...]

    def begin(self, info: TranscriptInfo) -> str:
        self._info = info
        return self._row([*self.columns, "translation"])

    def segment(self, segment: Segment) -> str:
        cells = {
            "start": str(milliseconds(segment.start)),
            "end": str(milliseconds(segment.end)),
            "language": segment.language,
            "speaker": segment.speaker or "",
            "text": _flat(segment.text),
        }
        return self._row([*(cells[name] for name in self.columns), _flat(segment.translation or "")])

    def _row(self, cells: list[str]) -> str:
        return self.line(cells if self._info.translation is not None else cells[:-1])

    def line(self, cells: Sequence[str]) -> str:
        raise NotImplementedError


class TsvWriter(_RowWriter):
    """Tab-separated columns start, end (milliseconds), text, and translation if any.

    Source: openai-whisper's `WriteTSV`; line breaks become spaces too.
    """

    extension = "tsv"
    columns = ("start", "end", "text")

    def line(self, cells: Sequence[str]) -> str:
        return "\t".join(cell.replace("\t", " ") for cell in cells) + "\n"


class CsvWriter(_RowWriter):
    """Columns start, end (milliseconds), language, speaker, text, and translation if any.

    Quoted as in RFC 4180, with lines ended by LF.
    """

    extension = "csv"
    columns = ("start", "end", "language", "speaker", "text")

    def line(self, cells: Sequence[str]) -> str:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerow(cells)
        return text.getvalue()


class LrcWriter(CueWriter):
    """Simple LRC lyrics: each line after the time of its first word; minutes may exceed 60.

    An empty line marks the end. Source: whisper.cpp (`examples/cli`, `output_lrc`).
    """

    extension = "lrc"
    _last_end: float

    def __init__(self) -> None:
        super().__init__(WriterOptions(layout="segments"))

    def begin(self, info: TranscriptInfo) -> str:
        self._last_end = 0.0
        return super().begin(info) + "[by:sottovoce]\n"

    def segment(self, segment: Segment) -> str:
        self._last_end = max(self._last_end, segment.end)
        return super().segment(segment)

    def render(self, cue: Cue) -> str:
        lines = behind_speaker(cue.speaker, cue.text).splitlines()
        return "".join(f"[{_lrc_time(cue.start)}]{' '.join(line.split())}\n" for line in lines)

    def end(self, info: TranscriptInfo) -> str:
        return super().end(info) + (f"[{_lrc_time(self._last_end)}]\n" if self._last_end else "")


class LabelsWriter(Writer):
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


class WholeWriter(Writer):
    """The base of formats that are written at the end: it keeps the segments."""

    _segments: list[Segment]

    def begin(self, info: TranscriptInfo) -> str:
        self._segments = []
        return ""

    def segment(self, segment: Segment) -> str:
        self._segments.append(segment)
        return ""


class RttmWriter(WholeWriter):
    """Speaker turns, one a line, overlaps included; without turns, the speakers of segments.

    Source: NIST, The Rich Transcription 2009 evaluation plan, appendix A.
    """

    extension = "rttm"

    def end(self, info: TranscriptInfo) -> str:
        turns = info.turns or [
            Turn(segment.start, segment.end, segment.speaker) for segment in self._segments if segment.speaker
        ]
        recording = _rttm_field((info.source or "recording").rpartition(".")[0] or info.source or "recording")
        return "".join(
            f"SPEAKER {recording} 1 {turn.start:.3f} {max(0.0, turn.end - turn.start):.3f} <NA> <NA> "
            f"{_rttm_field(turn.speaker)} <NA> <NA>\n"
            for turn in sorted(turns, key=lambda turn: turn.start)
        )


def read_rttm(path: str | Path) -> list[Turn]:
    """Read the speaker turns of an RTTM file. Raises: OptionError with the line of anything else."""
    turns = []
    for number, line in enumerate(read_lines(path, "an RTTM file"), start=1):
        fields = line.split()
        if not fields or fields[0] != "SPEAKER":  # other types of lines describe the file
            continue
        try:
            start, duration, speaker = float(fields[3]), float(fields[4]), fields[7]
        except (IndexError, ValueError):
            raise OptionError(f"{path}: line {number}: expected a turn of RTTM, got '{line:.60}'") from None
        turns.append(Turn(start, start + duration, speaker))
    return turns


def _rttm_field(text: str) -> str:
    return "_".join(text.split()) or "_"


def _flat(text: str) -> str:
    return " ".join(text.strip().splitlines())


def _lrc_time(seconds: float) -> str:
    minutes, hundredths = divmod(round(seconds * 100), 6000)
    return f"{minutes:02d}:{hundredths // 100:02d}.{hundredths % 100:02d}"


STEP_S = 0.001
"""Times are milliseconds. Praat has no empty intervals, but Whisper writes words without duration."""
MOST_SHIFT_S = 0.01
"""Half of Whisper's step of time: an interval may begin this much later, behind the one before."""
Interval: TypeAlias = tuple[float, float, str]


class TextGridWriter(WholeWriter):
    """Writes tiers of segments, words and translations, for each speaker: "A - words".

    Intervals that overlap have a further tier: "A - words 2". Source: Praat's manual, "TextGrid file formats"
    (the long text format, UTF-8).
    """

    extension = "TextGrid"

    def end(self, info: TranscriptInfo) -> str:
        tiers = [(name, tier) for _, name, tier in speaker_tiers(self._segments)] or [("segments", [])]
        ends = [intervals[-1][1] for _, intervals in tiers if intervals]
        last = max([STEP_S, round(info.duration or 0.0, 3), *ends])
        head = (
            'File type = "ooTextFile"\nObject class = "TextGrid"\n\n'
            f"xmin = 0\nxmax = {last:.6f}\ntiers? <exists>\nsize = {len(tiers)}\nitem []:\n"
        )
        return head + "".join(_tier(n, *tier, last) for n, tier in enumerate(tiers, start=1))


def speaker_tiers(segments: Sequence[Segment]) -> Iterator[tuple[str, str, list[Interval]]]:
    """Yield the tiers of each speaker: speaker or "", name, and intervals in seconds that do not overlap."""
    for speaker in dict.fromkeys(segment.speaker for segment in segments):
        named = " ".join((speaker or "").split())
        for name, tier in _tiers([segment for segment in segments if segment.speaker == speaker]):
            yield named, f"{named} - {name}" if named else name, tier


def _tiers(segments: Sequence[Segment]) -> Iterator[tuple[str, list[Interval]]]:
    kinds: dict[str, list[list[Interval]]] = {"segments": [], "words": [], "translations": []}
    for apart in _without_overlaps([(segment.start, segment.end, segment) for segment in segments]):
        row = [segment for _, _, segment in apart]
        words = [word for segment in row for word in segment.words or ()]
        kinds["segments"] += _texts_apart([(each.start, each.end, each.text) for each in row])
        kinds["words"] += _texts_apart([(each.start, each.end, each.word) for each in words])
        kinds["translations"] += _texts_apart(
            [(each.start, each.end, each.translation or "") for each in row]
        )
    for kind, tiers in kinds.items():
        for number, tier in enumerate(tiers, start=1):
            yield f"{kind} {number}" if number > 1 else kind, tier


def _texts_apart(intervals: Sequence[Interval]) -> list[list[Interval]]:
    texts = ((start, end, " ".join(text.split())) for start, end, text in intervals)
    return _without_overlaps([interval for interval in texts if interval[2]])


T = TypeVar("T")


def _without_overlaps(intervals: Sequence[tuple[float, float, T]]) -> list[list[tuple[float, float, T]]]:
    rows: list[list[tuple[float, float, T]]] = []
    for start, end, content in sorted(intervals, key=lambda interval: interval[0]):
        start, end = round(start, 3), round(end, 3)
        row = next((row for row in rows if row[-1][1] <= start + MOST_SHIFT_S), [])
        if row:
            start = max(start, row[-1][1])
        else:
            rows.append(row)
        row.append((start, max(end, start + STEP_S), content))
    return rows


def _tier(number: int, name: str, intervals: Sequence[Interval], last: float) -> str:
    tiles: list[Interval] = []
    at = 0.0
    for interval in [*intervals, (last, last, "")]:
        if interval[0] - at > STEP_S / 2:
            tiles.append((at, interval[0], ""))
        if interval[2]:
            tiles.append(interval)
        at = interval[1]
    head = (
        f'    item [{number}]:\n        class = "IntervalTier"\n        name = {_quoted(name)}\n'
        f"        xmin = 0\n        xmax = {last:.6f}\n        intervals: size = {len(tiles)}\n"
    )
    entries = [
        f"        intervals [{index}]:\n            xmin = {start:.6f}\n"
        f"            xmax = {end:.6f}\n            text = {_quoted(text)}\n"
        for index, (start, end, text) in enumerate(tiles, start=1)
    ]
    return head + "".join(entries)


def _quoted(text: str) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


_INVALID_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold."""
_UNDERLINED = re.compile("<u>(.*?)</u>", re.DOTALL)
XML_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'


def xml_text(text: str) -> str:
    return escape(_INVALID_XML.sub("\ufffd", text), quote=False)


def _attribute(text: str) -> str:
    return '"' + escape(_INVALID_XML.sub("\ufffd", text)) + '"'


class TtmlWriter(CueWriter):
    """TTML of the profile IMSC 1.1 Text; each cue has the code of its language.

    Source: https://www.w3.org/TR/ttml-imsc1.1/.
    """

    extension = "ttml"

    def begin(self, info: TranscriptInfo) -> str:
        place, side = ("top", "before") if self.options.at_top else ("bottom", "after")
        return super().begin(info) + (
            f'{XML_HEAD}<tt xmlns="http://www.w3.org/ns/ttml" xmlns:tts="http://www.w3.org/ns/ttml#styling"\n'
            '    xmlns:ttp="http://www.w3.org/ns/ttml#parameter" ttp:timeBase="media"\n'
            '    ttp:contentProfiles="http://www.w3.org/ns/ttml/profile/imsc1.1/text"\n'
            '    xml:lang="">\n'
            f'<head><layout><region xml:id="{place}" tts:origin="10% 10%" tts:extent="80% 80%"\n'
            f'    tts:displayAlign="{side}" tts:textAlign="center"/></layout></head>\n'
            f'<body region="{place}"><div>\n'
        )

    def escape(self, text: str) -> str:
        return xml_text(text)

    def render(self, cue: Cue) -> str:
        start, end = (timestamp(t, marker=".", hours=True) for t in (cue.start, cue.end))
        text = behind_speaker(cue.speaker and xml_text(cue.speaker), cue.text)
        text = _UNDERLINED.sub(r'<span tts:textDecoration="underline">\1</span>', text)
        code = f' xml:lang="{cue.language}"' if cue.language else ""
        return f'<p begin="{start}" end="{end}"{code}>{text.replace(chr(10), "<br/>")}</p>\n'

    def end(self, info: TranscriptInfo) -> str:
        return super().end(info) + "</div></body></tt>\n"


class EafWriter(WholeWriter):
    """ELAN's annotations: the tiers of `TextGridWriter`, without gaps; ELAN asks for the recording.

    Source: EAF 3.0, mpi.nl/tools/elan.
    """

    extension = "eaf"

    def end(self, info: TranscriptInfo) -> str:
        slots: list[str] = []
        tiers: list[str] = []
        for speaker, name, intervals in speaker_tiers(self._segments):
            annotations = []
            for start, end, text in intervals:
                n_slots, identifier = len(slots), len(slots) // 2
                slots += [
                    f'<TIME_SLOT TIME_SLOT_ID="ts{n_slots + place}" TIME_VALUE="{milliseconds(at)}"/>\n'
                    for place, at in enumerate((start, end))
                ]
                annotations.append(
                    f'<ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="a{identifier}" '
                    f'TIME_SLOT_REF1="ts{n_slots}" TIME_SLOT_REF2="ts{n_slots + 1}">'
                    f"<ANNOTATION_VALUE>{xml_text(text)}</ANNOTATION_VALUE>"
                    "</ALIGNABLE_ANNOTATION></ANNOTATION>\n"
                )
            who = f" PARTICIPANT={_attribute(speaker)}" if speaker else ""
            head = f'<TIER LINGUISTIC_TYPE_REF="text"{who} TIER_ID={_attribute(name)}>\n'
            tiers += [head, *annotations, "</TIER>\n"]
        return (
            f'{XML_HEAD}<ANNOTATION_DOCUMENT AUTHOR="" DATE="1970-01-01T00:00:00Z" FORMAT="3.0"'
            ' VERSION="3.0"\n    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"\n'
            '    xsi:noNamespaceSchemaLocation="http://www.mpi.nl/tools/elan/EAFv3.0.xsd">\n'
            '<HEADER MEDIA_FILE="" TIME_UNITS="milliseconds"/>\n'
            f"<TIME_ORDER>\n{''.join(slots)}</TIME_ORDER>\n{''.join(tiers)}"
            '<LINGUISTIC_TYPE GRAPHIC_REFERENCES="false" LINGUISTIC_TYPE_ID="text" TIME_ALIGNABLE="true"/>\n'
            "</ANNOTATION_DOCUMENT>\n"
        )
