"""Voices that are kept by name: by the command, and recognised in files and live."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.cli.options import speakers_of
from sottovoce.cli.stream import stream
from sottovoce.cli.transcribe import transcribe
from sottovoce.speakers.diarize import FOLDER, VoiceBook
from sottovoce.speakers.live_speakers import LiveSpeakers
from sottovoce.types import Turn
from tests.cli.conftest import Call, call  # noqa: F401 - a fixture
from tests.options.test_every_option import CONTEXT
from tests.speakers.test_live_speakers import TALK, names, words
from tests.speakers.tones import ToneSpeakers, ToneVoices, recording


def test_voices_are_kept_listed_recognised_and_removed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Call,  # noqa: F811
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "voices"))
    speech = recording((Turn(0.0, 3.0, "high"),), 3.0)
    with wave.open(str(tmp_path / "voice.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, len(speech), "NONE", ""))
        file.writeframes((speech * 32767).astype("<i2").tobytes())
    call("voices", "add", "Zoë / 2", tmp_path / "voice.wav")
    assert call("voices", "list").out == "Zoë / 2\n"
    for command, more in ((transcribe, ["x.wav"]), (stream, ["-"])):
        given: Any = command.make_context("x", [*more, "--speakers", "auto"], **CONTEXT).params
        options = speakers_of(given)
        assert options is not None
        np.testing.assert_allclose(options.known["Zoë / 2"], speech, atol=1e-3)
        without = speakers_of({**given, "stored_voices": False})
        assert without is not None
        assert not without.known
    live = LiveSpeakers(ToneSpeakers(), ToneVoices(), options)
    live.push(recording(TALK, 15.0), is_speech=True)
    assert names(live.relabel(words(0.0, 8.0)))[2::8] == ["A", "Zoë / 2"]
    assert "expected one of Zoë" in call("voices", "remove", "Bob", code=2).err
    call("voices", "remove", "Zoë / 2")
    assert VoiceBook().names == []
