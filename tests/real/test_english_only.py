"""An English-only model does all that a model of one language can, and says what it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.types import Samples
from tests.real.conftest import model_of, people

pytestmark = [pytest.mark.real_weights, pytest.mark.long]


@pytest.fixture(scope="module")
def model(tiny_en: Checkpoint) -> Model:
    return model_of(tiny_en)


@pytest.fixture(scope="module")
def speech(data: Path | None) -> Samples:
    return load_audio(people(data, "en", 1)[0].file)


def test_words_need_no_language(model: Model, speech: Samples) -> None:
    segments = list(model.transcribe(speech, word_timestamps=True))
    words = [word for segment in segments for word in segment.words or ()]
    assert {segment.language for segment in segments} == {"en"}
    assert "".join(word.word for word in words) == "".join(segment.text for segment in segments)
    assert all(0 <= word.start <= word.end <= len(speech) / 16_000 + 0.1 for word in words)


def test_a_session_says_what_a_file_says(model: Model, speech: Samples) -> None:
    session = model.session("en", switching="off")
    events = [event for at in range(0, len(speech), 8000) for event in session.push(speech[at : at + 8000])]
    events += session.close()
    finals = [event for event in events if type(event).__name__ == "Final"]
    assert finals
    assert {event.language for event in finals} == {"en"}


def test_there_are_no_languages_to_detect(model: Model, speech: Samples) -> None:
    with pytest.raises(OptionError, match="English-only"):
        model.detect_language(speech)


def test_another_language_is_refused(model: Model, speech: Samples) -> None:
    with pytest.raises(OptionError, match="'de'"):
        model.transcribe(speech, language="de")
