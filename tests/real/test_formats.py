"""One set of weights gives one text, whichever format it is kept in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sottovoce.audio.io import load_audio
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.convert import write_checkpoint
from sottovoce.models.load import open_checkpoint
from tests.real.conftest import model_of, people

pytestmark = [pytest.mark.real_weights, pytest.mark.slow]


FORMATS = {"base.pt": "pt", "base-hf": "hf", "ggml-base.bin": "ggml", "base-ct2": "ct2"}


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
    write_checkpoint(half, tmp_path / name, FORMATS[name], "float16")
    again = open_checkpoint(tmp_path / name)
    kept = {tensor: values.float() for tensor, values in again.tensors.items()}
    differing = [one for one, values in half.tensors.items() if not torch.equal(values, kept[one])]
    assert differing == []
    heads = again.alignment_heads or half.alignment_heads
    assert text_of(Checkpoint("base", again.dims, again.tensors, heads), recording) == expected
