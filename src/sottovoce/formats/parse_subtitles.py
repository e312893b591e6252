"""Parse subtitles into a transcript: SubRip, which has no specification, and WebVTT by its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from html import unescape

from sottovoce.types import Segment, Transcript

_TIME = r"(?:(\d+):)?(\d{1,2}):(\d{2})[.,](\d{1,3})"
_CUE = re.compile(rf"^\s*{_TIME}\s+-->\s+{_TIME}.*$")
_TAG = re.compile(r"</?(?:[a-zA-Z][^>]*|\d[\d:.]*)>|\{\\[^}]*\}")
_VTT_TAG = re.compile(r"<[^>]*>")
_VOICE = re.compile(r"<v(?:\.[^\s>]*)?[ \t\n\f]+([^>]+)>")


def transcript_of_cues(text: str) -> Transcript:
    """Parse subtitles: a segment a cue, with its speaker where WebVTT names one.

    Raises: ValueError where there is no cue.
    """
    read = _of_vtt if text.startswith("WEBVTT") else _of_srt
    segments = tuple(
        Segment(number, start, end, " " + line, "", speaker=speaker)
        for number, (start, end, (line, speaker)) in enumerate(_cues(text, read))
    )
    if not segments and text.strip() and "-->" not in text and not text.startswith("WEBVTT"):
        raise ValueError("no line with '-->'")
    return Transcript(segments, "", max((segment.end for segment in segments), default=0.0), "")


def _of_srt(lines: Sequence[str]) -> tuple[str, str | None]:
    """Remove the tags that players know; speakers are not marked."""
    return _joined(_TAG.sub("", line) for line in lines), None


def _of_vtt(lines: Sequence[str]) -> tuple[str, str | None]:
    """Remove tags, resolve character references, and find the speaker, where a cue has one.

    Source: https://www.w3.org/TR/webvtt1/, sections 6.4 and 6.5.
    """
    cue = "\n".join(lines)
    voices = list(dict.fromkeys(" ".join(unescape(name).split()) for name in _VOICE.findall(cue)))
    plain_text = _joined(unescape(_VTT_TAG.sub("", cue)).splitlines())
    return plain_text, (voices[0] or None) if len(voices) == 1 else None


def _joined(lines: Iterator[str] | Sequence[str]) -> str:
    return " ".join(line.strip() for line in lines).strip()


def _cues(
    text: str, read: Callable[[Sequence[str]], tuple[str, str | None]]
) -> Iterator[tuple[float, float, tuple[str, str | None]]]:
    """Yield start, end, and text with speaker; cues without text are left out."""
    for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n").replace("\r", "\n")):
        lines = block.split("\n")
        marks = [(number, found) for number, line in enumerate(lines) if (found := _CUE.match(line))]
        if not marks:
            continue
        number, found = marks[0]
        text_and_speaker = read(lines[number + 1 :])
        if text_and_speaker[0]:
            numbers = found.groups()
            yield _clock(numbers[:4]), _clock(numbers[4:]), text_and_speaker


def _clock(numbers: Sequence[str | None]) -> float:
    hours, minutes, seconds, fraction = (part or "0" for part in numbers)
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds) + int(fraction.ljust(3, "0")) / 1000
