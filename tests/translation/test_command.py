"""`sottovoce transcribe --translate-to`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import AudioSource, Recording, Source, load_audio
from sottovoce.cli.main import run
from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.translation.whisper_translate import with_english
from sottovoce.types import Segment, Turn
from tests.audio.media import wav_bytes
from tests.translation.server import stand_in, upper

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "de.flac"
SERVER = ["--translate-to", "fr", "--translation-url", "http://x", "--translation-model", "m"]
FAST = ["--model", "nano", "--beam-size", "1", "--temperature", "0", "--language", "de"]


def test_a_server_translates_beside_what_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOTTOVOCE_TRANSLATION_KEY", "secret")
    with stand_in(upper) as server:
        words = ["--translate-to", "French", "--translation-url", server.url, "--translation-model", "tiny"]
        assert run(["transcribe", str(CLIP), *FAST, *words, "-f", "srt,json", "-o", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""
    (segment,) = json.loads((tmp_path / "de.json").read_text(encoding="utf-8"))["segments"]
    assert segment["translation"] == segment["text"].strip().upper()
    cue = (tmp_path / "de.srt").read_text(encoding="utf-8").split("\n")
    assert cue[3] == cue[2].upper()
    assert server.keys == ["Bearer secret"]


def test_a_server_that_fails_leaves_no_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with stand_in(lambda _: (401, "no")) as server:
        words = ["--translate-to", "fr", "--translation-url", server.url, "--translation-model", "tiny"]
        assert run(["transcribe", str(CLIP), *FAST, *words, "-f", "srt", "-o", str(tmp_path)]) == 2
    assert "answered 401" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["de.srt.part"], (
        "what was read is kept for the next try"
    )


def test_whisper_itself_is_asked_for_english(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nano has learnt no translation: what it would say is given here for each clip that is asked for."""
    transcribe = Model.transcribe

    def translating(self: Model, source: AudioSource, **wish: Any) -> Any:
        if wish.get("task") != "translate":
            return transcribe(self, source, **wish)
        assert (source, wish["language"]) == (Source(str(CLIP)), "de")
        return [
            Segment(0, start, start + 0.5, f" From {start:g} s on.", "de")
            for start in wish["options"].clip_timestamps[::2]
        ]

    monkeypatch.setattr(Model, "transcribe", translating)
    assert (
        run(["transcribe", str(CLIP), *FAST, "--translate-to", "en", "-f", "json", "-o", str(tmp_path)]) == 0
    )
    (segment,) = json.loads((tmp_path / "de.json").read_text(encoding="utf-8"))["segments"]
    assert segment["text"].strip()
    assert segment["translation"] == f"From {segment['start']:g} s on."


def test_word_options_do_not_matter_to_the_english(tmp_path: Path) -> None:
    words = ["-f", "json", "-o", str(tmp_path), "-w", "--word-threshold", "0.5", "--translate-to", "en"]
    assert run(["transcribe", str(CLIP), *FAST, *words]) == 0
    (segment,) = json.loads((tmp_path / f"{CLIP.stem}.json").read_text(encoding="utf-8"))["segments"]
    assert segment["words"]


def test_english_segments_are_not_translated(model: Model) -> None:
    segments = [Segment(0, 0.0, 1.0, " It is so.", "en")]
    (segment,) = with_english(model, CLIP, segments, TranscribeOptions())
    assert segment == segments[0]
    assert segment.translation is None


class Nobody:
    """Tells no speakers apart, and counts how often it is asked."""

    def __init__(self) -> None:
        self.n_asked = 0

    def turns(self, recording: Recording) -> list[Turn]:
        self.n_asked += 1
        return []


DECODED = DecodingOptions(sample_len=20)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "options",
    [
        TranscribeOptions(DECODED, mode="vad", channels="apart", batch_size=2),
        TranscribeOptions(
            DECODED, follow_languages=True, hallucination_silence_threshold=2.0, word_timestamps=True
        ),
        TranscribeOptions(replace(DECODED, speaker_turns=True)),
        TranscribeOptions(replace(DECODED, prefix="Ganz gewiss")),
    ],
    ids=["apart", "follow", "tinydiarize", "prefix"],
)
def test_the_english_is_heard_whatever_was_asked_for_of_the_transcript(
    model: Model, options: TranscribeOptions
) -> None:
    segments = [Segment(0, 0.5, 4.0, " Das ist so.", "de")]
    plain = TranscribeOptions(DECODED)
    assert with_english(model, CLIP, segments, options) == with_english(model, CLIP, segments, plain)


def test_nobody_tells_speakers_apart_again(model: Model) -> None:
    nobody = Nobody()
    segments = [Segment(0, 0.5, 2.0, " Das ist so.", "de"), Segment(1, 2.0, 4.0, " Ja.", "fr")]
    with_english(model, CLIP, segments, TranscribeOptions(DECODED, speakers=nobody))
    assert nobody.n_asked == 0


@pytest.mark.parametrize("channels", [["--channels", "apart", "--vad"], ["--channels", "energy"]])
def test_channels_are_translated_to_the_end(channels: list[str], tmp_path: Path) -> None:
    samples = load_audio(CLIP)
    stereo = tmp_path / "call.wav"
    stereo.write_bytes(wav_bytes(np.stack([samples, np.zeros_like(samples)])))
    words = [*channels, "--translate-to", "en", "-f", "json", "-o", str(tmp_path)]
    assert run(["transcribe", str(stereo), *FAST, *words]) == 0
    (segment,) = json.loads((tmp_path / "call.json").read_text(encoding="utf-8"))["segments"]
    assert segment["speaker"]
    assert segment["text"].strip()


def test_an_english_only_model_cannot(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(model.tokenizer), "is_multilingual", property(lambda _: False))
    with pytest.raises(OptionError, match="English-only model"):
        with_english(model, CLIP, [], TranscribeOptions())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--translate-to", "fr", "--translation-url", "http://x"], "needs --translation-model"),
        (["--translate-to", "fr", "--translation-url", "x", "--translation-model", "m"], "expected http://"),
        (["--translate-to", "en", "--glossary", "x"], "--glossary: needs --translation-url"),
        ([*SERVER, "--glossary", "nowhere.txt"], "glossary 'nowhere.txt': no such file; expected terms"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transcribe", str(CLIP), *FAST, *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_standard_input_is_read_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transcribe", "-", *FAST, "--translate-to", "en"]) == 2
    assert "expected a file, which is read twice" in capsys.readouterr().err
