"""`/inference` and `/load`, as whisper.cpp's clients use them."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from sottovoce.audio.io import load_audio
from sottovoce.decoding.filters import suppressed_tokens
from sottovoce.options.decoding import NON_SPEECH, SPECIALS_ALONE
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.server.apis.whisper_servers import inference_request, with_turn_marks
from sottovoce.server.fields import Fields, fields_of
from sottovoce.server.settings import ModelSettings
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Samples, Segment
from tests.server.conversation import KnownSpeakers
from tests.server.servers import QuietModel, ServerThread, SlowFile, SlowModel, post, serving


@pytest.fixture(scope="module")
def two_models() -> Iterator[ServerThread]:
    with serving(SlowModel(), models=ModelSettings("small", others=("large",))) as server:
        yield server


def asked(server: ServerThread, path: Path, **fields: str) -> httpx.Response:
    """Send a clip, which a short window holds."""
    return post(server, "/inference", path.read_bytes(), name=path.name, **{"audio_ctx": "250", **fields})


def test_every_format(server: ServerThread, english: Path) -> None:
    """With the fields of the line that whisper.cpp's page shows."""
    usual = {"temperature": "0.0", "temperature_inc": "0.2", "no_speech_thold": "0.6", "language": "en"}
    text = asked(server, english, **usual).json()["text"]
    assert "garden" in text
    assert text.endswith("\n")
    assert "garden" in asked(server, english, **usual, response_format="text").text
    assert "-->" in asked(server, english, **usual, response_format="srt").text
    assert asked(server, english, **usual, response_format="vtt").text.startswith("WEBVTT")


def test_verbose_has_words_in_their_segments_and_languages(server: ServerThread, english: Path) -> None:
    document = asked(server, english, response_format="verbose_json").json()
    assert document["task"] == "transcribe"
    assert document["language"] == document["detected_language"] == "english"
    assert document["language_probabilities"]["en"] > 0.5
    words = [word for segment in document["segments"] for word in segment["words"]]
    assert "garden" in "".join(word["word"] for word in words)
    assert words[0].keys() == {"word", "start", "end", "t_dtw", "probability"}
    assert "words" not in document
    bare = asked(server, english, response_format="verbose_json", no_language_probabilities="true").json()
    assert document.keys() - bare.keys() == {"language_probabilities"}


def test_a_part_of_a_recording(server: ServerThread, english: Path) -> None:
    part = {"offset_t": "1200", "vad": "true", "vad_threshold": "0.4"}
    text = asked(server, english, language="en", **part).json()["text"]
    assert "morning" in text
    assert "garden" not in text


def stereo_file(folder: Path, left: Samples, right: Samples) -> Path:
    path = folder / "stereo.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((2, 2, 16_000, len(left), "NONE", ""))
        file.writeframes((np.stack((left, right), axis=1) * 32767).astype("<i2").tobytes())
    return path


def test_whose_channel_it_is(server: ServerThread, english: Path, tmp_path: Path) -> None:
    speech = load_audio(english)
    stereo = stereo_file(tmp_path, np.zeros_like(speech), speech)
    usual = {"language": "en", "diarize": "true"}
    assert asked(server, stereo, **usual).json()["text"].startswith("(speaker 1)")
    assert "\n(speaker 1)" in asked(server, stereo, **usual, response_format="srt").text
    assert "<v Speaker1>" in asked(server, stereo, **usual, response_format="vtt").text
    segments = asked(server, stereo, **usual, response_format="verbose_json").json()["segments"]
    assert {segment["speaker"] for segment in segments} == {"1"}


