"""Subtitle files: SubRip (srt), which has no specification, WebVTT (vtt), and Advanced SubStation Alpha (ass)
with word times as karaoke, of which ffmpeg makes videos.

One parser reads SubRip and WebVTT. It raises an error with the line where other programs skip cues that they
cannot read.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import unescape
from itertools import groupby
from pathlib import Path

from sottovoce.errors import OptionError
from sottovoce.formats.output import TranscriptInfo, write_transcript
from sottovoce.formats.subtitles import JOINER, Cue, CueWord, CueWriter, behind_speaker, one_line, timestamp
from sottovoce.options.transcribe import WriterOptions
from sottovoce.text.files import whole_file, writing
from sottovoce.text.languages import UNSPACED_LETTERS
from sottovoce.types import Segment, Transcript

_ARROW = re.compile("--+>")
_OPENING = re.compile(r"<|\{(?=\\|$)")
_JOINED = re.compile(f"([<{{]){JOINER}")
_UNSPACED = rf"[{UNSPACED_LETTERS}\u3000-\u303f\uff00-\uff60]"
_BROKEN = re.compile(rf"(?<={_UNSPACED})\n(?={_UNSPACED})")
"""A line break where the text has no space."""


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
        position = "{\\an8}" if self.options.at_top else ""
        return f"{self._number}\n{start} --> {end}\n{position}{text}\n\n"


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
        position = " line:0" if self.options.at_top else ""
        return f"{note}{start} --> {end}{position}\n{voice}{cue.text}\n\n"


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
        if plain := _BROKEN.sub("", "\n".join(filter(None, map(str.strip, lines)))).replace("\n", " "):
            segments.append(Segment(len(segments), cue.start, cue.end, " " + plain, "", speaker=speaker))
    return Transcript(tuple(segments), "", max((segment.end for segment in segments), default=0.0), "")


def has_cues(text: str) -> bool:
    """Return whether a text is subtitles: WebVTT, or with a line of cue times."""
    lines = (" ".join(line.translate(_INVISIBLE).split()) for line in text.splitlines() if "-->" in line)
    return is_webvtt(text) or any(map(_TIMES.fullmatch, lines))


def is_webvtt(text: str) -> bool:
    return re.match(r"[\s\ufeff]*WEBVTT(?:\s|$)", text) is not None


@dataclass(frozen=True, slots=True)
class _Line:
    """A line. flat: without invisible signs and repeated spaces. opens: it is first or below a blank one."""

    number: int
    raw: str
    flat: str
    is_blank: bool
    opens: bool

    @property
    def counter(self) -> int | None:
        """The number of a cue, if the line has nothing else."""
        match = _NUMBER.fullmatch(self.flat)
        return int(match[1]) if match else None

    @property
    def is_comment(self) -> bool:
        """Whether WebVTT's title, a note or a style may begin here."""
        return _NO_CUE.match(self.flat) is not None

    def error(self) -> ValueError:
        return ValueError(f"line {self.number}: expected times such as {EXAMPLE}, got {_shown(self.flat)}")


@dataclass(frozen=True, slots=True)
class _Cue:
    """A cue. head, times: indices of the lines with its number or identifier, and with its times."""

    head: int
    times: int
    start: float
    end: float
    counter: int | None


