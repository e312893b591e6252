"""`sottovoce detect-language`: one JSON document a line, with times when asked."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call

CLIPS = Path(__file__).parents[2] / "examples" / "clips"


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