def test_voices_tell_speakers_where_channels_do_not(
    server: ServerThread, english: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a recording of one channel, and in one with the same sound in both."""
    monkeypatch.setattr("sottovoce.offline.transcription.make_diarizer", lambda _: KnownSpeakers())
    speech = load_audio(english)
    twice = stereo_file(tmp_path, speech, speech)
    usual = {"language": "en", "diarize": "true"}
    for path in (english, twice):
        lines = asked(server, path, **usual).json()["text"].splitlines()
        assert [line[:11] for line in lines] == ["(speaker 0)", "(speaker 1)"]
    assert "<v Speaker1>" in asked(server, english, **usual, response_format="vtt").text
    segments = asked(server, english, **usual, response_format="verbose_json").json()["segments"]
    assert [segment["speaker"] for segment in segments] == ["0", "1"]


def test_turns_of_tinydiarize_are_signs_in_the_text() -> None:
    assert options(tinydiarize="true").decoding.speaker_turns
    segments = [
        Segment(i, float(i), i + 1.0, f" {i}", "en", speaker=name)
        for i, name in enumerate(("turn 1", "turn 1", "turn 2"))
    ]
    assert [item.text for item in with_turn_marks(segments)] == [" 0", " 1 [SPEAKER_TURN]", " 2"]
    assert {item.speaker for item in with_turn_marks(segments)} == {None}


@pytest.mark.parametrize(
    ("fields", "reported"),
    [
        ({"diarize": "true", "tinydiarize": "true"}, "speaker_turns"),
        ({"diarize": "maybe"}, "diarize"),
        ({"offset_n": "-1"}, "offset_n"),
        ({"offset_n": "2.5", "response_format": "srt"}, "offset_n"),
        ({"offset_n": "many"}, "offset_n"),
        ({"word_thold": "1.5"}, "word_thold"),
        ({"word_thold": "nan", "response_format": "verbose_json"}, "word_thold"),
        ({"max_len": "2.5"}, "max_len"),
        ({"beam_size": "17"}, "beam_size"),
        ({"audio_ctx": "20"}, "audio_ctx"),
        ({"suppress_nst": "true", "suppress_non_speech": "false"}, "suppress_nst"),
        ({"temperature": "warm"}, "temperature"),
        ({"response_format": "lrc"}, "response_format"),
        ({"language": "klingon"}, "klingon"),
        ({"vad": "true", "vad_threshold": "7"}, "vad_threshold"),
    ],
)
def test_errors_are_one_line(
    two_models: ServerThread, english: Path, fields: dict[str, str], reported: str
) -> None:
    answer = asked(two_models, english, **fields)
    assert answer.status_code == 400
    assert reported in answer.json()["error"]


def options(**fields: str) -> TranscribeOptions:
    return inference_request(Fields(fields.items()), "small").options


def test_what_is_off_or_without_effect_changes_nothing() -> None:
    off = {"beam_size": "-1", "best_of": "0", "audio_ctx": "0", "max_context": "-1", "max_len": "0"}
    other = {"diarize": "false", "suppress_nst": "true", "word_thold": "0.1", "offset_n": "20"}
    assert inference_request(Fields([]), "small") == inference_request(
        Fields([*off.items(), *other.items(), ("split_on_word", "true"), ("debug_mode", "true")]), "small"
    )
    assert set(fields_of("whisper_cpp")) > {"file", "vad", "translate"}


def test_their_search_is_done() -> None:
    result = options(beam_size="2", best_of="3", audio_ctx="750", max_context="0", entropy_thold="2.4")
    assert (result.decoding.beam_size, result.audio_ctx, result.max_context) == (2, 750, 0)
    assert (result.fallback.best_of, result.fallback.entropy_threshold) == (3, 2.4)
    assert options(suppress_nst="false").decoding.suppress_tokens == SPECIALS_ALONE
    assert options(suppress_non_speech="0").decoding.suppress_tokens == SPECIALS_ALONE
    for n_vocab in (51_864, 51_865):  # whatever else is never written stays so
        tokenizer = Tokenizer.for_model(n_vocab)
        assert SPECIALS_ALONE[0] > tokenizer.eot
        usual, specials = (
            set(suppressed_tokens(these, tokenizer)) for these in ((NON_SPEECH,), SPECIALS_ALONE)
        )
        assert usual - specials == set(tokenizer.non_speech_tokens)


@pytest.mark.parametrize("length", ["3.4028234663852886e+38", "30", "1e9"])
def test_speech_of_any_length_is_cut_into_windows(length: str) -> None:
    vad = options(vad="true", vad_max_speech_duration_s=length).vad
    assert vad is not None
    assert vad.max_speech_s == 30.0


def test_improbable_words_take_their_times_from_others(server: ServerThread, english: Path) -> None:
    """With a threshold that no word reaches, all of an answer's words do."""
    usual = {"language": "en", "response_format": "verbose_json"}
    events = words_of(asked(server, english, **usual))
    spread = words_of(asked(server, english, **usual, word_thold="1.0"))
    assert [word["word"] for word in spread] == [word["word"] for word in events]
    assert [word["start"] for word in spread] != [word["start"] for word in events]


def words_of(answer: httpx.Response) -> list[dict[str, Any]]:
    return [word for segment in answer.json()["segments"] for word in segment["words"]]


def test_a_threshold_is_of_an_answer_that_has_words() -> None:
    assert options(word_thold="0.2", response_format="verbose_json").word_threshold == 0.2
    assert options(word_thold="0.2", response_format="srt", max_len="16").word_threshold == 0.2
    assert options(word_thold="0.2", response_format="srt").word_threshold == 0.0
    assert options(response_format="verbose_json").word_threshold == 0.0


class BeamModel(QuietModel):
    """Notes the beam of each transcription."""

    def __init__(self) -> None:
        super().__init__()
        self.beams: list[object] = []

    def transcribe(self, source: object, **options: object) -> SlowFile:
        self.beams.append(options["beam_size"])
        return super().transcribe(source, **options)


def test_a_beam_of_ones_own(english: Path) -> None:
    model = BeamModel()
    with serving(model) as server:
        for beam_size in ("-1", "2", "1"):
            assert asked(server, english, beam_size=beam_size).status_code == 200
    assert model.beams == [5, 2, 1]


def test_segments_of_a_length(server: ServerThread, english: Path) -> None:
    usual = {"language": "en", "max_len": "16"}
    whole_text = asked(server, english, language="en").json()["text"]
    lines = asked(server, english, **usual).json()["text"].splitlines()
    assert "".join(lines).split() == whole_text.split()
    assert len(lines) > 1
    assert all(len(line.strip()) <= 16 or " " not in line.strip() for line in lines)
    blocks, later = (
        asked(server, english, **usual, response_format="srt", offset_n=n).text.strip().split("\n\n")
        for n in ("0", "20")
    )
    assert len(blocks) == len(lines)
    assert [block.partition("\n")[0] for block in later] == [str(21 + i) for i in range(len(blocks))]
    assert [block.partition("\n")[2] for block in later] == [block.partition("\n")[2] for block in blocks]
    segments = asked(server, english, **usual, response_format="verbose_json").json()["segments"]
    assert [segment["id"] for segment in segments] == list(range(len(lines)))
    assert [segment["text"] for segment in segments] == lines
    assert all(segment["words"] for segment in segments)
    ends = [item for segment in segments for item in (segment["start"], segment["end"])]
    assert ends == sorted(ends)


@pytest.mark.parametrize(
    ("fields", "temperatures"),
    [
        ({}, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        ({"temperature": "0.4", "temperature_inc": "0.3"}, (0.4, 0.7, 1.0)),
        ({"temperature": "0.5", "temperature_inc": "0"}, (0.5,)),
        ({"temperature": "0.5", "temperature_inc": "2.2e-311"}, (0.5,) * 11),
    ],
)
def test_temperatures(fields: dict[str, str], temperatures: tuple[float, ...]) -> None:
    assert options(**fields).fallback.temperatures == temperatures


def load(server: ServerThread, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/load", files={name: (None, value) for name, value in fields.items()})


def test_only_models_that_are_offered_can_be_loaded(two_models: ServerThread, server: ServerThread) -> None:
    assert load(server, model="nano").status_code == 403
    for path in ("/etc/passwd", "../large", "models/ggml-large.bin"):
        answer = load(two_models, model=path)
        assert answer.status_code == 404
        assert "expected one of small, large" in answer.json()["error"]
    assert load(two_models, name="large").status_code == 400
    assert "large" not in two_models.services.registry.running
    assert load(two_models, model="large").text == "Load was successful!\n"
    assert "large" in two_models.services.registry.running
    assert two_models.services.inference_model == "large"
