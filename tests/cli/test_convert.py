"""`sottovoce convert`: what `transcribe` would have written, out of what it wrote, without a model."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from sottovoce.cli.main import run
from sottovoce.formats.files import FORMATS, OF_SPEAKERS, extension_of
from tests.cli.conftest import Call
from tests.cli.test_transcribe import one_error

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
FAST = ["-m", "nano", "--beam-size", "1", "--temperature", "0"]
SAID = ["transcribe", str(CLIPS / "mixed.flac"), *FAST, "-l", "en,de,es,fr"]
GERMAN = ["transcribe", str(CLIPS / "de.flac"), *FAST, "-l", "de", "-w"]
TEXTS = sorted(set(FORMATS) - {*OF_SPEAKERS, "html"})
"""Formats that need neither speakers nor the recording."""
LAYOUTS = (
    ["-f", "srt", "--max-line-width", "20", "--max-line-count", "1"],
    ["-f", "json,srt", "--regroup", "split pause=0.5; split words=4"],
)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with mixed.json, mixed.full.json and de.full.json.

    transcribed: every format of the first. plain: its JSON without words.
    """
    folder = tmp_path_factory.mktemp("made")
    all_of_it, plain = folder / "transcribed", folder / "plain"
    assert run([*SAID, "-w", "-f", ",".join(TEXTS), "-o", str(all_of_it)]) == 0
    for name in ("mixed.json", "mixed.full.json"):
        shutil.copy(all_of_it / name, folder)
    assert run(["convert", str(all_of_it / "mixed.srt"), "-f", "json", "-o", str(plain)]) == 0
    assert run([*GERMAN, "-f", "json-full", "-o", str(folder)]) == 0
    return folder


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_every_format_is_what_transcribe_writes(documents: Path, tmp_path: Path) -> None:
    formats = ",".join(TEXTS)
    assert (
        run(["convert", str(documents / "mixed.full.json"), "-f", formats, "-o", str(tmp_path / "out")]) == 0
    )
    expected = written(documents / "transcribed")
    assert set(expected) == {f"mixed.{extension_of(name)}" for name in TEXTS}
    assert written(tmp_path / "out") == expected


@pytest.mark.parametrize("layout", LAYOUTS, ids=" ".join)
def test_every_layout_is_what_transcribe_writes(documents: Path, tmp_path: Path, layout: list[str]) -> None:
    assert run([*GERMAN, *layout, "-o", str(tmp_path / "transcribed")]) == 0
    assert run(["convert", str(documents / "de.full.json"), *layout, "-o", str(tmp_path / "out")]) == 0
    assert written(tmp_path / "out") == written(tmp_path / "transcribed")


def test_all_leaves_out_turns_that_nobody_told_apart(documents: Path, tmp_path: Path) -> None:
    assert run(["convert", str(documents / "mixed.json"), "-f", "all", "-o", str(tmp_path)]) == 0
    assert {path.suffix for path in tmp_path.iterdir()} >= {".srt", ".html", ".json"}
    assert not (tmp_path / "mixed.rttm").exists()


def test_text_goes_to_standard_output(documents: Path, call: Call) -> None:
    shown = call("convert", documents / "mixed.json")
    document = json.loads((documents / "mixed.json").read_text())
    assert shown.out == "".join(segment["text"].strip() + "\n" for segment in document["segments"])
    assert shown.err == ""


def test_several_documents_a_line_each(documents: Path, call: Call) -> None:
    inputs = [str(documents / "mixed.json"), str(documents / "plain" / "mixed.json")]
    said = call("convert", *inputs, "-f", "json", "-o", "-")
    assert said.out.encode() == b"".join(Path(name).read_bytes() for name in inputs)


def test_names_are_those_of_transcribe(documents: Path, tmp_path: Path) -> None:
    inputs = [documents / "mixed.json", documents / "mixed.full.json", documents / "plain" / "mixed.json"]
    assert run(["convert", *map(str, inputs), "-f", "srt", "-o", str(tmp_path)]) == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"{documents.name}-mixed.json.srt", "plain-mixed.json.srt", "mixed.full.json.srt"}
    assert run(["convert", str(documents / "mixed.full.json"), "-o", str(tmp_path / "one.vtt")]) == 0
    assert (tmp_path / "one.vtt").read_text().startswith("WEBVTT")


