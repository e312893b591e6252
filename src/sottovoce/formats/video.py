"""Write a karaoke video with the program ffmpeg: words in the middle of the picture, lit as they are said."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from sottovoce.errors import OptionError, cause_of
from sottovoce.formats.ass import CENTRED, AssWriter
from sottovoce.formats.base import write_transcript
from sottovoce.models.checkpoint.writing import whole_file
from sottovoce.options.writer import WriterOptions
from sottovoce.types import Transcript

ENDINGS = (".mp4", ".mkv", ".mov")
LAYOUT = WriterOptions(reading_speed=17, max_line_width=34, max_line_count=2)
SIZES = ((320, 180), (3840, 2160))
FRAMES_A_SECOND = 25


def check_video(path: Path, size: str, background: str, recording: Path | None = None) -> None:
    """Check that a video can be made.

    Raises: OptionError for a bad path, size or background, and where there is no ffmpeg.
    """
    if path.suffix.lower() not in ENDINGS:
        raise OptionError(f"video '{path}': expected a name that ends in {', '.join(ENDINGS)}")
    if path.is_dir() or not path.parent.is_dir():
        reason = "expected a file, it is a directory" if path.is_dir() else "its folder is not there"
        raise OptionError(f"video '{path}': {reason}")
    if recording is not None and path.resolve() == recording.resolve():
        raise OptionError(f"video '{path}': is the recording itself, choose another name")
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", size)
    (least_w, least_h), (most_w, most_h) = SIZES
    width, height = (int(found[1]), int(found[2])) if found else (0, 0)
    if not (least_w <= width <= most_w and least_h <= height <= most_h) or width % 2 or height % 2:
        raise OptionError(
            f"size: expected even WIDTHxHEIGHT from {least_w}x{least_h} to {most_w}x{most_h}, got '{size}'"
        )
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", background):
        raise OptionError(f"background: expected a colour such as #101418, got '{background}'")
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
    """Write the video; it appears whole or not at all.

    transcript: with word times. recording: the file with the sound.
    Raises: OptionError, with ffmpeg's message where it fails.
    """
    check_video(path, size, background, recording)
    if not any(segment.words for segment in transcript.segments):
        raise OptionError(f"video '{path}': expected words with times, got none")
    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder) / "words.ass"  # found from within the folder: its name needs no escapes
        words.write_text(write_transcript(AssWriter(LAYOUT, style=CENTRED), transcript), encoding="utf-8")
        try:
            with whole_file(path) as unfinished:
                _run(
                    _command(recording, unfinished.absolute(), size, background, transcript.duration), folder
                )
        except OSError as error:
            raise OptionError(f"video '{path}': cannot be written ({cause_of(error)})") from error


def _command(recording: Path, target: Path, size: str, background: str, seconds: float) -> list[str]:
    colour = f"color=c=0x{background[1:]}:s={size}:r={FRAMES_A_SECOND}:d={max(seconds, 0.1):.3f}"
    return [
        *("ffmpeg", "-hide_banner", "-loglevel", "error", "-nostdin", "-y"),
        *("-f", "lavfi", "-i", colour, "-i", f"file:{recording.absolute()}"),
        *("-map", "0:v", "-map", "1:a:0", "-vf", "ass=words.ass", "-pix_fmt", "yuv420p"),
        *("-af", "aresample=async=1:first_pts=0"),  # sound at its time stamps, as the words are
        *("-t", f"{max(seconds, 0.1):.3f}", str(target)),
        # Read the picture too: libav ignores discarded streams in the start time of MPEG-TS.
        *("-map", "0:v", "-map", "1:v?", "-c", "copy", "-t", f"{max(seconds, 0.1):.3f}", "-f", "null", "-"),
    ]


def _run(command: list[str], folder: str) -> None:
    """Run ffmpeg.

    Raises: OptionError with the last line of its error output.
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise OptionError(f"video: ffmpeg failed ({lines[-1] if lines else done.returncode})")
