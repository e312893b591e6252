"""Recordings in which nobody speaks, or not for long, read with the speech detector: no word is made up."""

from __future__ import annotations

import pytest

from benchmarks.harness.sounds import SILENCE_S, around_speech, music, repeated
from benchmarks.harness.clips import shown
from benchmarks.harness.sounds import Sound
from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.wer import ScoredUtterance, count_errors
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.types import SAMPLE_RATE, Samples
from tests.real.conftest import EXAMPLES, model_of, usual_model

pytestmark = [pytest.mark.real_weights, pytest.mark.slow]
SPOKEN = TranscribeOptions(mode="vad")
CLIP = next(clip for clip in shown(EXAMPLES) if clip.language == "en")


@pytest.fixture(scope="module", params=["base", "tiny_en"])
def model(request: pytest.FixtureRequest) -> Model:
    checkpoint: Checkpoint = request.getfixturevalue(request.param)
    return usual_model(checkpoint)


def text(model: Model, samples: Samples) -> str:
    return model.transcribe(samples, language="en", options=SPOKEN).text


@pytest.mark.parametrize("sound", [*music()], ids=lambda sound: sound.name)
def test_music_has_no_words(model: Model, sound: Sound) -> None:
    assert text(model, sound.samples) == ""


def test_silence_around_speech_adds_and_takes_nothing(model: Model) -> None:
    alone = text(model, load_audio(CLIP.file))
    assert len(alone.split()) > 15
    for made in around_speech([CLIP]):
        assert len(made.samples) > (SILENCE_S + 10) * SAMPLE_RATE
        found = count_errors(ScoredUtterance(alone, text(model, made.samples), "en")).word
        assert (found.insertions, found.deletions) == (0, 0), made.name


def test_what_is_said_six_times_is_written_six_times(base: Checkpoint) -> None:
    """Neither once, as Whisper writes it, nor cut short as a loop."""
    (clip,) = (clip for clip in shown(EXAMPLES) if clip.language == "de")
    (made,) = repeated([clip])
    said = model_of(base).transcribe(made.samples, language="de", options=SPOKEN).text
    found = count_errors(ScoredUtterance(made.text, said, "de")).word
    assert found.deletions + found.insertions + found.substitutions <= 3
