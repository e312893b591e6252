"""`transcribe --audio-track`: which one is read is told, and what there is where it is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sottovoce.audio.io import load_audio
from sottovoce.cli.main import run
from tests.audio.tracked import Sound, write_tracks

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
FAST = ["--model", "nano", "--beam-size", "1", "--temperature", "0"]


@pytest.fixture
def film(tmp_path: Path) -> Path:
    english, german = load_audio(CLIPS / "en.flac"), load_audio(CLIPS / "de.flac")
    tracks: list[Sound] = [(english, "eng", None), (german, "deu", "Kommentar")]
    return write_tracks(tmp_path / "film.mka", tracks, "pcm_s16le")


@pytest.mark.parametrize(("track", "mode"), [("2", []), ("de", ["--vad"]), ("ger", ["--offset", "0:00.1"])])
def test_the_track_is_read_and_told(
    track: str, mode: list[str], film: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["transcribe", str(film), *FAST, "--audio-track", track, *mode]) == 0
    output = capsys.readouterr()
    assert "viel Zeit" in output.out
    (line,) = output.err.splitlines()
    assert line == (f"note: {film}: audio track 2 (deu, 'Kommentar') of 2; others: 1 (eng) (--audio-track)")


def test_the_track_that_ffmpeg_takes_is_told_too(film: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transcribe", str(film), *FAST, "-f", "json", "-o", "-"]) == 0
    output = capsys.readouterr()
    assert '"language": "en"' in output.out
    assert "audio track 1 (eng) of 2" in output.err


def test_a_recording_of_one_track_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transcribe", str(CLIPS / "de.flac"), *FAST, "--audio-track", "1"]) == 0
    assert capsys.readouterr().err == ""


def test_a_recording_without_the_track_is_one_line_and_others_are_read(
    film: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copy(CLIPS / "de.flac", tmp_path / "other.flac"))
    assert run(["transcribe", str(film), str(other), *FAST, "--audio-track", "2", "-o", str(tmp_path)]) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert errors == [f"error: {other}: expected an audio track among 1; got '2'"]
    assert "viel Zeit" in (tmp_path / "film.txt").read_text()


@pytest.mark.usefixtures("no_model")
def test_a_track_that_is_not_there_is_told_before_the_model_is_loaded(
    film: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for track, told in (("3", "among 1 (eng), 2 (deu, 'Kommentar'); got '3'"), ("0", "number from 1")):
        assert run(["transcribe", str(film), *FAST, "--audio-track", track]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert told in line


def test_several_processes_read_the_track(film: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--processors", "2", "-l", "de", "--audio-track", "de"]
    assert run(["transcribe", str(film), *FAST, *words]) == 0
    assert "viel Zeit" in capsys.readouterr().out
