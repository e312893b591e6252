"""Speakers told apart with the real networks, where their weights can be had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.speakers.errors import diarization_errors
from sottovoce.audio.io import Recording, load_audio
from sottovoce.errors import SottovoceError
from sottovoce.options.transcribe import Diarizer, SpeakerOptions
from sottovoce.speakers.diarize import make_diarizer
from sottovoce.types import SAMPLE_RATE, Samples, Turn

SPEECH = Path(__file__).parents[2] / "examples" / "speech"
EACH_S = 5
pytestmark = pytest.mark.real_weights


@pytest.fixture(scope="module")
def own() -> Diarizer:
    try:
        return make_diarizer(SpeakerOptions(n_speakers=2))
    except SottovoceError as error:
        pytest.skip(f"the weights cannot be had: {error}")


def voice(name: str) -> Samples:
    return load_audio(SPEECH / f"{name}.flac", duration_s=EACH_S)


def test_two_people_are_told_apart(own: Diarizer) -> None:
    names = ("en", "de", "en", "de")
    samples = np.concatenate([voice(name) for name in names])
    starts = np.cumsum([0, *(len(voice(name)) for name in names)]) / SAMPLE_RATE
    truth = [Turn(starts[i], starts[i + 1], name) for i, name in enumerate(names)]
    errors = diarization_errors(truth, own.turns(Recording(samples)))
    assert errors.confused < 0.1 * errors.speech
