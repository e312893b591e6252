"""base's own CTC head on people's speech: letters near what is said, in files and live."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.cli.ctc_inputs import recorded_emissions
from sottovoce.ctc import CtcDecoder
from sottovoce.evaluation.wer import count_edits
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.text.normalize import plain
from sottovoce.types import SAMPLE_RATE, Unstable
from tests.real.conftest import people, usual_model

CHUNK_SAMPLES = SAMPLE_RATE // 2
pytestmark = [pytest.mark.real_weights, pytest.mark.slow]


@pytest.fixture(scope="module")
def model(base: Checkpoint) -> Model:
    return usual_model(base)


def letters_wrong(text: str, said: str) -> float:
    count = count_edits(list(plain(text)), list(said))
    return count.n_errors / count.n_reference


@pytest.mark.parametrize("language", ["en", "de"])
def test_letters_of_recordings(model: Model, data: Path | None, language: str) -> None:
    assert model.ctc_head is not None
    clips = [clip for clip in people(data, language, 4, with_text=True) if clip.text]
    decoder = CtcDecoder(list(model.ctc_head.labels), model.ctc_head.blank)
    emitted = [recorded_emissions(clip.file, model).values for clip in clips]
    rates = [
        letters_wrong(clip.text or "", decoder.greedy(rows)[0].text)
        for clip, rows in zip(clips, emitted, strict=True)
    ]
    assert sum(rates) / len(rates) < 0.4, rates


def test_instant_text_holds_words_that_are_said(model: Model, data: Path | None) -> None:
    n_said = n_shown = 0
    for clip in people(data, "en", 3, with_text=True):
        samples = load_audio(clip.file)
        session = model.session("en", switching="off", unstable="ctc")
        events = []
        for start in range(0, len(samples), CHUNK_SAMPLES):
            events += session.push(samples[start : start + CHUNK_SAMPLES])
        events += session.close()
        shown = {word for event in events if isinstance(event, Unstable) for word in event.text.split()}
        said = set(plain(clip.text or "").split())
        n_said, n_shown = n_said + len(said), n_shown + len(shown & said)
    assert n_shown >= 0.3 * n_said, (n_shown, n_said)
