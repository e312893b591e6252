"""`transcribe --speaker-names`, `--known-voice`, `--min-speakers` and `--max-speakers`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sottovoce.cli.main import run
from sottovoce.offline import transcription
from sottovoce.options.transcribe import SpeakerOptions
from sottovoce.speakers.diarize import ClusteringDiarizer
from sottovoce.types import Turn
from tests.audio.media import wav_bytes
from tests.speakers.tones import ToneSpeakers, ToneVoices, recording

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "de.flac"
FAST = ["--model", "nano", "--beam-size", "1", "--temperature", "0", "--language", "de"]
TALK = (Turn(0.2, 4.0, "middle"), Turn(4.3, 8.0, "low"), Turn(8.2, 12.0, "high"), Turn(12.2, 15.6, "middle"))


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    path = tmp_path / "talk.wav"
    path.write_bytes(wav_bytes(recording(TALK, 16.0)))
    return path


@pytest.fixture(autouse=True)
def _tones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks that hear tones stand in for those that hear people: no weights are needed."""

    def tone_diarizer(wish: SpeakerOptions) -> ClusteringDiarizer:
        return ClusteringDiarizer(ToneSpeakers(), ToneVoices(), wish)

    monkeypatch.setattr(transcription, "make_diarizer", tone_diarizer)


def turns(talk: Path, *words: str) -> list[tuple[float, str]]:
    """Where turns begin, and whose they are, in the JSON document; tones are not read as speech."""
    out = talk.with_suffix(".json")
    assert run(["transcribe", str(talk), *FAST, "--vad", *words, "-o", str(out)]) == 0
    return [(round(turn["start"]), turn["speaker"]) for turn in json.loads(out.read_text())["turns"]]


def test_names_by_the_order_of_first_speech(talk: Path) -> None:
    assert turns(talk, "--speakers", "auto") == [(0, "A"), (4, "B"), (8, "C"), (12, "A")]
    named = turns(talk, "--speakers", "3", "--speaker-names", "Ann, Bob Lee")
    assert named == [(0, "Ann"), (4, "Bob Lee"), (8, "C"), (12, "Ann")]
    swapped = turns(talk, "--speakers", "auto", "--speaker-names", "B,A")
    assert swapped == [(0, "B"), (4, "A"), (8, "C"), (12, "B")]


def test_names_are_in_every_document(talk: Path, tmp_path: Path) -> None:
    words = ["--speakers", "auto", "--speaker-names", "Ann,Bob,Eve", "-f", "all", "-o", str(tmp_path / "out")]
    words += ["--no-read-again"]  # words over tones, where nobody speaks, are left out otherwise
    assert run(["transcribe", str(talk), *FAST, "--duration", "9", *words]) == 0
    document = json.loads((tmp_path / "out" / "talk.json").read_text())
    speakers = {segment["speaker"] for segment in document["segments"]}
    assert speakers <= {"Ann", "Bob", "Eve"}
    assert speakers
    for segment in document["segments"]:
        assert {word["speaker"] for word in segment["words"]} == {segment["speaker"]}
    assert (tmp_path / "out" / "talk.rttm").read_text().split()[7] == "Ann"
    for extension in ("txt", "srt", "vtt", "ass", "html", "TextGrid", "lrc"):
        text = (tmp_path / "out" / f"talk.{extension}").read_text(encoding="utf-8")
        assert any(name in text for name in speakers), extension


def test_known_voices_have_their_names_wherever_they_speak(talk: Path, tmp_path: Path) -> None:
    voice = tmp_path / "eve.wav"
    voice.write_bytes(wav_bytes(recording((Turn(0.0, 2.0, "high"),), 2.0)))
    names = turns(talk, "--speakers", "auto", "--known-voice", f"Eve={voice}", "--speaker-names", "Ann")
    assert names == [(0, "Ann"), (4, "B"), (8, "Eve"), (12, "Ann")]
    low = tmp_path / "low=1.wav"
    low.write_bytes(wav_bytes(recording((Turn(0.0, 2.0, "low"),), 2.0)))
    both = ["--known-voice", f"Eve={voice}", "--known-voice", f"Bob={low}"]
    assert turns(talk, "--speakers", "auto", *both) == [(0, "A"), (4, "Bob"), (8, "Eve"), (12, "A")]


def test_bounds_of_the_number_of_speakers(talk: Path) -> None:
    assert {name for _, name in turns(talk, "--speakers", "auto", "--max-speakers", "2")} == {"A", "B"}
    two = ["--speakers", "auto", "--min-speakers", "2", "--max-speakers", "12"]
    assert {name for _, name in turns(talk, *two)} == {"A", "B", "C"}
    alone = talk.with_name("one.wav")
    alone.write_bytes(wav_bytes(recording((Turn(0.2, 9.0, "low"), Turn(9.5, 14.0, "low")), 15.0)))
    assert {name for _, name in turns(alone, "--speakers", "auto")} == {"A"}


def test_a_part_has_its_own_order(talk: Path) -> None:
    names = turns(talk, "--speakers", "2", "--speaker-names", "Ann,Bob", "--offset", "8.1")
    assert names == [(8, "Ann"), (12, "Bob")]


def test_channels_are_named_in_their_order(tmp_path: Path) -> None:
    from sottovoce.audio.io import load_audio

    speech = load_audio(CLIP)
    nothing = np.zeros_like(speech)
    both = np.stack([np.concatenate([nothing, speech]), np.concatenate([speech, nothing])])
    path = tmp_path / "call.wav"
    path.write_bytes(wav_bytes(both))
    for channels in ("energy", "apart"):
        out = tmp_path / f"{channels}.json"
        words = ["--channels", channels, "--speaker-names", "Ann,Bob", "-o", str(out)]
        assert run(["transcribe", str(path), *FAST, *words]) == 0
        segments = json.loads(out.read_text())["segments"]
        assert (segments[0]["speaker"], segments[-1]["speaker"]) == ("Bob", "Ann")
