"""`sottovoce align`, `find` and `detect-language` as people and programs meet them."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import pytest

from sottovoce.cli.align import read_text, time
from sottovoce.cli.main import run
from sottovoce.errors import OptionError
from sottovoce.types import Transcript
from tests.cli.conftest import Call

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
TEXT = "Wir haben heute viel Zeit."
NANO = ["--model", "nano", "--language", "de"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "said.txt"
    path.write_text(TEXT + "\n", encoding="utf-8")
    return path


def test_subtitles_of_a_given_text(clip: Path, text: Path, call: Call) -> None:
    output = call("align", clip, text, *NANO)
    assert TEXT in output.out
    assert "-->" in output.out


@pytest.mark.parametrize("method", ["attention", "ctc"])
def test_every_format_into_a_folder(clip: Path, text: Path, tmp_path: Path, method: str) -> None:
    folder = tmp_path / "out"
    words = ["align", str(clip), str(text), *NANO, "--method", method, "-f", "all", "-o", str(folder)]
    assert run(words) == 0
    document = json.loads((folder / "clip.json").read_text(encoding="utf-8"))
    (segment,) = document["segments"]
    assert [word["word"].strip() for word in segment["words"]] == TEXT.split()
    assert {path.suffix for path in folder.iterdir()} >= {".srt", ".ass", ".vtt", ".html", ".TextGrid"}


def test_a_transcript_is_refined(clip: Path, tmp_path: Path, call: Call) -> None:
    rough = tmp_path / "rough.srt"
    rough.write_text(f"1\n00:00:00,000 --> 00:00:03,000\n{TEXT}\n", encoding="utf-8")
    (segment,) = json.loads(call("align", clip, rough, *NANO, "-f", "json").out)["segments"]
    assert segment["start"] == pytest.approx(0.26, abs=0.3)
    assert segment["end"] == pytest.approx(2.14, abs=0.7)


def test_a_phrase_in_a_recording_and_in_its_transcript(clip: Path, tmp_path: Path, call: Call) -> None:
    heard = json.loads(call("find", clip, "heute viel", *NANO, "--json").out)
    assert heard["text"] == "heute viel"
    assert 0.2 < heard["start"] < heard["end"] < 2.2
    transcript = tmp_path / "talk.srt"
    transcript.write_text(f"1\n00:00:01,000 --> 00:00:03,000\n{TEXT}\n", encoding="utf-8")
    line = call("find", transcript, "heute viel").out
    assert line.startswith("0:01.")
    assert line.rstrip().endswith("heute viel")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.29, "0:00.29"), (59.999, "1:00.00"), (3661.5, "1:01:01.50")]
)
def test_times_are_rounded(seconds: float, shown: str) -> None:
    assert time(seconds) == shown


def test_text_on_standard_input_is_utf8(
    clip: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, code in ((TEXT.encode("utf-8-sig"), 0), (b"Wir h\xff\xfe", 2)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given), encoding="latin-1"))
        assert run(["align", str(clip), "-", *NANO, "-f", "txt"]) == code
    output = capsys.readouterr()
    assert output.out.strip() == TEXT
    assert "standard input: expected a text, got the byte" in output.err


def test_what_is_not_found_is_said_apart(tmp_path: Path, call: Call) -> None:
    transcript = tmp_path / "talk.srt"
    transcript.write_text(f"1\n00:00:01,000 --> 00:00:03,000\n{TEXT}\n", encoding="utf-8")
    output = call("find", transcript, "purple elephants", code=1)
    assert output.out == ""
    assert "no match for 'purple elephants'" in output.err
    assert call("find", transcript, "purple elephants", "--json", code=1).out == ""


CUE = f"1\n00:00:00,000 --> 00:00:03,000\n{TEXT}\n"


@pytest.mark.parametrize("written", [CUE, CUE.replace("\n", "\r\n"), f"WEBVTT\n\n{CUE}"])
def test_a_transcript_is_one_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """Times are no words to align: in a file called .txt, and in a pipe."""
    path = tmp_path / "said.txt"
    path.write_bytes(written.encode("utf-8-sig"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(written.encode())))
    for name in (str(path), "-"):
        transcript = read_text(name)
        assert isinstance(transcript, Transcript)
        assert [segment.text for segment in transcript.segments] == [f" {TEXT}"]


@pytest.mark.parametrize("written", ["{Refrain}\nWir haben Zeit.", "Von 1 --> 2.", "WIR\n\n10:30 - 12:00\n"])
def test_a_text_is_a_text(tmp_path: Path, written: str) -> None:
    path = tmp_path / "said.txt"
    path.write_text(written, encoding="utf-8")
    assert read_text(str(path)) == written


def test_subtitles_that_are_not_read_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "talk.ass"
    path.write_text("[Events]\nDialogue: 0,0:00:00.00,0:00:03.00,Default,,0,0,0,,Wir haben Zeit.\n")
    with pytest.raises(OptionError, match=r"talk\.ass': expected a name that ends in \.json, \.srt, \.vtt"):
        read_text(str(path))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_language_of_a_recording(language: str, call: Call) -> None:
    output = call("detect-language", CLIPS / f"{language}.flac", "--model", "nano")
    document = json.loads(output.out)
    assert document["language"] == language
    assert document["probability"] > 0.9
    assert output.err == ""


def test_timeline_finds_every_language_where_it_is_spoken(call: Call) -> None:
    said = call("detect-language", CLIPS / "mixed.flac", "--model", "nano", "--timeline")
    spans = json.loads(said.out)["timeline"]
    lines = (CLIPS / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    spoken = next(entry for entry in map(json.loads, lines) if entry["id"] == "demo/mixed")["segments"]
    assert [span["language"] for span in spans] == [span["language"] for span in spoken]
    assert all(before["end"] == after["start"] for before, after in itertools.pairwise(spans))
    for span, before, after in zip(spans, spoken, spoken[1:], strict=False):
        assert before["end"] - 0.5 <= span["end"] <= after["start"] + 0.5


def test_only_the_languages_asked_for(call: Call) -> None:
    arguments = ["--model", "nano", "--languages", "German,fr_CA.UTF-8"]
    document = json.loads(call("detect-language", CLIPS / "es.flac", *arguments).out)
    assert document["language"] in {"de", "fr"}
    assert document["allowed_mass"] < 0.5


def test_one_missing_recording_does_not_stop_the_others(call: Call) -> None:
    output = call("detect-language", "missing.wav", CLIPS / "en.flac", "--model", "nano", code=1)
    assert json.loads(output.out)["language"] == "en"
    assert output.err == "error: missing.wav: no such file\n"
