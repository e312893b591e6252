"""Transcripts that were written: our JSON, that of openai-whisper and whisper.cpp, SubRip and WebVTT."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.errors import OptionError, cause_of
from sottovoce.types import Segment, Transcript, Word

READABLE = (".json", ".srt", ".vtt")
"""Endings of the files that are transcripts rather than text."""
_TIME = r"(?:(\d+):)?(\d{1,2}):(\d{2})[.,](\d{1,3})"
_CUE = re.compile(rf"^\s*{_TIME}\s+-->\s+{_TIME}.*$")
_TAG = re.compile(r"</?(?:[a-zA-Z][^>]*|\d[\d:.]*)>|\{\\[^}]*\}")


def read_transcript(path: str | Path) -> Transcript:
    """The transcript of a file whose ending is one of `READABLE`.

    Raises: OptionError naming the file and what was expected.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".json":
            return _of_json(json.loads(text))
        return _of_cues(text)
    except OSError as error:
        raise OptionError(f"transcript '{path}': cannot be read ({cause_of(error)})") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"transcript '{path}': expected UTF-8, got other bytes") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        told = f"transcript '{path}': expected segments with times, got none ({_told(error)})"
        raise OptionError(told) from error


def _told(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"'{error.args[0]}' is missing"
    return str(error) if isinstance(error, ValueError) else "JSON of another shape"


def _of_json(document: Mapping[str, object]) -> Transcript:
    language = document.get("language")
    rows = document.get("segments")
    if rows is None:
        return _of_whisper_cpp(document)
    code = str(language or "")
    segments = tuple(_segment(number, row, code) for number, row in enumerate(_list(rows)))
    duration = document.get("duration")
    length = float(duration) if isinstance(duration, int | float) else _end(segments)
    return Transcript(segments, code, length, str(document.get("model") or ""))


def _segment(number: int, row: Mapping[str, object], language: str) -> Segment:
    own = str(row.get("language") or language)
    listed = _list(row.get("words") or [])
    speaker, translation = row.get("speaker"), row.get("translation")
    return Segment(
        id=number,
        start=_seconds(row["start"]),
        end=_seconds(row["end"]),
        text=str(row["text"]),
        language=own,
        words=tuple(_word(one, own) for one in listed) or None,
        speaker=None if speaker is None else str(speaker),
        translation=None if translation is None else str(translation),
    )


def _word(row: Mapping[str, object], language: str) -> Word:
    probability = row.get("probability")
    speaker = row.get("speaker")
    return Word(
        str(row["word"]),
        _seconds(row["start"]),
        _seconds(row["end"]),
        float(probability) if isinstance(probability, int | float) else float("nan"),
        language=str(row.get("language") or language),
        speaker=None if speaker is None else str(speaker),
    )


def _list(value: object) -> Sequence[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list, got {type(value).__name__}")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ValueError(f"{value!r} is no time in seconds")
    return float(value)


def _of_whisper_cpp(document: Mapping[str, object]) -> Transcript:
    """whisper.cpp writes `transcription`, with offsets in milliseconds."""
    rows = document["transcription"]
    found = document.get("result")
    code = str(found.get("language") or "") if isinstance(found, Mapping) else ""
    segments = tuple(
        Segment(
            number,
            _seconds(row["offsets"]["from"]) / 1000,
            _seconds(row["offsets"]["to"]) / 1000,
            str(row["text"]),
            code,
        )
        for number, row in enumerate(_list(rows))
    )
    return Transcript(segments, code, _end(segments), "")


def _of_cues(text: str) -> Transcript:
    segments = tuple(
        Segment(number, start, end, " " + said, "") for number, (start, end, said) in enumerate(_cues(text))
    )
    if not segments:
        raise ValueError("no line with '-->'")
    return Transcript(segments, "", _end(segments), "")


def _cues(text: str) -> Iterator[tuple[float, float, str]]:
    for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n").replace("\r", "\n")):
        lines = block.split("\n")
        marks = [(number, found) for number, line in enumerate(lines) if (found := _CUE.match(line))]
        if not marks:
            continue
        number, found = marks[0]
        said = " ".join(_TAG.sub("", line).strip() for line in lines[number + 1 :]).strip()
        if said:
            numbers = found.groups()
            yield _clock(numbers[:4]), _clock(numbers[4:]), said


def _clock(numbers: Sequence[str | None]) -> float:
    hours, minutes, seconds, fraction = (part or "0" for part in numbers)
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds) + int(fraction.ljust(3, "0")) / 1000


def _end(segments: Sequence[Segment]) -> float:
    return max((segment.end for segment in segments), default=0.0)