class _Subtitles:
    """The cues of a file: lines of times, the heads above them, and the text down to the next head."""

    def __init__(self, text: str) -> None:
        self.is_vtt = is_webvtt(text)
        for ending in ("\r\r\n", "\r\n", "\r"):
            text = text.replace(ending, "\n")
        self._lines: list[_Line] = []
        opens = True
        for number, raw in enumerate(text.rstrip("\0\x1a").replace("\0", "\ufffd").split("\n"), start=1):
            # In WebVTT a line of spaces is text, as in YouTube's captions.
            is_blank = not (raw if self.is_vtt else raw.strip())
            flat = " ".join(raw.translate(_INVISIBLE).split())
            self._lines.append(_Line(number, raw, flat, is_blank, opens))
            opens = is_blank

    def cues(self) -> Iterator[tuple[_Cue, list[str]]]:
        """Yield the cues with their lines of text. Raises: ValueError for wrong times or other text."""
        cues: list[_Cue] = []
        for at in range(len(self._lines)):
            if span := self._times(at):
                head, counter = self._head(at, cues)
                cues.append(_Cue(head, at, *span, counter))
        if not (self.is_vtt and cues):  # in WebVTT, blocks of other kinds may come first
            for block in self._blocks(0, cues[0].head if cues else len(self._lines)):
                if any(line.flat for line in block):
                    raise block[0].error()
        ends = [cue.head for cue in cues[1:]] + [len(self._lines)]
        for cue, end in zip(cues, ends, strict=False):
            yield cue, self._text(cue, end)

    def _times(self, at: int) -> tuple[float, float] | None:
        """Return the times on a line, or None for text; only `-->` makes times of what stands within text."""
        line, is_below_head = self._lines[at], self._is_below_head(at)
        times = _TIMES.fullmatch(line.flat)
        if times is None:
            is_comment = self.is_vtt and line.opens and line.is_comment
            has_arrow = "-->" in line.flat and (is_below_head or _CLOCK.search(line.flat))
            if not is_comment and (has_arrow or (is_below_head and _WHOLE_TIME.match(line.flat))):
                raise line.error()
            return None
        is_like_arrow = times["mark"].endswith((">", "》", "→", "&gt;"))
        are_whole = _WHOLE_TIME.fullmatch(times["start"]) and _WHOLE_TIME.fullmatch(times["end"])
        if times["mark"].strip() != "-->" and not (is_below_head and (is_like_arrow or are_whole)):
            return None
        rest = times["rest"] or ""
        if not all(map(_SETTING.fullmatch, rest.split())):
            raise ValueError(f"line {line.number}: expected no text behind the times, got {_shown(rest)}")
        start, end = _parsed_time(times["start"]), _parsed_time(times["end"])
        if end < start:
            raise ValueError(
                f"line {line.number}: expected a cue that ends after its start, got {_shown(line.flat)}"
            )
        return start, end

    def _is_below_head(self, at: int) -> bool:
        """Whether times are expected: below a blank line, or below a number that is not the text of a cue."""
        if at == 0 or not self._lines[at - 1].flat:
            return True
        is_text = at >= 2 and _TIMES.fullmatch(self._lines[at - 2].flat) is not None
        return self._lines[at - 1].counter is not None and not is_text

    def _head(self, at: int, cues: Sequence[_Cue]) -> tuple[int, int | None]:
        """Return where the head of a cue with times at `at` begins, and its number."""
        top = cues[-1].times + 1 if cues else 0
        above = at - 1
        while above >= top and not self._lines[above].flat:
            above -= 1
        if above < top:
            return at, None
        line = self._lines[above]
        if above < at - 1:  # a blank line follows: the head of this cue only if it counts on
            counts_on = not cues or (cues[-1].counter is not None and line.counter == cues[-1].counter + 1)
            return (
                (above, line.counter) if line.counter is not None and line.opens and counts_on else (at, None)
            )
        are_numbered = not cues or cues[0].counter is not None
        if line.counter is not None and (line.opens or are_numbered):
            return above, line.counter
        return (above, None) if self.is_vtt and line.opens else (at, None)

    def _text(self, cue: _Cue, end: int) -> list[str]:
        """Return the lines of a cue, without a next number that nothing follows."""
        text: list[_Line] = []
        for block in self._blocks(cue.times + 1, end):
            first = block[0]
            is_below_times = first is self._lines[cue.times + 1]
            counts_on = not is_below_times and cue.counter is not None and first.counter == cue.counter + 1
            if counts_on and len(block) > 1:
                raise block[1].error()
            at_end = counts_on and end == len(self._lines)
            is_last = at_end and not any(line.flat for line in self._lines[first.number :])
            text += [] if is_last else block
        return [line.raw for line in text]

    def _blocks(self, start: int, end: int) -> Iterator[list[_Line]]:
        """Yield the runs of lines that are not blank, without WebVTT's comments."""
        for is_blank, run in groupby(self._lines[start:end], lambda line: line.is_blank):
            block = list(run)
            is_below_times = block[0] is self._lines[start] and start > 0
            if not is_blank and (is_below_times or not (self.is_vtt and block[0].is_comment)):
                yield block


