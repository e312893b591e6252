"""A recording is opened in one way by everybody who reads it: first, again, and in any command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import Source, load_audio, probe_audio
from sottovoce.cli.main import run
from sottovoce.options.decoding import DecodingOptions, DeferralOptions, FallbackOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.pictures import spectrogram_address
from sottovoce.translation.whisper_translate import with_english
from sottovoce.types import SAMPLE_RATE, Samples, Segment
from tests.audio.media import Sound, encoded_bytes, wav_bytes, write_tracks

CLIPS = Path(__file__).parents[1] / "examples" / "clips"
OPTIONS = TranscribeOptions(
    DecodingOptions(language="de", beam_size=1), FallbackOptions(temperatures=(0.0,)), audio_ctx=250
)
FAST = ["--model", "nano", "--beam-size", "1", "--temperature", "0", "-l", "de", "--audio-ctx", "250"]
FLAGS = ("audio_filter", "audio_track", "input_format")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    """Recordings that sound otherwise, or cannot be read, unless they are opened as they must be."""
    folder = tmp_path_factory.mktemp("sources")
    english, german = load_audio(CLIPS / "en.flac"), load_audio(CLIPS / "de.flac")
    sounds: list[Sound] = [(english, "eng", None), (german, "deu", None)]
    film = write_tracks(folder / "film.mka", sounds, "pcm_s16le")
    raw, both = folder / "talk.raw", folder / "both.wav"
    raw.write_bytes((german * 32768).astype(">i2").tobytes())
    both.write_bytes(wav_bytes(np.concatenate([english[-SAMPLE_RATE:], german])))
    return {
        "track": Source(film, audio_track=2),
        "format": Source(raw, input_format="s16be"),
        "filter": Source(both, audio_filter="volume=0:enable='lt(t,1)'"),
        "rate": Source(np.repeat(german, 3), sample_rate=3 * SAMPLE_RATE),
    }


def opened_by(source: Source) -> TranscribeOptions:
    return replace(OPTIONS, **{name: getattr(source, name) for name in FLAGS})


def with_second(model: Model, source: Source) -> str:
    second = model.as_second(DeferralOptions(min_avg_logprob=0.0))
    transcription = model.transcribe(source, options=OPTIONS, second=second)
    text = transcription.text
    assert transcription.second_s > 0.0
    return text


def in_english(model: Model, source: Source) -> Sequence[Segment]:
    end_s = len(load_audio(source)) / SAMPLE_RATE
    return with_english(model, source, [Segment(0, end_s - 3.0, end_s, " Das ist so.", "de")], OPTIONS)


LOOKS: dict[str, Callable[[Model, Source], object]] = {
    "headers": lambda model, source: round(probe_audio(source).duration_s or 0.0),
    "transcription": lambda model, source: model.transcribe(source, options=OPTIONS).text,
    "options": lambda model, source: (
        model.transcribe(source.place, options=opened_by(source), sample_rate=source.sample_rate).text
    ),
    "files": lambda model, source: [one for _, one in model.transcribe_files([source], options=OPTIONS)],
    "second model": with_second,
    "English": in_english,
    "spectrogram": lambda model, source: spectrogram_address(source),
    "language": lambda model, source: model.detect_language(source),
    "languages": lambda model, source: list(model.language_spans(source)),
    "alignment": lambda model, source: model.align(source, "Wir haben heute viel Zeit.", language="de"),
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("look", LOOKS)
def test_every_look_opens_a_recording_alike(look: str, sources: dict[str, Source], model: Model) -> None:
    of_samples: dict[bytes, object] = {}
    for way, source in sources.items():
        samples: Samples = load_audio(source)
        if samples.tobytes() not in of_samples:
            of_samples[samples.tobytes()] = LOOKS[look](model, Source(samples))
        assert LOOKS[look](model, source) == of_samples[samples.tobytes()], way


@pytest.mark.quick(1)
@pytest.mark.parametrize("way", ["track", "format", "filter"])
def test_every_document_of_a_command_is_of_the_recording_as_it_was_opened(
    way: str, sources: dict[str, Source], tmp_path: Path
) -> None:
    source, plain = sources[way], tmp_path / "plain.wav"
    plain.write_bytes(encoded_bytes(load_audio(source), rate=SAMPLE_RATE, container="wav", codec="pcm_s16le"))
    flags = [f"--{name.replace('_', '-')}={value}" for name in FLAGS if (value := getattr(source, name))]
    words = [*FAST, "--translate-to", "en", "--second-model", "nano", "--defer-logprob", "0"]
    found = []
    for path, given in ((source.place, flags), (plain, [])):
        folder = tmp_path / f"{len(found)}"
        assert run(["transcribe", str(path), *words, *given, "-f", "html,json", "-o", str(folder)]) == 0
        page, document = sorted(folder.iterdir())
        row = json.loads(document.read_text(encoding="utf-8"))
        picture = re.search('id="spectrogram" .*?>', page.read_text(encoding="utf-8"))
        assert picture is not None
        found.append((row["segments"], picture[0]))
        assert row["segments"][0]["translation"]
    assert found[0] == found[1]


@pytest.mark.parametrize("way", ["track", "format", "filter"])
def test_an_archive_is_read_as_it_is_opened(
    way: str, sources: dict[str, Source], model: Model, tmp_path: Path
) -> None:
    source, table = sources[way], tmp_path / "table.jsonl"
    (tmp_path / "list.txt").write_text(str(source.place), encoding="utf-8")
    flags = [f"--{name.replace('_', '-')}={value}" for name in FLAGS if (value := getattr(source, name))]
    assert run(["batch", str(tmp_path / "list.txt"), str(table), *FAST, *flags]) == 0
    (row,) = map(json.loads, table.read_text(encoding="utf-8").splitlines())
    assert row["text"] == model.transcribe(load_audio(source), options=OPTIONS).text
