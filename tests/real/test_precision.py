"""Fewer bits, batches and cut silence cost few words against float32 read window by window; a format of
weights costs none.

The clips report and chose nothing, the allowance is a round number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.scores import ScoredUtterance, score
from sottovoce.models.checkpoint.base import Checkpoint, floats
from sottovoce.models.devices import choose_number_format
from sottovoce.models.load import open_checkpoint, write_checkpoint
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.registry import BACKENDS
from sottovoce.types import Samples
from tests.real.conftest import CPU, model_of, people

pytestmark = [pytest.mark.real_weights, pytest.mark.long]

ALLOWED = 2
"""Word errors more than float32's, of some 40 words in each language."""
PAUSE = np.zeros(16_000, np.float32)
BATCHES = TranscribeOptions(mode="vad", batch_size=4)
SEEK = TranscribeOptions()
SETTINGS = {
    "bfloat16": ("en", "bfloat16", SEEK),
    "float16": ("de", "float16", SEEK),
    "int8": ("en", "int8", SEEK),
    "batches of 4": ("en", "float32", BATCHES),
    "the defaults, in batches": ("de", "bfloat16", BATCHES),
}
"""Each in one language."""
Recording: TypeAlias = tuple[str, Samples, str]
"""A language, and clips of it in one recording of half a minute, with what is said."""


@pytest.fixture(scope="module")
def recordings(data: Path | None) -> dict[str, Recording]:
    result = {}
    for language in ("en", "de"):
        chosen = people(data, language, 4, with_text=True)
        samples = np.concatenate([piece for clip in chosen for piece in (load_audio(clip.file), PAUSE)])
        result[language] = language, samples, " ".join(clip.text or "" for clip in chosen)
    return result


def errors(model: Model, spoken: Recording, options: TranscribeOptions) -> int:
    language, samples, truth = spoken
    segments = model.transcribe(samples, language=language, options=options)
    text = "".join(segment.text for segment in segments)
    return score([ScoredUtterance(truth, text, language)]).overall.wer.counts.n_errors


@pytest.fixture(scope="module")
def model(base: Checkpoint) -> Callable[[str], Model]:
    """The model in a number format, loaded once."""
    return cache(lambda dtype: model_of(base, dtype))


@pytest.fixture(scope="module")
def reference_errors(model: Callable[[str], Model], recordings: dict[str, Recording]) -> dict[str, int]:
    return {language: errors(model("float32"), item, SEEK) for language, item in recordings.items()}


@pytest.mark.parametrize("language", ["en", "de"])
def test_the_native_decoder_costs_few_words(
    base: Checkpoint, recordings: dict[str, Recording], reference_errors: dict[str, int], language: str
) -> None:
    pytest.importorskip("sottovoce_kernels", reason="sottovoce-kernels is not installed")
    native = Model(base, BACKENDS["native"](base, CPU, choose_number_format("auto", CPU)))
    assert errors(native, recordings[language], SEEK) <= reference_errors[language] + ALLOWED


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_costs_few_words(
    model: Callable[[str], Model],
    recordings: dict[str, Recording],
    reference_errors: dict[str, int],
    setting: str,
) -> None:
    language, dtype, options = SETTINGS[setting]
    result = errors(model(dtype), recordings[language], options)
    assert result <= reference_errors[language] + ALLOWED


FORMATS = {"base.pt": "pt", "base-hf": "hf", "ggml-base.bin": "ggml", "base-ct2": "ct2"}


@pytest.fixture(scope="module")
def half(base: Checkpoint) -> Checkpoint:
    """The weights as OpenAI gives them: in half precision, which every format holds without loss."""
    tensors = {name: floats(tensor.astype(np.float16)) for name, tensor in base.tensors.items()}
    return Checkpoint("base", base.dims, tensors, base.alignment_heads)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_keeps_every_weight(half: Checkpoint, tmp_path: Path, name: str) -> None:
    write_checkpoint(half, tmp_path / name, FORMATS[name], "float16")
    again = open_checkpoint(tmp_path / name)
    kept = {tensor: floats(values) for tensor, values in again.tensors.items()}
    differing = [item for item, values in half.tensors.items() if not np.array_equal(values, kept[item])]
    assert differing == []
    assert again.dims == half.dims
    assert (again.alignment_heads or half.alignment_heads) == half.alignment_heads
