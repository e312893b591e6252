"""Karaoke videos, where ffmpeg is installed: a picture, a sound, and words that are lit as they are said."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from sottovoce.audio.io import load_audio
from sottovoce.cli.main import run
from sottovoce.errors import OptionError
from sottovoce.formats.subtitle_files import check_video, write_karaoke
from sottovoce.types import SAMPLE_RATE, Segment, Transcript, Word
from tests.formats.transcripts import CLIPS

CLIP = CLIPS / "de.flac"
WORDS = (Word(" GRÜSSE", 0.5, 1.5, 0.9), Word(" HEUTE", 1.5, 2.5, 0.9))
SAID = Transcript((Segment(0, 0.5, 2.5, " GRÜSSE HEUTE", "de", words=WORDS),), "de", 3.1, "nano")


def can_burn() -> bool:
    """Whether there is an ffmpeg that draws subtitles."""
    program = shutil.which("ffmpeg")
    if program is None:
        return False
    done = subprocess.run([program, "-hide_banner", "-filters"], capture_output=True, text=True, check=False)
    return " ass " in done.stdout


with_ffmpeg = pytest.mark.skipif(not can_burn(), reason="no ffmpeg that draws subtitles on this machine")


def gold(frame: np.ndarray) -> int:
    """Points of a picture (height, width, 3) in the colour of words that were said."""
    return int(((frame[..., 0] > 180) & (frame[..., 1] > 140) & (frame[..., 2] < 90)).sum())


def test_the_recording_itself_is_not_written_over(tmp_path: Path) -> None:
    talk = tmp_path / "talk.mp4"
    talk.write_bytes(b"a film")
    with pytest.raises(OptionError, match="is the recording"):
        write_karaoke(SAID, talk, talk)
    with pytest.raises(OptionError, match="is the recording"):
        check_video(tmp_path / "." / "talk.mp4", "1280x720", "#101418", talk)
    assert talk.read_bytes() == b"a film"


@with_ffmpeg
def test_words_are_lit_as_they_are_said(tmp_path: Path) -> None:
    path = tmp_path / "a 'b',c.mp4"
    write_karaoke(SAID, CLIP, path, size="640x360")
    with av.open(str(path)) as file:
        assert len(file.streams.audio) == 1
        frames = {
            round(frame.time or 0.0, 2): frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)
        }
    at = sorted(frames)
    assert at[-1] == pytest.approx(3.1, abs=0.3)
    before, first, both = (gold(frames[min(at, key=lambda t: abs(t - wish))]) for wish in (0.1, 1.2, 2.3))
    if both == 0:
        pytest.skip("ffmpeg finds no font to draw words with on this machine")
    assert before == 0
    assert 0 < first < both
    assert [path_left.name for path_left in tmp_path.iterdir()] == [path.name]


@with_ffmpeg
@pytest.mark.parametrize("container", ["ts", "mkv"])
def test_the_sound_stands_where_the_words_do(container: str, tmp_path: Path) -> None:
    """Sound that begins after the picture keeps its time, as its words do."""
    film, video = tmp_path / f"film.{container}", tmp_path / "video.mp4"
    words = (
        f"-v error -f lavfi -i color=s=64x48:r=25:d=9 -itsoffset 4 -i {CLIP} -c:v mpeg2video -c:a mp2 {film}"
    )
    subprocess.run(["ffmpeg", *words.split()], check=True)
    write_karaoke(replace(SAID, duration=7.0), film, video, size="320x180")
    theirs, ours = load_audio(video), load_audio(film)
    assert not theirs[: round(3.8 * SAMPLE_RATE)].any()
    piece = ours[round(4.5 * SAMPLE_RATE) : round(6.0 * SAMPLE_RATE)]
    near = theirs[4 * SAMPLE_RATE : round(6.5 * SAMPLE_RATE)]
    assert np.argmax(np.correlate(near, piece, "valid")) / SAMPLE_RATE == pytest.approx(0.5, abs=0.05)


@with_ffmpeg
def test_the_command_makes_a_video(tmp_path: Path) -> None:
    text = tmp_path / "said.txt"
    text.write_text("Wir haben heute viel Zeit.", encoding="utf-8")
    words = ["karaoke", str(CLIP), "-m", "nano", "-l", "de", "--text", str(text), "--size", "320x180"]
    assert run([*words, "-o", str(tmp_path / "talk.mkv")]) == 0
    assert (tmp_path / "talk.mkv").stat().st_size > 1000


@with_ffmpeg
def test_an_error_of_ffmpeg_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"no sound")
    with pytest.raises(OptionError, match=r"video: ffmpeg failed \(") as caught:
        write_karaoke(SAID, broken, tmp_path / "talk.mp4")
    assert "\n" not in str(caught.value)
    assert [path_left.name for path_left in tmp_path.iterdir()] == ["broken.wav"]


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.parametrize("code", [0, 1])
def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Ffmpeg writes the reason before other lines, and its exit code may be 0."""
    program = tmp_path / "bin" / "ffmpeg"
    program.parent.mkdir()
    lines = "video.mkv: No space left on device\\nError initializing output stream 0:1 --"
    program.write_text(f"#!/bin/sh\nprintf '{lines}\\n' >&2\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    video = tmp_path / "talk.mkv"
    with pytest.raises(OptionError, match=r"talk.mkv': cannot be written \(No space left on device\)$"):
        write_karaoke(SAID, CLIP, video)
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


@pytest.mark.parametrize(
    ("name", "size", "background", "message"),
    [
        ("talk.gif", "1280x720", "#000000", "expected a name that ends in"),
        ("none/talk.mp4", "1280x720", "#000000", "its folder is not there"),
        ("talk.mp4", "1281x720", "#000000", "expected even WIDTHxHEIGHT"),
        ("talk.mp4", "9x9", "#000000", "expected even WIDTHxHEIGHT"),
        ("talk.mp4", "wide", "#000000", "expected even WIDTHxHEIGHT"),
        ("talk.mp4", "1280x720", "red", "expected a colour such as"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, name: str, size: str, background: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check_video(tmp_path / name, size, background)


def test_without_ffmpeg_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OptionError, match="needs the program ffmpeg"):
        write_karaoke(SAID, CLIP, tmp_path / "talk.mp4")
