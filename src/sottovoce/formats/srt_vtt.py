"""SubRip (srt), which has no specification, and WebVTT (vtt): their writers, and one parser for both.

The parser raises an error with the line where other programs skip cues that they cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import unescape

from sottovoce.formats.base import TranscriptInfo
from sottovoce.formats.subtitles import JOINER, Cue, CueWriter, behind_speaker, timestamp
from sottovoce.types import Segment, Transcript

_ARROW = re.compile("--+>")
_OPENING = re.compile(r"<|\{(?=\\|$)")
_JOINED = re.compile(f"([<{{]){JOINER}")


class SrtWriter(CueWriter):
    """SubRip: numbered cues, hours always, comma before the milliseconds.

    SubRip has no escapes, and players hide `<b>`, `<div>` and `{\\an8}`; an invisible joiner behind the first
    sign keeps them text. Source: openai-whisper's `WriteSRT`.
    """

    extension = "srt"
    _number: int

    def begin(self, info: TranscriptInfo) -> str:
        self._number = self.options.offset_n
        return super().begin(info)

    def escape(self, text: str) -> str:
        return _OPENING.sub(rf"\g<0>{JOINER}", text)

    def render(self, cue: Cue) -> str:
        self._number += 1
        start, end = (timestamp(t, marker=",", hours=True) for t in (cue.start, cue.end))
        text = _ARROW.sub("->", behind_speaker(cue.speaker and self.escape(cue.speaker), cue.text))
        return f"{self._number}\n{start} --> {end}\n{text}\n\n"


class VttWriter(CueWriter):
    """WebVTT: hours only if needed, and text escaped as in section 3.1 of the specification.

    Speakers are voices of cues (`<v A>`). Where the language changes, a comment gives the new one and its
    posterior: `NOTE language de 0.98`. Source: https://www.w3.org/TR/webvtt1/, laid out as openai-whisper's
    `WriteVTT`.
    """

    extension = "vtt"
    _language: str | None

    def begin(self, info: TranscriptInfo) -> str:
        self._language = None
        return super().begin(info) + "WEBVTT\n\n"

    def escape(self, text: str) -> str:
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return text.replace("\0", "\ufffd")

    def render(self, cue: Cue) -> str:
        start, end = (timestamp(t, marker=".", hours=False) for t in (cue.start, cue.end))
        name = " ".join((cue.speaker or "").split())
        voice = f"<v {self.escape(name)}>" if name else ""
        before, self._language = self._language, cue.language
        note = ""
        if cue.language_probability is not None and before not in (None, cue.language):
            note = f"NOTE language {cue.language} {cue.language_probability:.2f}\n\n"
        return f"{note}{start} --> {end}\n{voice}{cue.text}\n\n"


EXAMPLE = "00:00:01,000 --> 00:00:03,500"
_INVISIBLE = dict.fromkeys(map(ord, "\ufeff\u200e\u200f\u202a\u202b\u202c\u202d\u202e"))
_TIME = re.compile(
    r"(?:(?P<h>\d{1,6}) ?[:：] ?)?(?P<m>\d{1,3}) ?[:：] ?(?P<s>\d{1,2})"
    r"(?: ?[.,．，。] ?(?P<fraction>\d{1,9})| ?[:：] ?(?P<ms>\d{3}))?"
)
"""Digits after a third colon would be frames of unknown rate."""
_ANY_TIME = re.sub(r"\?P<\w+>", "?:", _TIME.pattern)
_TIMES = re.compile(
    rf"(?:\d+ )?(?P<start>{_ANY_TIME})(?P<mark>[ =–—-]*(?:>|》|→|&gt;)|[ ,;/|–—-]+) ?"
    rf"(?P<end>{_ANY_TIME})(?: (?P<rest>.+))?"
)
_WHOLE_TIME = re.compile(r"-?\d+[:：]\d+[:：]\d+[.,，]\d+")
_CLOCK = re.compile(r"\d ?[:：] ?\d")
_SETTING = re.compile(r"\S*[:=%]\S*")
_NUMBER = re.compile(r"(\d{1,9})[.:)]?")
_NO_CUE = re.compile(r"(?:WEBVTT|NOTE)(?: |$)|(?:STYLE|REGION)$")
_BREAK = re.compile(r"<br ?/?>", re.IGNORECASE)
_TAG = re.compile(r"</?(?:[a-zA-Z][^>]*|\d[\d:.]*)>|\{\\[^}]*\}")
_VTT_TAG = re.compile(r"<[^>]*>")
_VOICE = re.compile(r"<v(?:\.[^\s>]*)?[ \t\n\f]+([^>]+)>")


def transcript_of_cues(text: str) -> Transcript:
    """Parse subtitles: a segment per cue with text. Raises: ValueError with the line of anything else."""
    subtitles = _Subtitles(text)
    segments: list[Segment] = []
    for cue, lines in subtitles.cues():
        whole = "\n".join(lines)
        voices = {" ".join(unescape(name).split()) for name in _VOICE.findall(whole)}
        speaker = (voices.pop() or None) if len(voices) == 1 else None
        if subtitles.is_vtt:
            lines = unescape(_VTT_TAG.sub("", whole)).splitlines()
        else:
            lines = [_JOINED.sub(r"\1", _TAG.sub("", _BREAK.sub(" ", line))) for line in lines]
        if plain := " ".join(filter(None, map(str.strip, lines))):
            segments.append(Segment(len(segments), cue.start, cue.end, " " + plain, "", speaker=speaker))
    return Transcript(tuple(segments), "", max((segment.end for segment in segments), default=0.0), "")


def has_cues(text: str) -> bool:
    """Return whether a text is subtitles: WebVTT, or with a line of cue times."""
    lines = (" ".join(line.translate(_INVISIBLE).split()) for line in text.splitlines() if "-->" in line)
    return is_webvtt(text) or any(map(_TIMES.fullmatch, lines))


def is_webvtt(text: str) -> bool:
    return re.match(r"[\s\ufeff]*WEBVTT(?:\s|$)", text) is not None


@dataclass(frozen=True, slots=True)
class _Cue:
    """A cue by lines from 0: the head begins on line `first`; line `at` has the times."""

    first: int
    at: int
    start: float
    end: float
    number: int | None


class _Subtitles:
    def __init__(self, text: str) -> None:
        self.is_vtt = is_webvtt(text)
        for ending in ("\r\r\n", "\r\n", "\r"):
            text = text.replace(ending, "\n")
        self._lines = text.rstrip("\0\x1a").replace("\0", "\ufffd").split("\n")
        self._flat = [" ".join(line.translate(_INVISIBLE).split()) for line in self._lines]

    def cues(self) -> Iterator[tuple[_Cue, list[str]]]:
        cues: list[_Cue] = []
        for at in range(len(self._lines)):
            if span := self._times(at):
                first, number = self._head(at, cues)
                cues.append(_Cue(first, at, *span, number))
        if not (self.is_vtt and cues):  # in WebVTT, blocks of other kinds may come first
            for at, block in self._blocks(0, cues[0].first if cues else len(self._lines)):
                if any(self._flat[at : at + len(block)]):
                    raise _not_times(at, block[0])
        ends = [cue.first for cue in cues[1:]] + [len(self._lines)]
        for cue, end in zip(cues, ends, strict=False):
            yield cue, self._text(cue, end)

    def _times(self, at: int) -> tuple[float, float] | None:
        line, may_begin = self._flat[at], self._may_begin(at)
        found = _TIMES.fullmatch(line)
        if found is None:
            is_comment = self.is_vtt and self._opens(at) and _NO_CUE.match(line)
            has_arrow = "-->" in line and (may_begin or _CLOCK.search(line))
            if not is_comment and (has_arrow or (may_begin and _WHOLE_TIME.match(line))):
                raise _not_times(at, line)
            return None
        is_arrow = found["mark"].strip() == "-->"
        is_like_arrow = found["mark"].endswith((">", "》", "→", "&gt;"))
        are_whole = _WHOLE_TIME.fullmatch(found["start"]) and _WHOLE_TIME.fullmatch(found["end"])
        if not is_arrow and not (may_begin and (is_like_arrow or are_whole)):
            return None
        if not all(map(_SETTING.fullmatch, (found["rest"] or "").split())):
            raise ValueError(f"line {at + 1}: expected no text behind the times, got {_shown(found['rest'])}")
        start, end = _seconds(found["start"]), _seconds(found["end"])
        if end < start:
            raise ValueError(f"line {at + 1}: expected a cue that ends after its start, got {_shown(line)}")
        return start, end

    def _may_begin(self, at: int) -> bool:
        """Whether a cue without `-->` may begin here, as text can look like times."""
        if at == 0 or not self._flat[at - 1]:
            return True
        is_text = at >= 2 and _TIMES.fullmatch(self._flat[at - 2]) is not None
        return self._number(at - 1) is not None and not is_text

    def _head(self, at: int, before: Sequence[_Cue]) -> tuple[int, int | None]:
        lowest = before[-1].at + 1 if before else 0
        above = at - 1
        while above >= lowest and not self._flat[above]:
            above -= 1
        if above < lowest:
            return at, None
        number, opens = self._number(above), self._opens(above)
        if above < at - 1:  # files in which each line is followed by a blank one
            is_next = not before or (before[-1].number is not None and number == before[-1].number + 1)
            return (above, number) if number is not None and opens and is_next else (at, None)
        are_numbered = not before or before[0].number is not None
        if number is not None and (opens or are_numbered):
            return above, number
        return (above, None) if self.is_vtt and opens else (at, None)

    def _text(self, cue: _Cue, end: int) -> list[str]:
        text: list[str] = []
        for at, block in self._blocks(cue.at + 1, end):
            is_next = at > cue.at + 1 and cue.number is not None and self._number(at) == cue.number + 1
            if is_next and len(block) > 1:
                raise _not_times(at + 1, block[1])
            if not (is_next and end == len(self._lines) and not any(self._flat[at + 1 :])):
                text += block
        return text

    def _blocks(self, start: int, end: int) -> Iterator[tuple[int, list[str]]]:
        block: list[str] = []
        for at in range(start, end + 1):
            if at < end and not self._is_blank(at):
                block.append(self._lines[at])
            elif block:
                first = at - len(block)
                is_below_times = first == start > 0
                if is_below_times or not (self.is_vtt and _NO_CUE.match(self._flat[first])):
                    yield first, block
                block = []

    def _is_blank(self, at: int) -> bool:
        """In WebVTT a line of spaces is text, as in YouTube's captions."""
        return not (self._lines[at] if self.is_vtt else self._lines[at].strip())

    def _opens(self, at: int) -> bool:
        return at == 0 or self._is_blank(at - 1)

    def _number(self, at: int) -> int | None:
        found = _NUMBER.fullmatch(self._flat[at])
        return int(found[1]) if found else None


def _not_times(at: int, line: str) -> ValueError:
    return ValueError(f"line {at + 1}: expected times such as {EXAMPLE}, got {_shown(line)}")


def _shown(text: str) -> str:
    return repr(text.strip()[:60])


def _seconds(time: str) -> float:
    found = _TIME.fullmatch(time)
    assert found is not None
    fraction = float(f"0.{found['fraction'] or found['ms'] or 0}")
    return int(found["h"] or 0) * 3600 + int(found["m"]) * 60 + int(found["s"]) + fraction
