"""Folders of recordings: their documents, names and skips for media servers, and folders that are watched."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import av
import pytest

from sottovoce.archive.results import watched_recordings
from tests.cli.conftest import Call
from tests.cli.test_batch import rows_of, shut
from tests.fresh_process import start_command

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
FAST = ["--model", "nano", "--beam-size", "1", "--temperature", "0"]


@pytest.fixture
def films(tmp_path: Path) -> Path:
    (tmp_path / "films" / "more").mkdir(parents=True)
    shutil.copy(CLIPS / "de.flac", tmp_path / "films" / "talk.flac")
    shutil.copy(CLIPS / "en.flac", tmp_path / "films" / "more" / "talk.flac")
    return tmp_path / "films"


def names_in(folder: Path, extension: str = "srt") -> list[str]:
    documents = (path.relative_to(folder).as_posix() for path in folder.rglob(f"*.{extension}"))
    return sorted(name for name in documents if not name.startswith(".") and "/." not in name)


def test_documents_of_a_folder_keep_its_subfolders_and_have_languages_in_their_names(
    films: Path, tmp_path: Path, call: Call
) -> None:
    words = ["transcribe", films, *FAST, "-f", "srt"]
    planned = call(*words, "--name-language", "-o", tmp_path / "out", "--dry-run")
    assert planned.out.count(" -> ") == 2
    assert not (tmp_path / "out").exists()
    call(*words, "--name-language", "-o", tmp_path / "out")
    assert names_in(tmp_path / "out") == ["more/talk.en.srt", "talk.de.srt"]
    again = call(*words, "--name-language", "-o", tmp_path / "out", "--skip-existing")
    assert "2 of 2 skipped, their documents are there" in again.err
    call(*words)
    call(*words, "--name-language", "--task", "translate")
    assert names_in(films) == ["more/talk.en.srt", "more/talk.srt", "talk.en.srt", "talk.srt"]
    assert "expected a folder" in call(*words, "--name-language", "-o", "-", code=2).err


def with_subtitles(video: Path, language: str) -> None:
    lines = video.with_name("lines.srt")
    lines.write_text("1\n00:00:00,000 --> 00:00:01,000\nWir\n")
    with (
        av.open(str(CLIPS / "de.flac")) as sound,
        av.open(str(lines)) as text,
        av.open(str(video), "w") as film,
    ):
        tracks = [(each, film.add_stream_from_template(each.streams[0])) for each in (sound, text)]
        tracks[1][1].metadata["language"] = language
        for source, track in tracks:
            for packet in source.demux():
                if packet.dts is not None:
                    packet.stream = track
                    film.mux(packet)
    lines.unlink()


@pytest.mark.parametrize("inside", [True, False])
def test_a_video_with_subtitles_of_the_language_is_skipped(films: Path, inside: bool, call: Call) -> None:
    """Inside (as 639-2 codes) or in a file, whether the language is given, detected or translated into."""
    if inside:
        (films / "talk.flac").unlink()
        with_subtitles(films / "talk.mkv", "ger")
    else:
        (films / "talk.de.forced.srt").write_text("")
    words = ["transcribe", films, *FAST, "-f", "srt", "--dry-run", "--skip-subtitled"]
    for more, n_left in (([], 1), (["-l", "de"], 1), (["-l", "fr"], 2), (["--task", "translate"], 2)):
        output = call(*words, *more)
        assert output.out.count(" -> ") == n_left, more
        place = "inside" if inside else "talk.de.forced.srt"
        assert output.out.count(f"skipped, it has subtitles: {place}") == 2 - n_left


@pytest.mark.parametrize("command", ["transcribe", "batch"])
def test_a_watched_folder(films: Path, tmp_path: Path, command: str) -> None:
    """A recording that grows is read when it is complete, and once, also by later calls."""
    whole, out = (films / "more" / "talk.flac").read_bytes(), tmp_path / "out.jsonl"
    growing = films / "new" / "late.flac"
    target = ["-o", str(out), "-f", "json"] if command == "transcribe" else [str(out)]
    folder = [str(films), *target] if command == "batch" else [str(films), "-o", str(out), "-f", "json"]
    words = [command, *folder, *FAST, "--watch", "--settle", "1", "-l", "en"]
    if command == "transcribe":
        out.mkdir()

    def texts() -> dict[str, str]:
        if command == "batch":
            return {row["id"]: row["text"] for row in rows_of(out)} if out.exists() else {}
        documents = {Path(name).with_suffix(".flac"): out / name for name in names_in(out, "json")}
        return {key.as_posix(): json.loads(path.read_text())["text"] for key, path in documents.items()}

    def run_until(wanted: set[str], *, grow: bool = False) -> None:
        said = tmp_path / f"said{time.monotonic_ns()}"
        process = start_command(words, said)
        try:
            if grow:
                growing.parent.mkdir()
                for end in range(0, len(whole), len(whole) // 6):
                    growing.write_bytes(whole[:end])
                    time.sleep(0.3)
                    assert "new/late.flac" not in texts()
                growing.write_bytes(whole)
            while set(texts()) != wanted:
                assert process.is_alive(), said.read_text()
                time.sleep(0.1)
        finally:
            os.kill(process.pid or 0, signal.SIGINT)
            process.join()
        assert process.exitcode == 130, said.read_text()
        assert "error" not in said.read_text()

    run_until({"talk.flac", "more/talk.flac", "new/late.flac"}, grow=True)
    first = texts()
    assert first["new/late.flac"] == first["more/talk.flac"]
    written = {name: (out / name).stat().st_mtime_ns for name in names_in(out, "json")}
    shutil.copy(CLIPS / "de.flac", films / "another.flac")
    run_until({*first, "another.flac"})
    assert first.items() <= texts().items()
    assert (
        written.items() <= {name: (out / name).stat().st_mtime_ns for name in names_in(out, "json")}.items()
    )


def test_a_changed_recording_is_reported_again(films: Path) -> None:
    groups = watched_recordings(films, settle_s=0.2)
    assert [item.id for item in next(groups)] == ["more/talk.flac", "talk.flac"]
    os.utime(films / "talk.flac")
    assert [item.id for item in next(groups)] == ["talk.flac"]


def test_a_watched_subfolder_that_cannot_be_read_is_an_error_once(
    films: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    shut(films / "more", monkeypatch)
    groups = watched_recordings(films, settle_s=0.2)
    first = next(groups)
    assert [item.id for item in first] == ["more", "talk.flac"]
    (films / "new").mkdir()
    shutil.copy(CLIPS / "de.flac", films / "new")
    assert [item.id for item in next(groups)] == ["new/de.flac"]
    monkeypatch.setattr("sottovoce.archive.results.watched_recordings", lambda *_, **__: [first])
    output = call("transcribe", films, "-o", tmp_path / "out", *FAST, "-f", "srt", "--watch", code=1)
    assert output.err.count(f"error: {films / 'more'}: ") == 1
    assert names_in(tmp_path / "out") == ["talk.srt"]


def test_folders_beside_one_that_cannot_be_read_are_watched(films: Path) -> None:
    closed = [films / "more" / name for name in "aceg"]
    beside = [films / "more" / name for name in "bdfh"]
    for folder in (*closed, *beside):
        folder.mkdir()
    for folder in closed:
        folder.chmod(0)
    if os.access(closed[0], os.R_OK):
        pytest.skip("this user may read every folder")
    groups = watched_recordings(films, settle_s=0.2)
    assert len(next(groups)) == 2 + len(closed)
    for folder in beside:
        shutil.copy(CLIPS / "de.flac", folder / "talk.flac")
    assert [item.id for item in next(groups)] == [f"more/{folder.name}/talk.flac" for folder in beside]
