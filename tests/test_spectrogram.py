"""The picture in a page: a PNG that others read, as wide as the recording is long."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest

from sottovoce.cli.main import run
from sottovoce.errors import AudioError
from sottovoce.pictures import MOST_COLUMNS, N_ROWS, png, spectrogram_address
from tests.audio.media import wav_bytes
from tests.formats.transcripts import CLIPS

CLIP = CLIPS / "de.flac"


def picture_of(address: str) -> np.ndarray:
    images = pytest.importorskip("PIL.Image", reason="no reader of pictures is installed")
    data = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    return np.asarray(images.open(io.BytesIO(data)).convert("L"))


def tone(path: Path, seconds: float, hz: float) -> Path:
    path.write_bytes(wav_bytes(0.5 * np.sin(2 * np.pi * hz * np.arange(int(seconds * 16_000)) / 16_000)))
    return path


def test_a_tone_is_a_line_at_its_height(tmp_path: Path) -> None:
    low, high = (
        picture_of(spectrogram_address(tone(tmp_path / f"{hz}.wav", 4.0, hz))) for hz in (300.0, 4000.0)
    )
    assert low.shape == high.shape == (N_ROWS, 80)
    assert low[:, 40].argmax() > N_ROWS - 10
    assert high[:, 40].argmax() < 15


def test_a_long_recording_is_no_wider_than_a_screen(tmp_path: Path) -> None:
    picture = picture_of(spectrogram_address(tone(tmp_path / "long.wav", 200.0, 300.0)))
    assert picture.shape == (N_ROWS, MOST_COLUMNS)


@pytest.mark.parametrize("seconds", [0.02, 0.3])
def test_a_short_recording_has_one_too(tmp_path: Path, seconds: float) -> None:
    assert picture_of(spectrogram_address(tone(tmp_path / "short.wav", seconds, 300.0))).shape[0] == N_ROWS


def test_every_shade_is_read_back() -> None:
    shades = np.arange(64, dtype=np.uint8)[None].repeat(3, axis=0)
    read = picture_of("data:image/png;base64," + base64.b64encode(png(shades)).decode())
    assert read.shape == (3, 64)
    assert (np.diff(read[0].astype(int)) >= 0).all()


def test_a_missing_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AudioError):
        spectrogram_address(tmp_path / "none.wav")


def test_the_page_has_it(tmp_path: Path) -> None:
    words = ["transcribe", str(CLIP), "-m", "nano", "-l", "de", "--beam-size", "1", "-f", "html"]
    assert run([*words, "-o", str(tmp_path)]) == 0
    page = (tmp_path / "de.html").read_text(encoding="utf-8")
    assert '<img id="spectrogram" alt="" src="data:image/png;base64,' in page
    assert "img-src data:" in page
