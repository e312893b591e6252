"""One set of weights gives one text, whichever format it is kept in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import mel_filters
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.ggml_write import save_ggml
from sottovoce.models.checkpoint.huggingface import save_huggingface
from sottovoce.models.checkpoint.open import open_checkpoint
from sottovoce.models.checkpoint.openai import save_openai
from sottovoce.text.tokenizer import Tokenizer
from tests.real.conftest import model_of, people

pytestmark = [pytest.mark.real_weights, pytest.mark.slow]


def write_ggml(checkpoint: Checkpoint, path: Path) -> None:
    tokenizer = Tokenizer.for_model(checkpoint.dims.n_vocab)
    vocabulary = [tokenizer.token_bytes(token) for token in range(tokenizer.eot)]
    save_ggml(checkpoint, path, "f16", filters=mel_filters(checkpoint.dims.n_mels), vocabulary=vocabulary)


FORMATS: dict[str, Callable[[Checkpoint, Path], None]] = {
    "base.pt": save_openai,
    "base": save_huggingface,
    "ggml-base.bin": write_ggml,
}


def text_of(checkpoint: Checkpoint, recording: Path) -> str:
    segments = model_of(checkpoint).transcribe(load_audio(recording), language="en", word_timestamps=True)
    return "|".join(f"{w.start:.2f}{w.word}" for s in segments for w in s.words or ())


@pytest.fixture(scope="module")
def recording(data: Path | None) -> Path:
    return people(data, "en", 1)[0].file


@pytest.fixture(scope="module")
def half(base: Checkpoint) -> Checkpoint:
    """The weights as OpenAI gives them: in half precision, which every format holds without loss."""
    tensors = {name: tensor.half().float() for name, tensor in base.tensors.items()}
    return Checkpoint("base", base.dims, tensors, base.alignment_heads)


@pytest.fixture(scope="module")
def expected(half: Checkpoint, recording: Path) -> str:
    return text_of(half, recording)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_keeps_every_weight_and_so_the_text(
    half: Checkpoint, expected: str, recording: Path, tmp_path: Path, name: str
) -> None:
    FORMATS[name](half, tmp_path / name)
    again = open_checkpoint(tmp_path / name)
    kept = {tensor: values.float() for tensor, values in again.tensors.items()}
    differing = [one for one, values in half.tensors.items() if not torch.equal(values, kept[one])]
    assert differing == []
    heads = again.alignment_heads or half.alignment_heads
    assert text_of(Checkpoint("base", again.dims, again.tensors, heads), recording) == expected
