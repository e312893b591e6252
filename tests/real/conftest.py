"""Real Whisper weights and recordings of people; a test without either skips and says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.harness.clips import Clip, clips, shown, spread
from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.errors import SottovoceError
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.devices import CPU, choose_number_format
from sottovoce.models.load import load_checkpoint
from sottovoce.runtime.registry import BACKENDS, choose_runtime
from sottovoce.types import SAMPLE_RATE

EXAMPLES = Path(__file__).parents[2] / "examples" / "speech"


def weights(name: str, variable: str) -> Checkpoint:
    """The weights of that name, or those that the environment points to."""
    try:
        return load_checkpoint(os.environ.get(variable, name))
    except SottovoceError as error:
        pytest.skip(f"Whisper {name} cannot be had: {error}")


@pytest.fixture(scope="session")
def base() -> Checkpoint:
    return weights("base", "SOTTOVOCE_BASE")


@pytest.fixture(scope="session")
def tiny_en() -> Checkpoint:
    return weights("tiny.en", "SOTTOVOCE_TINY_EN")


def model_of(checkpoint: Checkpoint, dtype: str = "float32") -> Model:
    device = pytest.importorskip("torch").device("cpu")
    return Model(checkpoint, BACKENDS["torch"](checkpoint, device, choose_number_format(dtype, device)))


def usual_model(checkpoint: Checkpoint) -> Model:
    """As `load_model` has it on a processor: with the native kernels, which are quick, where they are."""
    runtime = choose_runtime("auto", "auto", CPU, checkpoint.dims).name
    return Model(checkpoint, BACKENDS[runtime](checkpoint, CPU, choose_number_format("auto", CPU)))


@pytest.fixture(scope="session")
def base_model(base: Checkpoint) -> Model:
    return usual_model(base)


@pytest.fixture(scope="session")
def exact_base(base: Checkpoint) -> Model:
    """In float32, as openai-whisper computes."""
    return model_of(base)


LONGEST_S = 10.0
"""Clips of tests are short: openai-whisper and float32 take seconds for each of theirs."""


def people(data: Path | None, language: str, n_clips: int, *, with_text: bool = False) -> list[Clip]:
    """Short clips that report, of the examples and of the data folder; a skip where there are none."""
    result = [clip for clip in shown(EXAMPLES) if clip.language == language]
    if data is not None:
        result += clips(data, "test", language=language, with_text=with_text)
    if not result:
        pytest.skip(f"no recording of a person who speaks '{language}': the data folder is missing")
    # The demo's clips lie in the data folder too; what is said twice in a row is written once.
    different = {clip.text or clip.name: clip for clip in result}.values()
    some = spread(list(different), 8 * n_clips)
    short = [clip for clip in some if len(load_audio(clip.file)) <= LONGEST_S * SAMPLE_RATE]
    return (short or some)[:n_clips]


@pytest.fixture(scope="session")
def data(request: pytest.FixtureRequest) -> Path | None:
    """The folder with recordings beside the checkout, if it is there."""
    try:
        return Path(request.getfixturevalue("shared_dir")) / "data"
    except pytest.skip.Exception:
        return None
