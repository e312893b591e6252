"""`sottovoce transcribe --translate-to`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sottovoce.api import load_model
from sottovoce.cli.main import run
from sottovoce.errors import OptionError
from sottovoce.offline.options import TranscribeOptions
from sottovoce.translation.own import with_english
from sottovoce.types import Segment
from tests.translation.server import stand_in, upper

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "de.flac"
SERVER = ["--translate-to", "fr", "--translation-url", "http://x", "--translation-model", "m"]
FAST = ["--model", "nano", "--beam-size", "1", "--temperature", "0", "--language", "de"]


def test_a_server_translates_beside_what_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOTTOVOCE_TRANSLATION_KEY", "secret")
    with stand_in(upper) as server:
        words = ["--translate-to", "French", "--translation-url", server.url, "--translation-model", "tiny"]
        assert run(["transcribe", str(CLIP), *FAST, *words, "-f", "srt,json", "-o", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""
    (segment,) = json.loads((tmp_path / "de.json").read_text(encoding="utf-8"))["segments"]
    assert segment["translation"] == segment["text"].strip().upper()
    cue = (tmp_path / "de.srt").read_text(encoding="utf-8").split("\n")
    assert cue[3] == cue[2].upper()
    assert server.keys == ["Bearer secret"]


def test_a_server_that_fails_leaves_no_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with stand_in(lambda _: (401, "no")) as server:
        words = ["--translate-to", "fr", "--translation-url", server.url, "--translation-model", "tiny"]
        assert run(["transcribe", str(CLIP), *FAST, *words, "-f", "srt", "-o", str(tmp_path)]) == 2
    assert "answered 401" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_whisper_itself_is_asked_for_english(tmp_path: Path) -> None:
    assert (
        run(["transcribe", str(CLIP), *FAST, "--translate-to", "en", "-f", "json", "-o", str(tmp_path)]) == 0
    )
    (segment,) = json.loads((tmp_path / "de.json").read_text(encoding="utf-8"))["segments"]
    assert segment["text"].strip()
    assert isinstance(segment["translation"], str)


def test_what_words_are_asked_for_is_no_matter_of_the_english(tmp_path: Path) -> None:
    words = ["-f", "json", "-o", str(tmp_path), "-w", "--word-threshold", "0.5", "--translate-to", "en"]
    assert run(["transcribe", str(CLIP), *FAST, *words]) == 0
    (segment,) = json.loads((tmp_path / f"{CLIP.stem}.json").read_text(encoding="utf-8"))["segments"]
    assert segment["words"]


def test_what_is_english_stays() -> None:
    model = load_model("nano", device="cpu")
    segments = [Segment(0, 0.0, 1.0, " It is so.", "en")]
    (one,) = with_english(model, CLIP, segments, TranscribeOptions())
    assert one.translation == "It is so."


def test_an_english_only_model_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model("nano", device="cpu")
    monkeypatch.setattr(type(model.tokenizer), "is_multilingual", property(lambda _: False))
    with pytest.raises(OptionError, match="English-only model"):
        with_english(model, CLIP, [], TranscribeOptions())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--translate-to", "fr"], "needs --translation-url"),
        (["--translate-to", "klingon"], "language 'klingon'"),
        (["--translate-to", "en", "--task", "translate"], "cannot be combined with --task translate"),
        (["--translate-to", "fr", "--translation-url", "http://x"], "needs --translation-model"),
        (["--translate-to", "fr", "--translation-url", "x", "--translation-model", "m"], "expected http://"),
        (["--translation-model", "m"], "--translation-model: needs --translate-to"),
        (["--translate-to", "en", "--glossary", "x"], "--glossary: needs --translation-url"),
        (
            [*SERVER, "--glossary", "nowhere.txt"],
            "glossary 'nowhere.txt': cannot be read",
        ),
    ],
)
def test_bad_input_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transcribe", str(CLIP), *FAST, *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert told in lines[0]


def test_standard_input_is_read_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transcribe", "-", *FAST, "--translate-to", "en"]) == 2
    assert "give a file" in capsys.readouterr().err
