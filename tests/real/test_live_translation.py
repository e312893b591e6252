"""English by Whisper itself beside live speech of people, whose own words stay as they are."""

from __future__ import annotations

import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.translation.live_translator import LiveTranslation, LiveTranslator
from sottovoce.translation.whisper_translate import N_NEW_WORDS, WhisperTranslator
from sottovoce.types import SAMPLE_RATE, Event, Final
from tests.real.conftest import EXAMPLES, usual_model

pytestmark = [pytest.mark.real_weights, pytest.mark.slow]


@pytest.fixture(scope="module")
def model(base: Checkpoint) -> Model:
    return usual_model(base)


def beside(model: Model, name: str, languages: list[str]) -> tuple[list[Event], list[LiveTranslation]]:
    """Events of a clip as it is spoken, and what they say in English."""
    audio = load_audio(str(EXAMPLES / f"{name}.flac"))
    session, translator = model.session(languages), WhisperTranslator(model)
    live = LiveTranslator(translator, N_NEW_WORDS)
    events: list[Event] = []
    told: list[LiveTranslation] = []
    for at in range(0, len(audio) + SAMPLE_RATE, SAMPLE_RATE):
        piece = audio[at : at + SAMPLE_RATE]
        translator.push(piece)
        new = session.push(piece) if len(piece) else session.close()
        events += new
        told += [one for event in new for one in live.take(event)]
    return events, told


def test_english_stands_beside_german(model: Model) -> None:
    events, told = beside(model, "de", ["de"])
    said = " ".join(event.text for event in events if isinstance(event, Final))
    english = " ".join(one.text for one in told if one.is_final)
    assert "nicht fair" in said
    assert "fair" not in english.replace("not fair", "")
    assert "it was not fair" in english.lower()


def test_of_several_languages_english_alone_stays(model: Model) -> None:
    events, told = beside(model, "mixed", ["en", "de", "pt"])
    finals = {event.utterance: event for event in events if isinstance(event, Final)}
    whole = {one.utterance: one.text for one in told if one.is_final}
    assert list(whole) == list(finals)
    assert {final.language for final in finals.values()} == {"en", "de", "pt"}
    for number, final in finals.items():
        assert (whole[number] == final.text.strip()) == (final.language == "en")
    german = " ".join(whole[number] for number, final in finals.items() if final.language == "de").lower()
    assert "contact" in german
    assert "describe" in german