def _shown(text: str) -> str:
    return repr(text.strip()[:60])


def _parsed_time(time: str) -> float:
    match = _TIME.fullmatch(time)
    assert match is not None
    fraction = float(f"0.{match['fraction'] or match['ms'] or 0}")
    return int(match["h"] or 0) * 3600 + int(match["m"]) * 60 + int(match["s"]) + fraction


STYLE = "Default,Arial,60,&H0000D7FF,&H00FFFFFF,&H00101010,&H80000000,0,0,0,0,100,100,0,0,1,3,1,2,80,80,60,-1"
"""White, gold (&HAABBGGRR) once spoken, at the bottom; encoding -1 detects the direction of the text."""
CENTRED = STYLE.replace(",60,&H0000D7FF", ",84,&H0000D7FF").replace(",2,80,80,60,", ",5,80,80,60,")
HEAD = """\
[Script Info]
ScriptType: v4.00+
PlayResX: 1920
PlayResY: 1080
WrapStyle: 0
ScaledBorderAndShadow: yes

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, Italic, \
Underline, StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, Alignment, MarginL, \
MarginR, MarginV, Encoding
Style: {style}
Style: {plain}

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""


class AssWriter(CueWriter):
    """Writes ASS events; times are hundredths of a second.

    Braces, which begin commands, become full-width; a backslash gets an invisible joiner behind it.
    """

    extension = "ass"

    def __init__(self, options: WriterOptions | None = None, *, style: str = STYLE) -> None:
        super().__init__(replace(options or WriterOptions(), highlight_words=False))
        self._style = style.replace(",2,80,80,60,", ",8,80,80,60,") if self.options.at_top else style

    def begin(self, info: TranscriptInfo) -> str:
        plain = self._style.replace("Default", "Plain").replace("&H0000D7FF", "&H00FFFFFF")
        return super().begin(info) + HEAD.format(style=self._style, plain=plain)

    def escape(self, text: str) -> str:
        return text.replace("\\", "\\" + JOINER).replace("{", "｛").replace("}", "｝")

    def render(self, cue: Cue) -> str:
        text = (karaoke(cue) if cue.is_timed else cue.text).replace("\n", "\\N")
        style = "Default" if cue.is_timed else "Plain"
        # A comma would end the name field.
        name = self.escape(one_line(cue.speaker)).replace(",", "") if cue.speaker else ""
        text = f"{name}: {text}" if name else text
        start, end = (
            timestamp(t, marker=".", hours=True, digits=2).removeprefix("0") for t in (cue.start, cue.end)
        )
        return f"Dialogue: 0,{start},{end},{style},{name},0,0,0,,{text}\n"


def karaoke(cue: Cue) -> str:
    """Write each word after its duration; rounding errors do not add up."""
    parts: list[str] = []
    at = hundredths(cue.start)
    below = (CueWord(cue.below, cue.end, cue.end),) if cue.below else ()
    for word in cue.words + below:
        start, end = max(at, hundredths(word.start)), max(at, hundredths(word.end))
        parts += [f"{{\\k{start - at}}}"] if start > at else []
        bare = word.text.lstrip()
        space = word.text[: len(word.text) - len(bare)]
        parts += [f"{space}{{\\k{max(0, end - start)}}}{bare}"]
        at = max(start, end)
    return "".join(parts)


def hundredths(seconds: float) -> int:
    return round(seconds * 100)


ENDINGS = (".mp4", ".mkv", ".mov")
LAYOUT = WriterOptions(max_line_width=34)
SIZES = ((320, 180), (3840, 2160))


def check_video(path: Path, size: str, background: str, recording: Path | None = None) -> None:
    """Raises: OptionError for a bad path, size or background."""
    if path.suffix.lower() not in ENDINGS:
        raise OptionError(f"video '{path}': expected a name that ends in {', '.join(ENDINGS)}")
    if path.is_dir() or not path.parent.is_dir():
        reason = "expected a file, it is a directory" if path.is_dir() else "its folder is not there"
        raise OptionError(f"video '{path}': {reason}")
    if recording is not None and path.resolve() == recording.resolve():
        raise OptionError(f"video '{path}': is the recording itself, choose another name")
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", size)
    (least_w, least_h), (most_w, most_h) = SIZES
    width, height = (int(match[1]), int(match[2])) if match else (0, 0)
    if not (least_w <= width <= most_w and least_h <= height <= most_h) or width % 2 or height % 2:
        raise OptionError(
            f"size: expected even WIDTHxHEIGHT from {least_w}x{least_h} to {most_w}x{most_h}, got '{size}'"
        )
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", background):
        raise OptionError(f"background: expected a colour such as #101418, got '{background}'")


def check_ffmpeg() -> None:
    """Raises: OptionError where the program ffmpeg is not installed."""
    if shutil.which("ffmpeg") is None:
        raise OptionError("video: needs the program ffmpeg, which is not installed here")


def write_karaoke(
    transcript: Transcript,
    recording: Path,
    path: Path,
    *,
    size: str = "1280x720",
    background: str = "#101418",
) -> None:
    """Write the video atomically. transcript: with word times. Raises: OptionError with ffmpeg's message."""
    check_video(path, size, background, recording)
    check_ffmpeg()
    if not any(segment.words for segment in transcript.segments):
        raise OptionError(f"video '{path}': expected words with times, got none")
    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder) / "words.ass"  # run in the folder, so its name needs no escapes
        words.write_text(write_transcript(AssWriter(LAYOUT, style=CENTRED), transcript), encoding="utf-8")
        with writing(f"video '{path}'"), whole_file(path) as unfinished:
            _run(_command(recording, unfinished.absolute(), size, background, transcript.duration), folder)


