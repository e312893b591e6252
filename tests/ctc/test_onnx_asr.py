"""Networks of onnx-asr: its emissions and its text, from small graphs in the form of NeMo's and T-one's.

nemo.onnx is a convolution over the features, t-one.onnx one over the samples of a chunk, with random weights.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import sottovoce
from sottovoce.errors import CheckpointError

onnx_asr = pytest.importorskip("onnx_asr", reason="onnx-asr is not installed")
CONFIGS = {
    "nemo": {"model_type": "nemo-conformer-ctc", "subsampling_factor": 8, "features_size": 80},
    "t-one": {
        "model_type": "t-one-ctc",
        "decoder_params": {"vocabulary": [" ", "a", "b"]},
        "encoder_params": {"reduction_kernel_size": 3},
        "pad_token_id": 3,
    },
}


@pytest.mark.parametrize(("kind", "frame_s"), [("nemo", 0.08), ("t-one", 0.03)])
def test_emissions_and_text_are_those_of_onnx_asr(tmp_path: Path, kind: str, frame_s: float) -> None:
    shutil.copy(Path(__file__).with_name(f"{kind}.onnx"), tmp_path / "model.onnx")
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[kind]))
    pieces = ["▁the", "▁a", "b", "c", "<blk>"]
    (tmp_path / "vocab.txt").write_text("".join(f"{piece} {i}\n" for i, piece in enumerate(pieces)))
    model = sottovoce.load_model(f"onnx-asr:{tmp_path}")
    assert model.network.frame_s == pytest.approx(frame_s)
    several = list(np.random.default_rng(1).normal(0, 0.1, (2, 32_000)).astype(np.float32))
    theirs = onnx_asr.load_model(None, tmp_path)
    for samples, ours in zip(several, model.network.emissions(several), strict=True):
        waveforms = theirs.resampler(samples[None], np.array([len(samples)]), 16_000)
        rows, _ = theirs.asr._encode(*theirs.asr._preprocessor(*waveforms))
        np.testing.assert_allclose(ours, rows[0, : len(ours)], atol=1e-4)
        assert len(ours) == pytest.approx(2.0 / frame_s, abs=1)
        if kind == "nemo":  # the last frames of T-one's text are of the silence that it adds
            greedy = model.transcribe(samples, beam_size=1).text
            assert model.transcribe(samples).text
            assert greedy.split()[:2] == theirs.recognize(samples, sample_rate=16_000).split()[:2]


def test_other_networks_and_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="none-such: expected a network of onnx-asr"):
        sottovoce.load_model("onnx-asr:none-such")
