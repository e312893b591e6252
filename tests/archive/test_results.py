"""Lists of recordings, and tables that grow, go on after a crash, and never hold a recording twice."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.archive.results import (
    Item,
    JsonLinesTable,
    Row,
    failed_row,
    left_to_do,
    list_recordings,
    open_results,
    row_of,
    write_rows,
)
from sottovoce.errors import ManifestError, OptionError
from sottovoce.types import Segment, Transcript, Turn, Word

Table = Callable[[str], Path]
WORD = Word(" Grüße", 0.0, 0.5, 0.9, "de")
SAID = Transcript((Segment(0, 0.0, 1.0, " Grüße,\n„du“", "de", (1, 2), words=(WORD,)),), "de", 1.0, "nano")


def item(name: str) -> Item:
    return Item(name, f"/archive/{name}")


def good(name: str) -> Row:
    return row_of(item(name), SAID, "nano")


@pytest.fixture(params=["out.jsonl", "out.parquet"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    return tmp_path / request.param


def rows_in(table: Path) -> list[Row]:
    with open_results(table) as results:
        return list(results.rows())


def test_rows_come_back_as_they_were(table: Path) -> None:
    told_apart = row_of(item("c"), replace(SAID, turns=(Turn(0.0, 1.0, "A"),)), "nano")
    wanted = [good("a"), failed_row(item("b"), "nano", "not a recording"), told_apart]
    with open_results(table) as results:
        assert [row["id"] for row in write_rows(iter(wanted), results)] == ["a", "b", "c"]
    assert rows_in(table) == json.loads(json.dumps(wanted))


def test_a_second_run_does_what_is_left_and_one_of_two_equal_rows_stays(table: Path) -> None:
    items = [item(name) for name in "abc"]
    with open_results(table) as results:
        assert left_to_do(items, results) == items
        list(write_rows([good("a"), good("b"), good("a")], results))
    with open_results(table) as results:
        assert left_to_do(items, results) == [item("c")]
        list(write_rows([good("c")], results))
    assert [row["id"] for row in rows_in(table)] == ["a", "b", "c"]


@pytest.mark.parametrize("error", [OptionError("b:\nno sound"), MemoryError(), IndexError("9")], ids=repr)
def test_a_recording_that_failed_has_a_row_of_one_line(error: Exception) -> None:
    row = row_of(item("b"), error, "nano")
    assert row["segments"] == []
    assert isinstance(row["error"], str)
    assert len(row["error"].splitlines()) == 1


def test_the_reason_behind_a_long_name_is_kept() -> None:
    error = row_of(item("b"), OptionError(f"{'long/' * 100}b: no sound"), "nano")["error"]
    assert str(error).endswith("b: no sound")


def test_failed_ones_are_done_again_only_when_asked(table: Path) -> None:
    items = [item("a"), item("b")]
    with open_results(table) as results:
        list(write_rows([good("a"), failed_row(item("b"), "nano", "cut off")], results))
    with open_results(table) as results:
        assert left_to_do(items, results) == []
        assert left_to_do(items, results, again=True) == [item("b")]
        list(write_rows([good("b")], results))
    assert [(row["id"], row["error"]) for row in rows_in(table)] == [("a", None), ("b", None)]


def test_what_came_before_a_crash_is_there(table: Path) -> None:
    def crash() -> Iterator[Row]:
        yield good("a")
        raise RuntimeError("crash")

    with pytest.raises(RuntimeError), open_results(table) as results:
        list(write_rows(crash(), results))
    assert [row["id"] for row in rows_in(table)] == ["a"]


def test_half_a_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_results(path) as results:
        list(write_rows([good("a")], results))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    assert [row["id"] for row in rows_in(path)] == ["a"]
    path.write_bytes(whole[:5])
    assert rows_in(path) == []


def test_a_file_of_something_else_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    for text in ("a letter to a friend", '{"name": 1}\n{"id": "x"}'):
        path.write_text(text)
        with pytest.raises(OptionError, match="rows of transcripts"):
            rows_in(path)
        assert path.read_text() == text


def test_one_table_holds_one_model(table: Path) -> None:
    with open_results(table) as results:
        list(write_rows([good("a")], results))
    with open_results(table) as results, pytest.raises(OptionError, match="'nano'"):
        list(write_rows([row_of(item("b"), replace(SAID, model="base"), "base")], results))
    assert [row["id"] for row in rows_in(table)] == ["a"]


def test_two_writers_do_not_share_a_table(table: Path) -> None:
    with open_results(table), pytest.raises(OptionError, match="another program"), open_results(table):
        pass


def test_a_program_that_waited_for_the_lock_keeps_others_out(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl", reason="locks of POSIX")
    table = tmp_path / "out.jsonl"
    with open_results(table):
        waiting = (tmp_path / ".out.jsonl.lock").open("ab")
    with waiting:
        fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(OptionError, match="another program"), open_results(table):
            pass


@pytest.mark.parametrize("name", ["out.csv", "out"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError, match=r"\.jsonl or \.parquet"), open_results(tmp_path / name):
        pass


def test_an_interrupted_replacement_leaves_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    with open_results(path) as results:
        list(write_rows([good("a")], results))
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sottovoce.archive.results.os.replace", full)
    table = JsonLinesTable(path)
    with pytest.raises(KeyboardInterrupt):
        table.replace([])
    table.flush()
    assert path.read_bytes() == before
    assert {entry.name for entry in tmp_path.iterdir()} == {"out.jsonl", ".out.jsonl.lock"}


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    table = tmp_path / "out.jsonl"
    with pytest.raises(OptionError, match=r"out\.jsonl': cannot be written \(No space"), open_results(table):
        monkeypatch.setattr("sottovoce.archive.results.os.fsync", full)
    assert not table.exists()


def test_a_folder_gives_its_recordings_by_their_paths_in_it(tmp_path: Path) -> None:
    for name in ("b.wav", "a/c.MP3", "a/notes.txt", ".hidden.wav", ".git/d.wav", "a/b.mkv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    result = list_recordings(tmp_path)
    assert [item.id for item in result] == ["b.wav", "a/b.mkv", "a/c.MP3"]
    assert all(Path(item.path).is_absolute() and Path(item.path).exists() for item in result)


def test_lists_name_files_beside_them_and_what_stands_there_twice_is_done_once(tmp_path: Path) -> None:
    (tmp_path / "list.jsonl").write_text(
        '{"file": "a.wav", "id": "first"}\n{"file": "b.wav"}\n{"file": "b.wav"}\n'
    )
    assert list_recordings(tmp_path / "list.jsonl") == [
        Item("first", str(tmp_path / "a.wav")),
        Item("b.wav", str(tmp_path / "b.wav")),
    ]
    (tmp_path / "list.txt").write_text("a.wav\n\n  sub/ü b.wav \n")
    assert [item.id for item in list_recordings(tmp_path / "list.txt")] == ["a.wav", "sub/ü b.wav"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("list.jsonl", '{"file": "a.wav", "id": "x"}\n{"file": "b.wav", "id": "x"}\n', "'x' for two"),
        ("list.jsonl", "", "at least one"),
        ("list.txt", "\n", "at least one"),
        ("list.jsonl", "a.wav\n", "line 1: expected JSON"),
        ("nowhere.txt", None, "a list of recordings"),
    ],
)
def test_what_cannot_be_a_list_is_said_in_one_line(
    tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ManifestError, match=said) as caught:
        list_recordings(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_folder_without_recordings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="found none"):
        list_recordings(tmp_path)
