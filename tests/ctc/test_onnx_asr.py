"""CTC networks of other packages: emissions and text are those of onnx-asr and of transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import sottovoce
from sottovoce.ctc import CtcDecoder
from sottovoce.ctc.labels import labels_of
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


transformers = pytest.importorskip("transformers", reason="the extra neural-lm is not installed")


def test_wav2vec2_logits_become_the_text_of_its_tokenizer(tmp_path: Path) -> None:
    names = ["<pad>", "<s>", "</s>", "<unk>", "|", *"etaonis"]
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps({name: i for i, name in enumerate(names)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(path))
    torch.manual_seed(0)
    model = transformers.Wav2Vec2ForCTC(
        transformers.Wav2Vec2Config(
            vocab_size=len(names),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            conv_dim=(16, 16),
            conv_stride=(10, 8),
            conv_kernel=(10, 8),
            num_feat_extract_layers=2,
            num_conv_pos_embedding_groups=2,
            num_conv_pos_embeddings=8,
            pad_token_id=0,
        )
    ).eval()
    model.lm_head.weight.data.mul_(400)  # far from uniform
    model.lm_head.bias.data[1:4] = -1e4  # no special tokens
    with torch.no_grad():
        logits = model(torch.randn(3, 4000)).logits
    decoder = CtcDecoder(*labels_of(tokenizer), beam_size=32)
    theirs = [" ".join(text.split()) for text in tokenizer.batch_decode(logits.argmax(dim=2))]
    assert all(theirs)
    assert [h.text for h in decoder.greedy(logits.log_softmax(dim=2))] == theirs
    beams = decoder.decode_logits(logits, torch.tensor([50, 50, 20]))
    alone = decoder.decode_logits(logits[2:, :20])
    assert beams[2][0].text == alone[0][0].text
    sure = torch.where(logits == logits.amax(dim=2, keepdim=True), 30.0, 0.0)
    assert [result[0].text for result in decoder.decode_logits(sure)] == theirs
