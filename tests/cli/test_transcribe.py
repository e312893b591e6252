"""`sottovoce transcribe` as people and programs meet it: documents, errors, exit codes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import wave
from pathlib import Path

import numpy as np
import pytest

from sottovoce.cli.main import run

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
FAST = ["--model", "nano", "--beam-size", "1", "--temperature", "0", "--language", "de"]


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return Path(shutil.copy(CLIPS / "de.flac", tmp_path / "clip.flac"))


def write_wave(path: Path, samples: np.ndarray, rate: int = 16_000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype(np.int16).tobytes())
    return path


def one_error(text: str) -> str:
    """The only line of standard error, which must be an error."""
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == 1, text
    assert lines[0].startswith("error: ")
    return lines[0]


def test_json_to_standard_output_is_one_document_a_line(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copy(clip, tmp_path / "other.flac"))
    code = run(["transcribe", str(clip), str(other), *FAST, "--output-format", "json", "--output-dir", "-"])
    output = capsys.readouterr()
    documents = [json.loads(line) for line in output.out.splitlines()]
    assert code == 0
    assert output.err == ""
    assert len(documents) == 2
    assert documents[0] == documents[1]
    assert set(documents[0]) == {"text", "language", "duration", "model", "segments"}
    assert documents[0]["language"] == "de"
    assert documents[0]["model"] == "nano"
    assert documents[0]["duration"] == pytest.approx(3.13, abs=0.02)


def test_text_goes_to_the_terminal_and_nothing_else(clip: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transcribe", str(clip), *FAST]) == 0
    output = capsys.readouterr()
    assert output.out.strip()
    assert output.err == ""
    assert "\x1b" not in output.out


def test_files_of_every_format(clip: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    arguments = ["--output-format", "all", "--output-dir", str(folder), "--word-timestamps"]
    assert run(["transcribe", str(clip), *FAST, *arguments]) == 0
    assert {path.suffix for path in folder.iterdir()} >= {".txt", ".srt", ".vtt", ".tsv", ".json"}
    document = json.loads((folder / "clip.json").read_text())
    words = [word for segment in document["segments"] for word in segment["words"]]
    assert words
    assert all(word["start"] <= word["end"] for word in words)


def test_other_files_are_done_when_one_fails(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.wav"
    broken.write_text("this is no sound")
    code = run(["transcribe", str(broken), str(clip), *FAST, "--output-dir", str(tmp_path)])
    assert code == 1
    assert "broken.wav" in one_error(capsys.readouterr().err)
    assert (tmp_path / "clip.txt").read_text().strip()
    assert not (tmp_path / "broken.txt").exists()


@pytest.mark.parametrize("kind", ["empty", "text", "directory", "missing", "zero samples"])
def test_one_line_for_what_cannot_be_read(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.wav"
    if kind == "empty":
        path.touch()
    elif kind == "text":
        path.write_text("hello")
    elif kind == "directory":
        path.mkdir()
    elif kind == "zero samples":
        write_wave(path, np.zeros(0, np.float32))
    code = run(["transcribe", str(path), *FAST, "--output-dir", str(tmp_path)])
    assert code == 2
    assert "bad.wav" in one_error(capsys.readouterr().err)
    assert not list(tmp_path.glob("*.txt"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "nanoo"], "nano"),
        (["--model", "nano", "--language", "klingon"], "klingon"),
        (["--model", "nano", "--output-format", "doc"], "doc"),
        (["--model", "nano", "--device", "tpu"], "tpu"),
        (["--model", "nano", "--dtype", "float8"], "float8"),
        (["--model", "nano", "--temperature", "hot"], "--temperature"),
        (["--model", "nano", "--max-line-width", "40"], "--word-timestamps"),
    ],
)
def test_wrong_wishes_fail_before_any_work(
    arguments: list[str], told: str, clip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["transcribe", str(clip), *arguments]) == 2
    assert told in one_error(capsys.readouterr().err)


def test_boosted_phrases_come_out(clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A word that sounds alike, and is nowhere without the boost."""
    phrases = tmp_path / "phrases.txt"
    phrases.write_text("Gartin\n", encoding="utf-8")
    search = ["--model", "nano", "--language", "de", "--temperature", "0"]
    assert run(["transcribe", str(clip), *search]) == 0
    assert "Gartin" not in capsys.readouterr().out
    boost = ["--hotwords", str(phrases), "--hotword-weight", "20"]
    assert run(["transcribe", str(clip), *search, *boost]) == 0
    assert "Gartin" in capsys.readouterr().out
    assert run(["transcribe", str(clip), *search, *boost, "--beam-size", "1"]) == 2
    assert "beam" in one_error(capsys.readouterr().err)


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transcribe"]) == 2
    assert run(["transcribe", "x.wav", "--beam-size", "0"]) == 2
    assert run(["transcrib"]) == 2
    capsys.readouterr()


def test_debug_adds_the_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--debug", "transcribe", str(tmp_path / "missing.wav"), *FAST]
    assert run(arguments, debug=True) == 2
    assert "Traceback" in capsys.readouterr().err


def sottovoce(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sottovoce", *arguments]


@pytest.mark.slow
def test_interrupted_exits_with_130_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 16_000 * 1200).astype(np.float32).clip(-1, 1)
    long = write_wave(tmp_path / "long.wav", noise)
    command = sottovoce("transcribe", str(long), *FAST, "--output-dir", str(tmp_path))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        # A background job of a shell ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    for _ in range(600):  # until it has begun to write
        if list(tmp_path.glob(".long.txt.*")):
            break
        time.sleep(0.1)
    with process:
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["long.wav"]


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(clip: Path) -> None:
    command = sottovoce("transcribe", str(clip), str(clip), *FAST)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        error = process.stderr.read()
    assert process.returncode == 0, error
    assert b"Traceback" not in error


@pytest.mark.slow
def test_standard_input(clip: Path) -> None:
    command = sottovoce("transcribe", "-", *FAST)
    given = subprocess.run(command, input=clip.read_bytes(), capture_output=True, check=True)
    from_file = subprocess.run(sottovoce("transcribe", str(clip), *FAST), capture_output=True, check=True)
    assert given.stdout == from_file.stdout
    assert given.stdout.strip()
