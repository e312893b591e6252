"""`transcribe --audio-track`: which one is read is told, and what there is where it is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sottovoce.audio.io import load_audio
from tests.audio.media import Sound, write_tracks
from tests.cli.conftest import Call

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
FAST = ["--model", "nano", "--beam-size", "1", "--temperature", "0"]


@pytest.fixture
def film(tmp_path: Path) -> Path:
    english, german = load_audio(CLIPS / "en.flac"), load_audio(CLIPS / "de.flac")
    tracks: list[Sound] = [(english, "eng", None), (german, "deu", "Kommentar")]
    return write_tracks(tmp_path / "film.mka", tracks, "pcm_s16le")


@pytest.mark.parametrize(("track", "mode"), [("2", []), ("de", ["--vad"]), ("ger", ["--offset", "0:00.1"])])
def test_the_track_is_read_and_told(track: str, mode: list[str], film: Path, call: Call) -> None:
    output = call("transcribe", film, *FAST, "--audio-track", track, *mode)
    assert "viel Zeit" in output.out
    (line,) = output.err.splitlines()
    assert line == (f"note: {film}: audio track 2 (deu, 'Kommentar') of 2; others: 1 (eng) (--audio-track)")


def test_the_track_that_ffmpeg_takes_is_told_too(film: Path, call: Call) -> None:
    output = call("transcribe", film, *FAST, "-f", "json", "-o", "-")
    assert '"language": "en"' in output.out
    assert "audio track 1 (eng) of 2" in output.err


def test_a_recording_of_one_track_says_nothing(call: Call) -> None:
    assert call("transcribe", CLIPS / "de.flac", *FAST, "--audio-track", "1").err == ""


def test_a_recording_without_the_track_is_one_line_and_others_are_read(
    film: Path, tmp_path: Path, call: Call
) -> None:
    other = Path(shutil.copy(CLIPS / "de.flac", tmp_path / "other.flac"))
    said = call("transcribe", film, other, *FAST, "--audio-track", "2", "-o", tmp_path, code=1)
    errors = [line for line in said.err.splitlines() if line.startswith("error")]
    assert errors == [f"error: {other}: expected an audio track among 1; got '2'"]
    assert "viel Zeit" in (tmp_path / "film.txt").read_text()


@pytest.mark.usefixtures("no_model")
def test_a_track_that_is_not_there_is_told_before_the_model_is_loaded(film: Path, call: Call) -> None:
    for track, told in (("3", "among 1 (eng), 2 (deu, 'Kommentar'); got '3'"), ("0", "number from 1")):
        (line,) = call("transcribe", film, *FAST, "--audio-track", track, code=2).err.splitlines()
        assert line.startswith("error: ")
        assert told in line


@pytest.mark.long
def test_several_processes_read_the_track(film: Path, call: Call) -> None:
    words = ["--processors", "2", "-l", "de", "--audio-track", "de"]
    assert "viel Zeit" in call("transcribe", film, *FAST, *words).out
