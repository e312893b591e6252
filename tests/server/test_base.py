"""Whisper base behind the server: the same text as the library's, for recordings of people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from openai import OpenAI

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.formats.document import event_document
from tests.real.conftest import usual_model, weights
from tests.server.servers import ServerThread, serving
from tests.server.test_live import bare, events_of, pcm, probabilities, saying, talk

pytestmark = [pytest.mark.real_weights, pytest.mark.slow]
SPEECH = Path(__file__).parents[2] / "examples" / "speech"


@pytest.fixture(scope="module")
def base() -> Model:
    return usual_model(weights("base", "SOTTOVOCE_BASE"))


@pytest.fixture(scope="module")
def server_of_base(base: Model) -> Iterator[ServerThread]:
    with serving(base) as server:
        yield server


def test_a_recording_has_the_text_of_the_library(base: Model, server_of_base: ServerThread) -> None:
    path = SPEECH / "en.flac"
    with OpenAI(base_url=f"{server_of_base.url}/v1", api_key="none", max_retries=0) as client:
        found = client.audio.transcriptions.create(model="whisper-1", file=path)
    assert found.text == base.transcribe(path, beam_size=5).text
    assert "ask not what your country can do for you" in found.text


def test_a_live_session_has_the_events_of_the_library(
    base: Model, server_of_base: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sottovoce.runtime.update_interval.INTERVALS_S", (0.25,)
    )  # also where others use the processor
    audio = pcm(load_audio(SPEECH / "de.flac"))
    messages, code, _ = talk(server_of_base, saying(audio), "languages=de")
    session = base.session(["de"])
    samples = np.frombuffer(audio, "<i2").astype(np.float32) / 32768
    expected = [event_document(event) for event in [*session.push(samples), *session.close()]]
    assert code == 1000
    told = json.loads(json.dumps(expected))
    assert [bare(event) for event in events_of(messages)] == [bare(event) for event in told]
    assert probabilities(events_of(messages)) == pytest.approx(probabilities(told), abs=1e-3)
    assert any("sinnvoll" in event["text"] for event in events_of(messages))
