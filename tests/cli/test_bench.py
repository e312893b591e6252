"""`sottovoce bench` and `sottovoce eval`: tables or JSON, with and without a recording."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import sottovoce
from sottovoce.cli.evaluate import latencies, mixed_with
from sottovoce.cli.main import run
from sottovoce.evaluation import speed
from sottovoce.evaluation.manifest import LabelledSpan, ManifestEntry
from sottovoce.evaluation.scores import LiveRun
from sottovoce.models.checkpoint.torch_file import save_openai
from sottovoce.models.load import load_checkpoint
from sottovoce.types import Word
from tests.audio.media import wav_bytes
from tests.cli.conftest import Call
from tests.models import tiny

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"
PARTS = ["loading", "spectrogram, 30 s", "encoder, 30 s", "decoder, 100 tokens at once", "decoder, a token"]


MEMORY = "peak memory"


@pytest.mark.long
def test_a_document_for_each_number_format(call: Call) -> None:
    arguments = ["--dtype", "float32,int8", "--beam-size", "1", "--repeats", "1", "--json"]
    results = [json.loads(line) for line in call("bench", "-m", "nano", *arguments).out.splitlines()]
    assert [(result["model"], result["dtype"]) for result in results] == [
        ("nano", "float32"),
        ("nano", "int8"),
    ]
    assert all(list(result["measures"]) == [*PARTS, MEMORY] for result in results)
    assert all(result["measures"]["encoder, 30 s"]["ms"] > 0 for result in results)
    assert results[0]["runtime"] == "torch, float32"


@pytest.fixture
def one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """One part is measured instead of all, which tests/evaluation/test_speed.py shows."""
    monkeypatch.setattr(speed, "model_parts", lambda *_: [("encoder, 30 s", speed.Timing(0.1, 0.1, 0.1))])


@pytest.mark.usefixtures("one_part")
def test_a_document_for_each_runtime(call: Call) -> None:
    pytest.importorskip("sottovoce_kernels", reason="sottovoce-kernels is not installed")
    arguments = ["--backend", "torch,native", "--beam-size", "1", "--repeats", "1", "--json"]
    results = [json.loads(line) for line in call("bench", "-m", "nano", *arguments).out.splitlines()]
    assert [result["backend"] for result in results] == ["torch", "native"]
    assert all(result["runtime"].startswith(f"{result['backend']},") for result in results)


def test_without_options_the_beam_is_that_of_the_model(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    beams = []
    monkeypatch.setattr(speed, "model_parts", lambda _, beam_size, __: beams.append(beam_size) or [])
    assert MEMORY in call("bench", "-m", "nano", "--repeats", "1").out
    assert beams == [5]


@pytest.mark.long
@pytest.mark.usefixtures("one_part")
def test_a_recording_is_transcribed_and_heard_live(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.api.load_model", sottovoce.load_model)  # loading takes its time
    arguments = ["-m", "nano", "--language", "en", "--seconds", "2", "--repeats", "1"]
    measures = json.loads(call("bench", CLIP, *arguments, "--beam-size", "2", "--json").out)["measures"]
    assert list(measures) == [
        "loading",
        "encoder, 30 s",
        "transcription, 2 s, beam 2",
        "live sessions",
        MEMORY,
    ]
    assert 0 <= measures["live sessions"]["late_updates"] <= 1
    loading = measures["loading"]
    assert 0 < loading["lowest_s"] <= loading["s"] <= loading["highest_s"]
    assert sys.platform != "linux" or measures[MEMORY]["mb"] > 10
    assert measures["transcription, 2 s, beam 2"]["audio_s"] == 2.0
    assert measures["live sessions"]["n_words"] > 0
    assert measures["live sessions"]["sessions"] >= 1
    said = call("bench", CLIP, *arguments, "--live", "--json")
    (live,) = [json.loads(line)["measures"] for line in said.out.splitlines()]
    assert list(live) == ["loading", "encoder mode", "live sessions", MEMORY]
    assert run(["bench", "-m", "nano", "--live"]) == 2


@pytest.mark.usefixtures("one_part")
def test_the_table_has_a_row_for_each_measure(call: Call) -> None:
    said = call("bench", "-m", "nano", "--dtype", "float32,int8", "--beam-size", "1", "--repeats", "1")
    heading, *rows = said.out.splitlines()
    assert heading.split() == ["nano", "float32", "nano", "int8"]
    assert [row.split("  ")[0] for row in rows] == ["runtime", "loading", "encoder, 30 s", MEMORY]
    assert "…" not in "".join(rows)


@pytest.mark.long
def test_live_finds_the_encoder_mode_of_weights_and_stores_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setenv("SOTTOVOCE_CACHE", str(tmp_path / "cache"))
    size = tiny.dims(n_vocab=51864, n_audio_ctx=1500, n_text_ctx=448, n_audio_layer=1, n_text_layer=1)
    save_openai(tiny.checkpoint(size), tmp_path / "own.pt", "float32")
    noise = np.random.default_rng(0).normal(0.0, 0.1, 24 * 16000).astype(np.float32)
    (tmp_path / "noise.wav").write_bytes(wav_bytes(noise))
    arguments = ["--live", "--repeats", "1", "-m", str(tmp_path / "own.pt"), "--json"]
    said = call("bench", tmp_path / "noise.wav", "--seconds", "20", *arguments)
    assert json.loads(said.out)["measures"]["encoder mode"] == {}
    captured = call("bench", tmp_path / "noise.wav", *arguments)
    assert json.loads(captured.out)["measures"]["encoder mode"]["work"] > 1.0
    assert load_checkpoint(tmp_path / "own.pt").encoder_mode is not None


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
    document = json.loads(call(*command, "--chunk-ms", "1000", "--finals", "read").out)
    assert document["n_recordings"] == 1
    assert document["live"][0]["laal_s"] > 0
    assert document["live"][0]["finals"] == document["offline"]


@pytest.mark.parametrize(
    ("language", "text"),
    [("zh", "今天 天气好"), ("ja", "今日は晴れ"), ("th", "สวสดก"), ("yue", "今日好天氣")],
)
def test_lags_are_by_characters_where_words_have_no_spaces(language: str, text: str) -> None:
    """Half of the characters came, one a second: the pace is that of all five, in both measures of lag."""
    units = [*text.replace(" ", "")][:3]
    words = tuple(Word(unit, float(i), i + 1.0, 0.9, language) for i, unit in enumerate(units))
    delays = (1.0, 2.0, 3.0)
    live = LiveRun(words, delays, delays, (), 10.0, 0.1, 0.1)
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