def _command(recording: Path, target: Path, size: str, background: str, seconds: float) -> list[str]:
    colour = f"color=c=0x{background[1:]}:s={size}:d={max(seconds, 0.1):.3f}"
    return [
        *("ffmpeg", "-hide_banner", "-loglevel", "error", "-nostdin", "-y"),
        *("-f", "lavfi", "-i", colour, "-i", f"file:{recording.absolute()}"),
        *("-map", "0:v", "-map", "1:a:0", "-vf", "ass=words.ass", "-pix_fmt", "yuv420p"),
        *("-af", "aresample=async=1:first_pts=0"),  # keep time stamps, to which word times refer
        *("-t", f"{max(seconds, 0.1):.3f}", str(target)),
        # Read the picture too: libav ignores discarded streams in the start time of MPEG-TS.
        *("-map", "0:v", "-map", "1:v?", "-c", "copy", "-t", f"{max(seconds, 0.1):.3f}", "-f", "null", "-"),
    ]


def _run(command: list[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    said = done.stderr.decode(errors="replace").strip()
    for number in (errno.ENOSPC, errno.EDQUOT):
        if os.strerror(number) in said:  # the exit code may still be 0
            raise OSError(number, os.strerror(number))
    if done.returncode:
        raise OptionError(f"video: ffmpeg failed ({said.splitlines()[-1] if said else done.returncode})")
