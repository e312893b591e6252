"""Pictures of recordings: they are there, they are pictures, and what cannot be drawn is told."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.cli.main import run
from sottovoce.errors import OptionError
from sottovoce.types import Transcript

pytest.importorskip("matplotlib")

from sottovoce.pictures import FigureData, collect, draw, likeliest

CLIPS = Path(__file__).parents[2] / "examples" / "clips"


@pytest.fixture(scope="module")
def nano() -> Model:
    return load_model("nano", device="cpu")


@pytest.fixture(scope="module")
def seen(nano: Model) -> FigureData:
    samples = load_audio(CLIPS / "en.flac")
    transcript = nano.align(samples, "The garden is quiet in the morning.", language="en")
    return collect(nano, samples, transcript, name="en.flac", start_s=10.0)


def size_of(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_everything_that_is_drawn_was_heard(seen: FigureData) -> None:
    assert [word.word.strip() for word in seen.words][:2] == ["The", "garden"]
    assert all(10.0 <= word.start <= word.end <= 10.0 + seen.duration_s + 0.1 for word in seen.words)
    assert seen.mel.shape == (80, int(seen.duration_s * 100))
    assert seen.speech.max() > 0.9
    assert seen.languages is not None
    assert seen.languages.codes[likeliest(seen.languages)[0]] == "en"
    assert seen.attention is not None
    assert "".join(seen.attention.tokens).strip() == "The garden is quiet in the morning."
    assert seen.attention.matrix.shape[0] == len(seen.attention.tokens)


def test_a_picture_of_all_panels_is_higher_than_one_of_one(seen: FigureData, tmp_path: Path) -> None:
    draw(seen, tmp_path / "all.png")
    draw(seen, tmp_path / "mel.png", ("mel",))
    assert size_of(tmp_path / "all.png")[1] > size_of(tmp_path / "mel.png")[1] > 200
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["all.png", "mel.png"]


def test_svg_is_xml(seen: FigureData, tmp_path: Path) -> None:
    draw(seen, tmp_path / "all.svg")
    assert ET.parse(tmp_path / "all.svg").getroot().tag.endswith("svg")


def test_silence_has_a_picture_without_words(nano: Model, tmp_path: Path) -> None:
    silence = np.zeros(16_000, np.float32)
    empty = collect(nano, silence, Transcript((), "en", 1.0, "nano"))
    assert (empty.words, empty.languages, empty.attention) == ((), None, None)
    draw(empty, tmp_path / "silence.png")
    assert size_of(tmp_path / "silence.png")[0] > 200


def test_any_letters_can_be_drawn(seen: FigureData, tmp_path: Path) -> None:
    words = tuple(
        replace(word, word=text, probability=float("nan"))
        for word, text in zip(seen.words, ["天气", "שלום", "$\\bad$", "\ufffd", "नमस्ते"], strict=False)
    )
    draw(replace(seen, words=words), tmp_path / "letters.png")
    assert size_of(tmp_path / "letters.png")[0] > 200


def test_a_part_that_is_too_long_is_refused(nano: Model) -> None:
    with pytest.raises(OptionError, match=r"expected 0\.1 to 30 s, got 31\.00 s"):
        collect(nano, np.zeros(31 * 16_000, np.float32), Transcript((), "en", 31.0, "nano"))


def test_the_command_draws(tmp_path: Path) -> None:
    words = ["plot", str(CLIPS / "de.flac"), "-m", "nano", "-l", "de", "-o", str(tmp_path / "de.png")]
    assert run([*words, "--offset", "0.1", "--duration", "2.5"]) == 0
    assert size_of(tmp_path / "de.png")[0] > 500
