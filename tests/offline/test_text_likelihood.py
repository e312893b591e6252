"""The text of a stretch is the likeliest in the language that it is in; asked together or one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.api import Model, load_model
from sottovoce.audio.features import RecordingFeatures
from sottovoce.audio.recording import Recording
from sottovoce.engine.executor import LocalExecutor
from sottovoce.offline.follow import SILENCE, TextLikelihood, with_silence
from sottovoce.offline.pieces import Piece
from sottovoce.offline.transcriber import Transcriber
from sottovoce.options.transcribe import TranscribeOptions

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
LANGUAGES = ["en", "de", "es", "fr"]


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("nano", device="cpu", dtype="float32")


@pytest.mark.parametrize("language", LANGUAGES)
def test_text_is_likeliest_in_the_language_that_is_spoken(model: Model, language: str) -> None:
    transcriber = Transcriber(model.backend, model.tokenizer, TranscribeOptions())
    with Recording(CLIPS / f"{language}.flac") as recording, RecordingFeatures(recording) as features:
        features.has(400)
        stretch = Piece(0, 300)
        executor = LocalExecutor(model.backend)
        together = TextLikelihood(transcriber, features)
        found = executor.run(together.nats(stretch, LANGUAGES))
        assert max(found, key=lambda code: found[code]) == language
        alone = TextLikelihood(transcriber, features)
        for code in LANGUAGES:
            assert executor.run(alone.nats(stretch, [code]))[code] == pytest.approx(found[code], abs=1e-3)
        calls = together.nats(stretch, LANGUAGES)
        with pytest.raises(StopIteration) as remembered:  # and nothing is asked of the model again
            next(calls)
        assert remembered.value.value == found


def test_a_stretch_is_read_with_half_of_the_pauses_around_it() -> None:
    pieces = [Piece(0, 100), Piece(120, 200), Piece(200, 260), Piece(460, 500)]
    assert with_silence(pieces[1:3], pieces) == Piece(110, 260 + SILENCE)
    assert with_silence(pieces[:1], pieces) == Piece(0, 110)
    assert with_silence(pieces[3:], pieces) == Piece(460 - SILENCE, 500 + SILENCE)
