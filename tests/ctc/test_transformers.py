"""Logits of a CTC model of transformers in, text out: with its processor's labels and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sottovoce.ctc import CtcDecoder
from sottovoce.ctc.labels import labels_of

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
