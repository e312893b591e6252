"""`sottovoce batch` as people meet it: a table that grows, errors as rows, and what is left after Ctrl-C."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from sottovoce.audio.io import Recording
from sottovoce.cli.main import run
from sottovoce.types import Turn
from tests.fresh_process import start_command

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
FAST = ["--model", "nano", "--beam-size", "1", "--temperature", "0", "--language", "en,de"]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "archive"
    (folder / "more").mkdir(parents=True)
    shutil.copy(CLIPS / "en.flac", folder / "a.flac")
    shutil.copy(CLIPS / "de.flac", folder / "more" / "b.flac")
    return folder


def test_a_folder_becomes_a_table_and_later_runs_add_what_is_new_and_what_failed(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = archive.parent / "out.jsonl"
    assert run(["batch", str(archive), str(out), *FAST]) == 0
    assert [(row["id"], row["language"]) for row in rows_of(out)] == [("a.flac", "en"), ("more/b.flac", "de")]
    assert "2 transcribed" in capsys.readouterr().err
    before = out.read_text(encoding="utf-8")
    (archive / "c.wav").write_text("no recording")
    assert run(["batch", str(archive), str(out), *FAST]) == 2
    said = capsys.readouterr().err
    assert "0 transcribed (0:00), 1 failed, 2 there before" in said
    assert said.count("error:") == 1
    assert out.read_text(encoding="utf-8").startswith(before)
    assert [row["error"] is None for row in rows_of(out)] == [True, True, False]
    shutil.copy(archive / "a.flac", archive / "c.wav")
    assert run(["batch", str(archive), str(out), *FAST]) == 1
    assert (
        "3 there before, 1 of them failed (--retry-failed transcribes them again)" in capsys.readouterr().err
    )
    assert rows_of(out)[2]["error"] is not None
    assert run(["batch", str(archive), str(out), *FAST, "--retry-failed"]) == 0
    assert [row["error"] for row in rows_of(out)] == [None, None, None]


def shut(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a folder be one that cannot be read, to the superuser too."""
    scandir = os.scandir

    def refused(path: Path | str) -> Any:
        if str(path) == str(folder):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)


def test_subfolders_that_cannot_be_read_are_rows_and_errors(
    archive: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shut(archive / "more", monkeypatch)
    out = archive.parent / "out.jsonl"
    assert run(["batch", str(archive), str(out), *FAST]) == 1
    assert [(row["id"], row["error"] is None) for row in rows_of(out)] == [("a.flac", True), ("more", False)]
    assert f"error: {archive / 'more'}: " in capsys.readouterr().err
    shutil.copy(archive / "a.flac", archive / "b.flac")
    texts = archive.parent / "texts"
    assert run(["transcribe", str(archive), "-o", str(texts), *FAST]) == 1
    assert sorted(path.name for path in texts.iterdir()) == ["a.txt", "b.txt"]
    said = capsys.readouterr().err
    assert f"error: {archive / 'more'}: " in said
    assert "note: 1 of 3 failed (above)" in said


def test_speakers_are_told_apart(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Halves:
        def turns(self, recording: Recording) -> list[Turn]:
            return [Turn(0.0, 1.0, "A"), Turn(1.0, 60.0, "B")]

    monkeypatch.setattr("sottovoce.offline.transcription.make_diarizer", lambda _: Halves())
    out = archive.parent / "out.jsonl"
    assert run(["batch", str(archive), str(out), *FAST, "--speakers", "2"]) == 0
    for row in rows_of(out):
        assert row["turns"] == [
            {"start": 0.0, "end": 1.0, "speaker": "A"},
            {"start": 1.0, "end": 60.0, "speaker": "B"},
        ]
        assert {segment["speaker"] for segment in row["segments"]} <= {"A", "B"}
        assert row["segments"][-1]["speaker"] == "B"


def test_ctrl_c_keeps_the_rows_that_are_there(
    archive: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for i in range(40):
        shutil.copy(CLIPS / "en.flac", archive / f"z{i:02}.flac")
    out = archive.parent / "out.jsonl"
    said = tmp_path_factory.mktemp("said") / "said"
    process = start_command(["batch", str(archive), str(out), *FAST, "--files-together", "1"], said)
    while not (out.exists() and out.read_bytes().count(b"\n") >= 2):
        assert process.is_alive(), said.read_text()
        time.sleep(0.02)
    os.kill(process.pid or 0, signal.SIGINT)
    process.join()
    assert process.exitcode == 130, said.read_text()
    assert "Traceback" not in said.read_text()
    assert 2 <= len(rows_of(out)) < 42
    left = {path.name for path in archive.parent.iterdir()}
    assert left == {"archive", "out.jsonl", ".out.jsonl.lock"}
