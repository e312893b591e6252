"""`sottovoce eval` on the demo's clips: one JSON document each, pictures where asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sottovoce.cli.evaluate import latencies, mixed_with
from sottovoce.evaluation.latency import LiveRun
from sottovoce.evaluation.manifest import LabelledSpan, ManifestEntry
from sottovoce.types import Word
from tests.cli.conftest import Call

MANIFEST = str(Path(__file__).parents[2] / "examples" / "clips" / "manifest.jsonl")
MODEL = ["--model", "nano", "--dtype", "float32"]


def test_language_accuracy_by_width(call: Call) -> None:
    document = json.loads(call("eval", "language", MANIFEST, *MODEL, "--widths", "2,3").out)
    assert document["n_recordings"] == 5
    assert [row["width_s"] for row in document["widths"]] == [2.0, 3.0]
    assert all(row["accuracy"] >= 0.9 for row in document["widths"])


@pytest.mark.long
def test_switches_and_their_picture(tmp_path: Path, call: Call) -> None:
    command = ["eval", "switching", MANIFEST, *MODEL, "--chunk-ms", "1000", "--plots", str(tmp_path)]
    document = json.loads(call(*command, "--languages", "en,de,es,fr").out)
    assert document["within_1_s"]["true"] == 3
    assert document["within_1_s"]["f1"] >= 0.8
    assert (tmp_path / "demo-mixed.png").stat().st_size > 1000


def test_latency_beside_offline(call: Call) -> None:
    command = ["eval", "latency", MANIFEST, *MODEL, "--languages", "en", "--frame-thresholds", "25"]
    document = json.loads(call(*command, "--chunk-ms", "1000").out)
    assert document["n_recordings"] == 1
    assert document["live"][0]["laal_s"] > 0


@pytest.mark.parametrize(
    ("language", "text"),
    [("zh", "今天 天气好"), ("ja", "今日は晴れ"), ("th", "สวสดก"), ("yue", "今日好天氣")],
)
def test_lags_are_by_characters_where_words_have_no_spaces(language: str, text: str) -> None:
    """Half of the characters came, one a second: the pace is that of all five, in both measures of lag."""
    units = [*text.replace(" ", "")][:3]
    words = tuple(Word(unit, float(i), i + 1.0, 0.9, language) for i, unit in enumerate(units))
    delays = (1.0, 2.0, 3.0)
    live = LiveRun(words, delays, delays, language, (), 10.0, 0.1, 0.1)
    entry = ManifestEntry("a", Path("a"), language, text, (LabelledSpan(0.0, 10.0, language, text),))
    scores = latencies([entry], [(text, list(words))], [live])
    assert scores["laal_s"] == pytest.approx(0.0)
    assert scores["stream_laal_s"] == pytest.approx(0.0)


def test_errors_of_offline_transcripts(call: Call) -> None:
    said = call("eval", "wer", MANIFEST, *MODEL, "--languages", "de")
    assert json.loads(said.out)["overall"]["n_utterances"] == 1


def test_noise_has_the_level_asked_for() -> None:
    rng = np.random.default_rng(0)
    speech, noise = rng.normal(0, 0.1, 16000).astype(np.float32), rng.normal(0, 1, 3000).astype(np.float32)
    added = mixed_with(speech, noise, 10.0) - speech
    assert 10 * np.log10(np.mean(speech**2) / np.mean(added**2)) == pytest.approx(10.0, abs=0.01)
