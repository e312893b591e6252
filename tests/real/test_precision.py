"""What fewer bits, batches and silence cut away cost in words, against float32 read window by window.

The clips report and chose nothing, the allowance is a round number.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.backends.registry import BACKENDS, choose_number_format
from sottovoce.evaluation.wer import ScoredUtterance, score
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.types import Samples
from tests.real.conftest import model_of, people

pytestmark = [pytest.mark.real_weights, pytest.mark.slow]

ALLOWED = 2
"""Word errors more than float32's, of some 40 words in each language."""
PAUSE = np.zeros(16_000, np.float32)
VAD = TranscribeOptions(mode="vad")
BATCHES = TranscribeOptions(mode="vad", batch_size=4)
SEEK = TranscribeOptions()
SETTINGS = {
    "bfloat16": ("bfloat16", SEEK),
    "float16": ("float16", SEEK),
    "int8": ("int8", SEEK),
    "vad": ("float32", VAD),
    "batches of 4": ("float32", BATCHES),
    "the defaults, in batches": ("bfloat16", BATCHES),
}


@pytest.fixture(scope="module", params=["en", "de"])
def spoken(request: pytest.FixtureRequest, data: Path | None) -> tuple[str, Samples, str]:
    """A language, and clips of it in one recording of half a minute, with what is said."""
    chosen = people(data, request.param, 4, with_text=True)
    samples = np.concatenate([piece for clip in chosen for piece in (load_audio(clip.file), PAUSE)])
    return request.param, samples, " ".join(clip.text or "" for clip in chosen)


def errors(model: Model, spoken: tuple[str, Samples, str], options: TranscribeOptions) -> int:
    language, samples, truth = spoken
    segments = model.transcribe(samples, language=language, options=options)
    text = "".join(segment.text for segment in segments)
    return score([ScoredUtterance(truth, text, language)]).overall.wer.counts.n_errors


@pytest.fixture(scope="module")
def reference_errors(base: Checkpoint, spoken: tuple[str, Samples, str]) -> int:
    return errors(model_of(base, "float32"), spoken, SEEK)


def test_the_native_decoder_costs_few_words(
    base: Checkpoint, spoken: tuple[str, Samples, str], reference_errors: int
) -> None:
    pytest.importorskip("sottovoce_kernels", reason="sottovoce-kernels is not installed")
    cpu = torch.device("cpu")
    native = Model(base, BACKENDS["native"](base, cpu, choose_number_format("auto", cpu)))
    assert errors(native, spoken, SEEK) <= reference_errors + ALLOWED


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_costs_few_words(
    base: Checkpoint, spoken: tuple[str, Samples, str], reference_errors: int, setting: str
) -> None:
    dtype, options = SETTINGS[setting]
    assert errors(model_of(base, dtype), spoken, options) <= reference_errors + ALLOWED
