"""Which recordings a folder or a list names."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.archive.results import Item, list_recordings
from sottovoce.errors import ManifestError


def test_a_folder_gives_its_recordings_by_their_paths_in_it(tmp_path: Path) -> None:
    for name in ("b.wav", "a/c.MP3", "a/notes.txt", ".hidden.wav", ".git/d.wav", "a/b.mkv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = list_recordings(tmp_path)
    assert [item.id for item in found] == ["b.wav", "a/b.mkv", "a/c.MP3"]
    assert all(Path(item.path).is_absolute() and Path(item.path).exists() for item in found)


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
