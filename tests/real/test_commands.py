"""What the commands find in the bundled recordings of people, with Whisper base."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from sottovoce.api import Model
from sottovoce.cli.main import run
from tests.real.conftest import EXAMPLES

pytestmark = [pytest.mark.real_weights]

Command: TypeAlias = Callable[..., str]
DE = "Das erschien mir nicht sinnvoll; es war ganz gewiss nicht fair."
SPANS = {"en": (0.0, 8.111), "de": (8.611, 12.939), "pt": (13.439, 18.599)}
"""Where who speaks in mixed.flac, seconds; from its manifest."""


@pytest.fixture
def command(
    exact_base: Model, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """A command with base in float32, which is loaded once; what it writes."""
    monkeypatch.setattr("sottovoce.api.load_model", lambda *_, **__: exact_base)

    def called(*words: str) -> str:
        model = os.environ.get("SOTTOVOCE_BASE", "base")
        assert run([*words, "--model", model, "--dtype", "float32"]) == 0
        return capsys.readouterr().out

    return called


@pytest.fixture
def said(tmp_path: Path) -> Path:
    path = tmp_path / "said.txt"
    path.write_text(DE, encoding="utf-8")
    return path


def recording(name: str) -> str:
    return str(EXAMPLES / f"{name}.flac")


def segments(document: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(document)["segments"]
    return result


def letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))


@pytest.mark.long
def test_a_phrase_is_found_as_often_as_it_is_said_and_where(command: Command) -> None:
    lines = command("find", recording("en"), "your country", "--json").splitlines()
    first, second = (json.loads(line) for line in lines)
    assert [letters(item["text"]) for item in (first, second)] == ["yourcountry", "yourcountry"]
    assert 4.0 < first["start"] < first["end"] < 7.0
    assert 8.5 < second["start"] < second["end"] < 11.0


def test_two_ways_to_align_a_text_agree(command: Command, said: Path) -> None:
    def words(method: str) -> list[dict[str, Any]]:
        document = command("align", recording("de"), str(said), "-l", "de", "-f", "json", "--method", method)
        return [word for segment in segments(document) for word in segment["words"]]

    attention, ctc = words("attention"), words("ctc")
    assert letters("".join(word["word"] for word in attention)) == letters(DE)
    assert all(a["end"] <= b["start"] + 0.01 for a, b in pairwise(attention))
    ours = {letters(word["word"]): word["start"] for word in attention if letters(word["word"])}
    theirs = {letters(word["word"]): word["start"] for word in ctc if letters(word["word"])}
    assert ours.keys() == theirs.keys()
    assert all(abs(theirs[word] - start) < 0.4 for word, start in ours.items())


@pytest.mark.long
def test_a_grammar_lets_one_of_its_sentences_be_said(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("llguidance", reason="the extra `grammar` is not installed")
    grammar = tmp_path / "said.gbnf"
    verbs, ends = '("gefiel" | "erschien" | "half")', '("kalt" | "fair" | "lang")'
    rest = f'"nicht "? ("sinnlos" | "sinnvoll") " und es war ganz gewiss nicht " {ends} "!"'
    grammar.write_text(f'root ::= "Das " {verbs} " mir " {rest}')
    result = command("transcribe", recording("de"), "-l", "de", "--grammar", str(grammar)).strip()
    assert (
        result == "Das erschien mir nicht sinnvoll und es war ganz gewiss nicht fair!"
    )  # no comma, as in DE


@pytest.mark.long
def test_german_comes_with_its_english(command: Command) -> None:
    words = ["-l", "de", "--translate-to", "en", "-f", "json", "-o", "-"]
    result = segments(command("transcribe", recording("de"), *words))
    assert letters(DE) == letters("".join(segment["text"] for segment in result))
    english = " ".join(segment["translation"] for segment in result).lower()
    assert "not fair" in english
    assert not set(english.split()) & {"nicht", "war", "gewiss"}


@pytest.mark.parametrize(
    "how",
    [("--processors", "2"), ("--audio-ctx", "1100")],
    ids=lambda how: how[0],
)
@pytest.mark.long
def test_other_ways_to_read_give_every_language_where_it_is_spoken(
    command: Command, how: tuple[str, str]
) -> None:
    words = ["-l", "en,de,pt", "-f", "json", "-o", "-", *how]
    result = segments(command("transcribe", recording("mixed"), *words))
    assert list(dict.fromkeys(item["language"] for item in result)) == ["en", "de", "pt"]
    for item in result:
        start, end = SPANS[item["language"]]
        assert start - 0.5 <= item["start"] < item["end"] <= end + 0.7
    text = letters("".join(item["text"] for item in result))
    for part in ("artofprinting", "kontaktebeschreiben", "anos"):
        assert part in text
