"""The source: layers, public names, and what every module keeps to."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import sottovoce
from sottovoce.api import Model
from sottovoce.audio.io import Source, load_audio, probe_audio
from sottovoce.cli.main import run
from sottovoce.errors import MissingExtraError
from sottovoce.options.decoding import DecodingOptions, DeferralOptions, FallbackOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.pictures import spectrogram_address
from sottovoce.types import SAMPLE_RATE, Samples
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


LOOKS: dict[str, Callable[[Model, Source], object]] = {
    "headers": lambda model, source: round(probe_audio(source).duration_s or 0.0),
    "transcription": lambda model, source: model.transcribe(source, options=OPTIONS).text,
    "options": lambda model, source: (
        model.transcribe(source.place, options=opened_by(source), sample_rate=source.sample_rate).text
    ),
    "files": lambda model, source: [
        segment for _, segment in model.transcribe_files([source], options=OPTIONS)
    ],
    "second model": with_second,
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
    words = [*FAST, "--second-model", "nano", "--defer-logprob", "0"]
    result = []
    for path, given in ((source.place, flags), (plain, [])):
        folder = tmp_path / f"{len(result)}"
        assert run(["transcribe", str(path), *words, *given, "-f", "html,json", "-o", str(folder)]) == 0
        page, document = sorted(folder.iterdir())
        row = json.loads(document.read_text(encoding="utf-8"))
        picture = re.search('id="spectrogram" .*?>', page.read_text(encoding="utf-8"))
        assert picture is not None
        result.append((row["segments"], picture[0]))
    assert result[0] == result[1]


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


def test_imports_keep_the_contracts() -> None:
    pytest.importorskip("importlinter.cli", reason="the extra check is not installed")
    # In a process of its own: import-linter disables the loggers of the process.
    script = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[1], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_public_names_are_there() -> None:
    for name in sottovoce.__all__:
        assert getattr(sottovoce, name) is not None


def test_unknown_names_are_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sottovoce.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("sottovoce", "torch av transformers matplotlib jiwer"),
        (
            "sottovoce.api",
            "sottovoce.streaming sottovoce.alignment sottovoce.ctc sottovoce.cli sottovoce.server",
        ),
    ],
)
def test_an_import_loads_what_a_task_needs_and_changes_no_environment_variable(
    module: str, absent: str
) -> None:
    """Nothing heavy for a name; no live sessions, alignment or searches of CTC for a file."""
    code = (
        f"import os, sys; before = dict(os.environ); import {module}; "
        f"print(before == dict(os.environ), sys.modules.keys() & set('{absent}'.split()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True set()\n"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'sottovoce[mic]'"),
        ({"url": "file:///src/a%20b", "dir_info": {"editable": True}}, "pip install -e '/src/a b[mic]'"),
        ({"url": "file:///src/own", "dir_info": {}}, "pip install '/src/own[mic]'"),
        (
            {"url": "https://example.org/own.git", "vcs_info": {"vcs": "git"}},
            "pip install 'sottovoce[mic] @ git+https://example.org/own.git'",
        ),
    ],
    ids=["index", "editable", "checkout", "git"],
)
def test_the_command_for_an_extra_installs_from_where_sottovoce_came(
    origin: object, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))
    assert str(MissingExtraError("sounddevice", "mic", "Recording")).endswith(f": {command}")
