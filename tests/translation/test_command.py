"""`sottovoce transcribe --translate-to`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.cli.main import run
from sottovoce.decoding.decode import DecodingResult
from sottovoce.errors import OptionError
from sottovoce.offline.transcriber import Transcriber
from sottovoce.offline.windows import WindowCut, with_english
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.calls import Steps
from sottovoce.types import Segment
from tests.audio.media import wav_bytes
from tests.translation.server import stand_in, upper

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "de.flac"
SPANISH = CLIP.with_name("es.flac")
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


DECODED = DecodingOptions(sample_len=40)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "options",
    [
        TranscribeOptions(DECODED),
        TranscribeOptions(replace(DECODED, prefix="La casa"), word_timestamps=True),
        TranscribeOptions(DECODED, mode="vad", batch_size=2),
        TranscribeOptions(replace(DECODED, speaker_turns=True)),
        TranscribeOptions(replace(DECODED, beam_size=2), initial_prompt="La casa."),
    ],
    ids=["plain", "prefix", "batch", "tinydiarize", "prompt"],
)
def test_the_english_of_a_window_is_that_of_another_pass(model: Model, options: TranscribeOptions) -> None:
    both = model.transcribe(SPANISH, language="es", options=replace(options, with_english=True)).collect()
    alone = model.transcribe(SPANISH, language="es", options=options).collect()
    second = replace(
        options, initial_prompt=None, decoding=replace(DECODED, beam_size=options.decoding.beam_size)
    )
    english = model.transcribe(SPANISH, language="es", task="translate", options=second).collect()
    assert [replace(each, translation=None) for each in both.segments] == list(alone.segments)
    assert "".join(each.translation or "" for each in both.segments).split() == english.text.split() != []


def test_english_goes_to_the_nearest_segment_up_to_the_cut() -> None:
    def segment(start: float, end: float, text: str) -> Segment:
        return Segment(0, start, end, text, "de")

    cut = WindowCut(
        (segment(0.0, 4.0, " Eins."), segment(4.0, 9.0, " Zwei."), segment(9.0, 10.0, " Drei.")), 1000
    )
    english = [segment(0.0, 3.0, " One."), segment(3.0, 9.5, " Two."), segment(9.5, 20.0, " Four.")]
    assert [each.translation for each in with_english(cut, english).segments] == ["One.", "Two.", None]


def test_english_segments_are_not_translated(model: Model) -> None:
    options = TranscribeOptions(DECODED, with_english=True)
    assert [each.translation for each in model.transcribe(CLIP, language="en", options=options)] == [None]


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
        model.transcribe(CLIP, options=TranscribeOptions(with_english=True))


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


@pytest.mark.parametrize("source", ["-", "together"])
def test_every_kind_of_recording_is_translated(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_english = Transcriber._in_english

    def greeting(self: Transcriber, *given: Any) -> Steps[dict[int, DecodingResult]]:
        """Nano has learnt no translation."""
        tokens = tuple(self.tokenizer.encode(" Good morning."))
        results = yield from in_english(self, *given)
        return {row: replace(each, tokens=tokens) for row, each in results.items()}

    monkeypatch.setattr(Transcriber, "_in_english", greeting)
    words = ["--replace", str(tmp_path / "names.txt"), "--translate-to", "en", "-o"]
    (tmp_path / "names.txt").write_text("good => Fine\n", encoding="utf-8")
    names = [str(SPANISH), str(SPANISH.with_name("fr.flac")), "--together"] if source == "together" else ["-"]
    with SPANISH.open("rb") as file:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=file))
        assert run(["transcribe", *names, *FAST[:-1], "es", *words, str(tmp_path / "talk.json")]) == 0
    segments = json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))["segments"]
    assert [segment["translation"] for segment in segments] == ["Fine morning."] * len(segments)
