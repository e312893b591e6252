"""Recordings whose names are no UTF-8, as old archives have them, or as long as a disk allows."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sottovoce.cli.main import run
from sottovoce.cli.transcribe import PartWriter
from tests.cli.conftest import Call

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"
FAST = ["--model", "nano", "--beam-size", "1", "--temperature", "0"]
LABEL = "r\\udce9union.flac"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """`réunion.flac` in Latin-1, in a folder of its own."""
    folder = tmp_path / "archive"
    folder.mkdir()
    name = os.fsencode(folder) + b"/r\xe9union.flac"
    try:
        shutil.copy(CLIP, os.fsdecode(name))
    except OSError:
        pytest.skip("names are UTF-8 in this file system")
    if sys.platform != "linux":
        pytest.skip("names are text on this system")
    return Path(os.fsdecode(name))


def test_documents(recording: Path, tmp_path: Path) -> None:
    assert (
        run(["transcribe", str(recording), *FAST, "-l", "en", "-f", "all", "-o", str(tmp_path / "out")]) == 0
    )
    (page,) = (tmp_path / "out").glob("*.html")
    written = page.read_text(encoding="utf-8")
    assert f"<title>{LABEL}" in written
    assert 'src="../archive/r%E9union.flac"' in written
    assert len(list((tmp_path / "out").iterdir())) > 8
    assert not list((tmp_path / "out").glob("*.rttm")), "nobody told speakers apart: it would be empty"


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_tables(recording: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    (recording.parent / os.fsdecode(b"empty\xe9.wav")).touch()
    call = ["batch", str(recording.parent), str(tmp_path / name), *FAST, "--language", "en"]
    assert run(call) == 1
    assert run(call) == 1, "a recording without a transcript is reported again"
    assert "2 there before, 1 of them failed" in capsys.readouterr().err
    if name.endswith("jsonl"):
        rows = [json.loads(line) for line in (tmp_path / name).read_text(encoding="utf-8").splitlines()]
        assert {row["id"] for row in rows} == {LABEL, "empty\\udce9.wav"}
        assert [row["file"] for row in rows if not row["error"]] == [f"{recording.parent}/{LABEL}"]


def test_live_and_its_log(recording: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run(["stream", str(recording), "--model", "nano", "-l", "en", "--log", str(log)]) == 0
    assert json.loads(log.read_text(encoding="utf-8"))["source"] == [str(recording.with_name(LABEL))]


def test_pictures(recording: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    picture = tmp_path / "picture.svg"
    assert run(["plot", str(recording), "--model", "nano", "-l", "en", "-o", str(picture)]) == 0
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("stem", "formats"),
    [("x" * 251, "srt"), ("x" * 246, "labels,json-full,textgrid"), ("语" * 83, "textgrid,txt")],
)
def test_a_name_may_be_as_long_as_the_disk_allows(
    stem: str, formats: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    recordings = [Path(shutil.copy(CLIP, tmp_path / f"{stem}.wav"))]
    if len(stem) == 246:
        recordings.append(Path(shutil.copy(CLIP, tmp_path / f"{stem[:-1]}y.wav")))
    out = tmp_path / "out"
    words = ["transcribe", *recordings, *FAST, "-l", "en", "-f", formats, "-o", out]
    with monkeypatch.context() as broken:
        broken.setattr(PartWriter, "remove", PartWriter.close)
        assert call(*words).err == ""
    documents = [path for path in out.iterdir() if path.suffix != ".part"]
    assert len(documents) == len(recordings) * len(formats.split(","))
    assert all(path.name.startswith(stem[:70]) for path in out.iterdir())
    assert call(*words, "--skip-existing").err.count("skipped, their documents are there") == 1
    assert call(*words).err.count("going on at") == len(recordings)
    assert sorted(out.iterdir()) == sorted(documents)


def test_a_table_may_have_a_long_name(tmp_path: Path, call: Call) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    shutil.copy(CLIP, folder)
    table = tmp_path / f"{'x' * 249}.jsonl"
    call("batch", folder, table, *FAST, "-l", "en")
    assert json.loads(table.read_text(encoding="utf-8"))["id"] == CLIP.name


def folder_at(path: Path) -> None:
    path.mkdir()


def nested_at(path: Path) -> None:
    path.write_text("[" * 100_000 + "\n")


@pytest.mark.parametrize("spoil", [folder_at, nested_at])
def test_a_resume_file_that_cannot_be_used_ends_no_job(
    spoil: Callable[[Path], None], tmp_path: Path, call: Call
) -> None:
    spoil(tmp_path / "en.srt.part")
    output = call("transcribe", CLIP, *FAST, "-l", "en", "-f", "srt", "-o", tmp_path)
    assert "nothing is kept in case of a break" in output.err
    assert (tmp_path / "en.srt").is_file()


def test_long_hotwords_are_no_file(tmp_path: Path, call: Call) -> None:
    terms = ", ".join(["word"] * 50)
    call("transcribe", CLIP, *FAST, "-l", "en", "-f", "srt", "-o", tmp_path, "--hotwords", terms)
