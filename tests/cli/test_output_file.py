"""Where documents go, what a person sees meanwhile, and names that are no UTF-8 or very long."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sottovoce.cli.main import run
from sottovoce.cli.transcribe import PartWriter
from tests.audio.media import wav_bytes
from tests.cli.conftest import Call

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
FAST = ["--model", "nano", "--beam-size", "1", "--temperature", "0", "--language", "de"]


def test_a_file_is_the_one_document_in_the_format_of_its_extension(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "new" / "Talk.SRT"
    assert run(["transcribe", str(clip), *FAST, "-o", str(document)]) == 0
    assert document.read_text(encoding="utf-8").startswith("1\n00:00:00")
    assert os.listdir(document.parent) == ["Talk.SRT"]
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "")


@pytest.mark.usefixtures("no_model")
def test_a_document_named_after_another_recording_is_not_replaced_unasked(
    clip: Path, tmp_path: Path, call: Call
) -> None:
    shutil.copy(clip, tmp_path / "other.flac")
    document = tmp_path / "other.srt"
    document.write_text("kept")
    line = call("transcribe", clip, *FAST, "-o", document, code=2).err
    assert (
        line
        == f"error: output '{document}': is there, and is named after 'other.flac'; --overwrite replaces it\n"
    )
    assert document.read_text() == "kept"
    with pytest.raises(AssertionError, match="the model was loaded"):
        run(["transcribe", str(clip), *FAST, "-o", str(document), "--overwrite"])


def test_a_recording_without_speech_says_so(tmp_path: Path, call: Call) -> None:
    place = tmp_path / "silence.wav"
    place.write_bytes(wav_bytes(np.zeros(48_000, np.float32)))
    assert call("transcribe", place, *FAST) == ("", f"note: {place}: no speech was found\n")


@pytest.mark.parametrize(
    ("name", "formats", "begins"),
    [
        ("talk.json", None, '{"model"'),
        ("talk.full.json", None, '{"model"'),
        ("talk.json", "json-full", '{"model"'),
        ("talk.TextGrid", None, "File type"),
        ("talk.labels", None, "0.0"),
    ],
)
def test_a_format_that_is_given_agrees_with_the_name(
    name: str, formats: str | None, begins: str, clip: Path, tmp_path: Path
) -> None:
    words = [] if formats is None else ["-f", formats]
    assert run(["transcribe", str(clip), *FAST, "-w", "-o", str(tmp_path / name), *words]) == 0
    text = (tmp_path / name).read_text(encoding="utf-8")
    assert text.startswith(begins)
    assert ("token_details" in text) == (name == "talk.full.json" or formats == "json-full")


def test_a_folder_stays_a_folder_whatever_its_name(clip: Path, tmp_path: Path) -> None:
    (tmp_path / "is.srt").mkdir()
    for folder in ("is.srt", "new.srt/", "2026.11", "plain"):
        assert run(["transcribe", str(clip), *FAST, "-o", str(tmp_path) + "/" + folder]) == 0
        assert os.listdir(tmp_path / folder) == ["clip.txt"]


def test_an_alignment_has_its_file_too(clip: Path, tmp_path: Path) -> None:
    text = tmp_path / "said.txt"
    text.write_text("Wir haben heute", encoding="utf-8")
    words = ["align", str(clip), str(text), "--model", "nano", "-l", "de"]
    assert run([*words, "-o", str(tmp_path / "out" / "talk.json")]) == 0
    assert json.loads((tmp_path / "out" / "talk.json").read_text())["segments"]


def test_what_is_done_is_not_read_again(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copy(CLIPS / "en.flac", tmp_path / "other.flac"))
    out = tmp_path / "out"
    words = [*FAST, "-f", "txt,srt", "-o", str(out), "--skip-existing"]
    assert run(["transcribe", str(clip), *words]) == 0
    (out / "clip.txt").write_text("kept")
    (out / "other.txt").write_text("half done: its srt is missing")
    capsys.readouterr()
    assert run(["transcribe", str(clip), str(other), *words]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"note: 1 of 2 skipped, their documents are there: {clip}"
    assert (out / "clip.txt").read_text() == "kept"
    assert (out / "other.srt").read_text().startswith("1\n")
    assert (out / "other.txt").read_text() != "half done: its srt is missing"


@pytest.mark.usefixtures("no_model")
def test_no_model_is_loaded_where_nothing_is_left(clip: Path, tmp_path: Path, call: Call) -> None:
    others = [Path(shutil.copy(clip, tmp_path / f"talk{number}.flac")) for number in range(5)]
    for path in (clip, *others):
        path.with_suffix(".srt").write_text("done")
    words = [*FAST, "-f", "srt", "-o", str(tmp_path), "--skip-existing"]
    (line,) = call("transcribe", *map(str, others), clip, *words).err.splitlines()
    assert "6 of 6 skipped" in line
    assert line.endswith("talk2.flac and 3 more")
    missing = str(tmp_path / "missing.wav")
    assert "missing.wav" in call("transcribe", clip, missing, *words, code=1).err


@pytest.mark.usefixtures("no_model")
def test_no_model_is_loaded_for_inputs_that_cannot_be_opened(tmp_path: Path, call: Call) -> None:
    (tmp_path / "notes.mp3").write_text("no sound at all")
    (tmp_path / "empty.wav").touch()
    (tmp_path / "folder.wav").mkdir()
    names = [str(tmp_path / name) for name in ("missing.wav", "notes.mp3", "empty.wav", "folder.wav")]
    lines = call("transcribe", *names, *FAST, code=2).err.splitlines()
    assert len(lines) == 4
    for line, name, why in zip(lines, names, ("no such", "no known", "0 bytes", "is a folder"), strict=True):
        assert line.startswith(f"error: {name}: ")
        assert why in line


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are Unix's")
def test_a_pipe_with_a_name_is_not_used_up_by_looking_at_it(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cp", str(clip), str(pipe)]):
        assert run(["transcribe", str(pipe), *FAST]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="no descriptors with names")
def test_a_document_goes_into_a_pipe_of_a_descriptor(clip: Path, call: Call) -> None:
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as reader, os.fdopen(theirs, "wb"):
        assert call("transcribe", clip, *FAST, "-f", "srt", "-o", f"/dev/fd/{theirs}").err == ""
        assert reader.read(4) == b"1\n00"


def test_text_is_shown_on_a_terminal_while_documents_go_to_files(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    words = ["transcribe", str(clip), *FAST, "-f", "txt,srt", "-o", str(tmp_path)]
    assert run(words) == 0
    said = (tmp_path / "clip.txt").read_text(encoding="utf-8").split()
    shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert re.search(r"0:00-0:0\d +de +" + r"\s+".join(map(re.escape, said)), shown)
    assert run([*words, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert run(["transcribe", str(clip), *FAST, "-q", "-o", str(tmp_path / "talk.srt")]) == 0
    assert capsys.readouterr().out == ""


def at_a_terminal(*words: str, output: Path | None = None, **environment: str) -> tuple[int, str]:
    """Run a command; return its exit status and what a terminal receives. output: the file for the rest."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sottovoce", *words]
    usual = {"OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "200"}
    with (
        open(theirs if output is None else output, "wb", closefd=output is not None) as standard_output,
        subprocess.Popen(
            command, stdout=standard_output, stderr=theirs, env={**os.environ, **usual, **environment}
        ) as process,
    ):
        os.close(theirs)
        pieces = []
        try:
            while piece := os.read(ours, 4096):
                pieces.append(piece)
        except OSError:  # the other side is closed
            pass
    os.close(ours)
    return process.returncode, b"".join(pieces).decode()


@pytest.mark.parametrize("quiet", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_terminal_shows_text_or_a_bar_and_never_both(quiet: bool, clip: Path, tmp_path: Path) -> None:
    words = ["transcribe", str(clip), str(clip), *FAST, "-f", "srt", "-o", str(tmp_path)]
    status, received = at_a_terminal(*words, *(["--quiet"] if quiet else []))
    shown = re.sub(r"\x1b\[[\d;?]*\w", "", received)
    assert status == 0, shown
    said = " ".join((tmp_path / "clip.srt").read_text(encoding="utf-8").splitlines()[2:3])
    assert said
    assert (said in shown) == (not quiet)
    assert ("━" in shown) == quiet


@pytest.mark.parametrize("wanted", [(), ("-f", "json", "-o", "-")])
def test_text_for_a_file_stays_out_of_the_terminal_with_the_bar(
    wanted: tuple[str, ...], clip: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    status, received = at_a_terminal("transcribe", str(clip), *FAST, *wanted, output=output)
    assert (status, "━" in received) == (0, True)
    written = output.read_text(encoding="utf-8").strip()
    text = json.loads(written)["text"].strip() if wanted else written
    assert len(text.split()) > 3
    assert text.split()[0] not in received


def test_log_lines_stand_above_the_bar(clip: Path, tmp_path: Path) -> None:
    whole = clip.read_bytes()
    (tmp_path / "cut.flac").write_bytes(whole[: len(whole) // 2])
    status, received = at_a_terminal("batch", str(tmp_path), str(tmp_path / "table.jsonl"), *FAST)
    assert (status, "━" in received) == (0, True)
    before, _, after = received.partition("WARNING")
    assert before.endswith("\x1b[2K")
    assert "cut.flac: truncated?" in after


def test_errors_are_red_at_a_terminal_unless_colours_are_refused() -> None:
    for words in (("transcribe", "missing.wav"), ("transcribe", "--nosuch")):
        assert at_a_terminal(*words)[1].startswith("\x1b[31merror:\x1b[0m ")
        assert at_a_terminal(*words, NO_COLOR="1")[1].startswith("error: ")


CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"
FAST_ODD = ["--model", "nano", "--beam-size", "1", "--temperature", "0"]
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
        run(["transcribe", str(recording), *FAST_ODD, "-l", "en", "-f", "all", "-o", str(tmp_path / "out")])
        == 0
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
    call = ["batch", str(recording.parent), str(tmp_path / name), *FAST_ODD, "--language", "en"]
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
    words = ["transcribe", *recordings, *FAST_ODD, "-l", "en", "-f", formats, "-o", out]
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
    call("batch", folder, table, *FAST_ODD, "-l", "en")
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
    output = call("transcribe", CLIP, *FAST_ODD, "-l", "en", "-f", "srt", "-o", tmp_path)
    assert "nothing is kept in case of a break" in output.err
    assert (tmp_path / "en.srt").is_file()


def test_long_hotwords_are_no_file(tmp_path: Path, call: Call) -> None:
    terms = ", ".join(["word"] * 50)
    call("transcribe", CLIP, *FAST_ODD, "-l", "en", "-f", "srt", "-o", tmp_path, "--hotwords", terms)
    assert [file.name for file in tmp_path.iterdir()] == ["en.srt"]
