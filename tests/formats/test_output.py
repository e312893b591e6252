"""A document appears whole or not at all, and a failure leaves what was there before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import OptionError
from sottovoce.formats.output import document_names, open_output, output_paths, writable_folder


def write(path: Path | str, *pieces: str, live: bool = False) -> None:
    with open_output(path, live=live) as add:
        for piece in pieces:
            add(piece)


def write_and_fail(path: Path | str, error: BaseException, live: bool = False) -> None:
    with open_output(path, live=live) as add:
        add("half")
        raise error


def test_the_file_appears_at_the_end_in_utf8_with_plain_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "talk.txt"
    with open_output(path) as add:
        add("ä\n")
        assert not path.exists()
        add("你\n")
    assert path.read_bytes() == "ä\n你\n".encode()
    assert os.listdir(tmp_path) == ["talk.txt"]
    (tmp_path / "any new file").touch()
    assert path.stat().st_mode == (tmp_path / "any new file").stat().st_mode


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3)])
def test_a_failure_leaves_nothing_or_what_was_there(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "talk.txt"
    with pytest.raises(type(error)):
        write_and_fail(path, error)
    assert os.listdir(tmp_path) == []
    write(path, "old")
    with pytest.raises(type(error)):
        write_and_fail(path, error)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["talk.txt"]


def test_an_interrupt_before_the_first_piece_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sottovoce.text.files._lock", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "talk.txt", "x")
    assert os.listdir(tmp_path) == []


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="no descriptors with names")
def test_a_pipe_of_a_descriptor_is_written_to() -> None:
    """Such as `-o >(cat)` in a shell."""
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as reader, os.fdopen(theirs, "wb"):
        with open_output(f"/dev/fd/{theirs}") as write:
            write("said")
        assert reader.read(4) == b"said"


def test_a_device_is_written_to_and_not_replaced() -> None:
    write(os.devnull, "x")
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing/talk.txt", r"output '.*/missing/talk\.txt': cannot be written \("),
        ("file/talk.txt", r"output '.*/file/talk\.txt': cannot be written \("),
        (".", "is a directory"),
        pytest.param(
            "/dev/full",
            "'/dev/full': cannot be written",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system"),
        ),
    ],
)
def test_a_place_that_cannot_be_written_is_named(
    path: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with pytest.raises(OptionError, match=message):
        write(path, "x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_protected_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "talk.txt"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(OptionError, match="may not be written"):
        write(path, "x")


def test_standard_output_gets_the_whole_document_or_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    write("-", "a", "ä\r\n")
    assert capsys.readouterr().out == "aä\r\n"
    with pytest.raises(ValueError, match="x"):
        write_and_fail("-", ValueError("x"))
    assert capsys.readouterr().out == ""


def test_live_standard_output_gets_pieces_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    with open_output("-", live=True) as add:
        add("a")
        assert capsys.readouterr().out == "a"


def test_inputs_that_share_a_name_keep_more_of_it(tmp_path: Path) -> None:
    """Only as much as tells them apart, whatever the order in which they are given."""
    cases = {
        ("talk.mp3", "talk.wav", "other.mp3"): ["talk.mp3", "talk.wav", "other"],
        ("a/talk.mp3", "b/talk.mp3", "talk.wav"): ["a-talk.mp3", "b-talk.mp3", "talk.wav"],
        ("x/a/t.mp3", "y/a/t.mp3"): ["x-a-t.mp3", "y-a-t.mp3"],
        ("x/Talk.mp3", "y/talk.mp3"): ["x-Talk.mp3", "y-talk.mp3"],
        ("-", "stdin.wav"): ["stdin", "stdin.wav"],
    }
    for inputs, names in cases.items():
        for order in (list(zip(inputs, names, strict=True)), list(zip(inputs, names, strict=True))[::-1]):
            assert list(document_names([name for name, _ in order]).items()) == order


def test_an_input_given_twice_has_one_document(tmp_path: Path) -> None:
    for again in ("a.mp3", "./a.mp3", "x/../a.mp3", str(Path.cwd() / "a.mp3")):
        assert output_paths(["a.mp3", again], tmp_path, ["srt"]) == {("a.mp3", "srt"): tmp_path / "a.srt"}


@given(st.lists(st.sampled_from("ab/.-A"), min_size=1, max_size=6).map("".join), st.data())
def test_no_two_inputs_ever_share_a_file(name: str, data: st.DataObject) -> None:
    others = data.draw(st.lists(st.lists(st.sampled_from("ab/.-A"), min_size=1).map("".join), max_size=5))
    inputs = [f"/r/{word}x" for word in (name, *others)]
    names = list(document_names(inputs).values())
    distinct = {os.path.abspath(path) for path in inputs}
    assert len(names) == len(distinct)
    if len(set(names)) == len(names):
        assert len(output_paths(inputs, Path("out"), ["srt"])) == len(distinct)
    else:
        with pytest.raises(OptionError, match="both"):
            output_paths(inputs, Path("out"), ["srt"])


def test_no_input_is_overwritten(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is one of the inputs"):
        output_paths([str(tmp_path / "a.txt")], tmp_path, ["txt"])


def test_a_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    assert writable_folder(tmp_path / "a" / "b").is_dir()
    assert writable_folder(tmp_path / "a" / "b").is_dir()
    assert os.listdir(tmp_path / "a" / "b") == []
    (tmp_path / "file").write_text("")
    for place in ("file", "file/x"):
        with pytest.raises(OptionError, match=rf"output '.*{place}': cannot be written \("):
            writable_folder(tmp_path / place)


def test_files_of_killed_processes_are_removed_and_those_of_others_are_kept(tmp_path: Path) -> None:
    killed, foreign = tmp_path / ".talk.srt.0123abcd.part", tmp_path / ".other.srt.0123abcd.part"
    for path in (killed, foreign):
        path.mkdir()
        (path / "talk.srt").write_text("half")
    place = tmp_path / "talk.srt"
    with open_output(place) as first, open_output(place) as second:
        assert not killed.exists()
        for add, text in ((first, "one"), (second, "two")):
            add(text)
        assert len([*tmp_path.glob(".talk.srt.*.part")]) == 2
    assert place.read_text() in ("one", "two")
    assert {path.name for path in tmp_path.iterdir()} == {"talk.srt", foreign.name}