class Pipe:
    """Standard input that holds a document."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


@pytest.mark.parametrize("kind", ["json", "vtt", "srt"])
def test_a_transcript_comes_through_a_pipe(
    documents: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    assert (
        run(["convert", str(documents / "plain" / "mixed.json"), "-o", str(tmp_path / f"talk.{kind}")]) == 0
    )
    monkeypatch.setattr(sys, "stdin", Pipe((tmp_path / f"talk.{kind}").read_bytes()))
    piped = call("convert", "-", "-f", "srt", "-o", "-").out
    assert piped == call("convert", documents / "plain" / "mixed.json", "-f", "srt", "-o", "-").out
    assert piped.startswith("1\n00:00:00,")


def test_a_page_plays_the_recording_that_is_named(documents: Path, tmp_path: Path, call: Call) -> None:
    clip = shutil.copy(CLIPS / "mixed.flac", tmp_path)
    path = tmp_path / "out.html"
    words = ["convert", str(documents / "mixed.json"), "-o", str(path)]
    assert run([*words, "--recording", clip]) == 0
    page = path.read_text()
    assert ' src="mixed.flac"' in page
    assert 'id="spectrogram"' in page
    assert "<title>mixed.flac</title>" in page
    assert run([*words, "--recording", clip, "--embed-audio"]) == 0
    assert ' src="data:audio/' in path.read_text()
    assert run(words) == 0
    assert '<audio id="player" controls preload="metadata"></audio>' in path.read_text()
    printed = call(*words[:2], "-f", "html", "-o", "-", "--recording", clip).out
    assert quote(os.path.relpath(os.path.realpath(clip))) in printed
    refused = call(*words[:2], "-f", "srt", "-o", "-", "--recording", clip, code=2)
    assert refused.err == "error: --recording: needs --output-format html\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read (No such file or directory)"), ("hello", "expected JSON, got something else")],
)
def test_what_is_no_transcript_is_one_line(
    documents: Path, tmp_path: Path, content: str | None, message: str, call: Call
) -> None:
    path = tmp_path / "talk.json"
    if content is not None:
        path.write_text(content)
    line = one_error(call("convert", path, "-f", "srt", "-o", tmp_path / "out", code=2).err)
    assert f"transcript '{path}'" in line
    assert message in line
    good = str(documents / "mixed.json")
    assert run(["convert", str(path), good, "-f", "srt", "-o", str(tmp_path / "out")]) == 1
    assert os.listdir(tmp_path / "out") == ["mixed.srt"]


def test_a_transcript_is_not_written_over_itself(documents: Path, call: Call) -> None:
    before = (documents / "mixed.json").read_bytes()
    said = call("convert", documents / "mixed.json", "-f", "json", "-o", documents, code=2)
    assert "is one of the inputs" in one_error(said.err)
    assert (documents / "mixed.json").read_bytes() == before


def test_neither_pytorch_nor_a_model_is_loaded(documents: Path, tmp_path: Path) -> None:
    script = """
import builtins, sys
importing = builtins.__import__
def without(name, *rest, **named):
    assert name.partition(".")[0] not in ("torch", "numpy", "av", "tiktoken", "huggingface_hub"), name
    return importing(name, *rest, **named)
builtins.__import__ = without
from sottovoce.cli.main import run
sys.exit(run(sys.argv[1:]))
"""
    formats = ",".join([*TEXTS, "html"])
    words = ["convert", str(documents / "mixed.full.json"), "-f", formats, "-o", str(tmp_path)]
    words += ["--max-line-width", "20", "--regroup", "split words=4"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(os.listdir(tmp_path)) == len(TEXTS) + 1


def test_colours_tell_how_sure_words_are(documents: Path, call: Call) -> None:
    assert "\x1b[" in call("convert", documents / "mixed.json", "--colour-confidence").out
