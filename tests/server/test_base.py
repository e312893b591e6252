"""Whisper base behind the server: the same text as the library's, for recordings of people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from tests.real.conftest import usual_model, weights
from tests.server.servers import ServerThread, post, serving
from tests.server.test_live import check_events, events_of, pcm, talk

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
    found = post(server_of_base, data=path.read_bytes(), model="whisper-1").json()["text"]
    assert found == base.transcribe(path, beam_size=5).text
    assert "ask not what your country can do for you" in found


def test_a_live_session_has_the_events_of_the_library(
    base: Model, server_of_base: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Also where others use the processor.
    monkeypatch.setattr("sottovoce.runtime.update_interval.INTERVALS_S", (0.25,))
    audio = pcm(load_audio(SPEECH / "de.flac"))
    messages, code, _ = talk(server_of_base, audio, query="languages=de")
    assert code == 1000
    check_events(messages, base, audio, "de")
    assert any("sinnvoll" in event["text"] for event in events_of(messages))
