"""Advanced SubStation Alpha subtitles with word times as karaoke, and karaoke videos by ffmpeg."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from sottovoce.errors import OptionError
from sottovoce.formats.base import TranscriptInfo, write_transcript
from sottovoce.formats.subtitles import JOINER, Cue, CueWord, CueWriter, one_line, timestamp
from sottovoce.options.transcribe import WriterOptions
from sottovoce.text.files import whole_file, writing
from sottovoce.types import Transcript

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
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise OptionError(f"video: ffmpeg failed ({lines[-1] if lines else done.returncode})")
