"""`sottovoce ctc` with the lists and labels that other programs write: byte order marks, accents in two code
points, words that no labels spell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sottovoce.cli.main import run


@pytest.fixture
def reports(shared_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(shared_dir / "fixtures/reports")
    return shared_dir / "fixtures/reports"


def best(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    """The first hypothesis."""
    assert run(["ctc", *words]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[0])
    return found


@pytest.mark.parametrize(
    ("options", "text", "told"),
    [
        ("", "the cafe is open", ""),
        ("--hotwords hotwords-nfc.txt", "the café is open", ""),
        ("--hotwords hotwords-nfd.txt", "the café is open", ""),
        ("--lexicon lexicon.txt", "the café is open", ""),
        ("--lexicon lexicon-bom.txt", "the café is open", ""),
        ("--lexicon words.txt", "the café is open", ""),
        ("--lexicon words-strange.txt", "the café is open", "'2nd' (line 4, no label '2'), 'foo-bar'"),
        ("--lm lm-nfd.arpa", "the café is open", ""),
    ],
)
def test_lists_of_the_reports(
    reports: Path,
    options: str,
    text: str,
    told: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = best(capsys, "cafe.npy", "--labels", "labels.txt", *options.split())
    assert found["text"] == text
    assert told in caplog.text
    assert bool(caplog.text) == bool(told)


def test_the_weight_of_a_class_behind_a_byte_order_mark_counts(
    reports: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    words = ["--hotwords", "hotwords-bom-class.txt", "--hotword-weight", "0.001"]
    found = best(capsys, "cafe.npy", "--labels", "labels.txt", *words)
    assert "café" in str(found["text"])
    assert caplog.text == ""


@pytest.mark.parametrize("lm", ["lm-nfc.arpa", "lm-nfd.arpa"])
def test_n_grams_of_either_form_score_the_same(
    reports: Path, lm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = best(capsys, "cafe.npy", "--labels", "labels.txt", "--lexicon", "words.txt", "--lm", lm)
    assert found["text"] == "the café is open"
    assert found["lm_score"] == pytest.approx(-4.49, abs=0.005)


def test_labels_behind_a_byte_order_mark(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = best(capsys, "cat.npy", "--labels", "labels-bom.txt", "--blank", "-1")
    assert found["text"] == "a cat sat"
