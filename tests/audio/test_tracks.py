"""One of several audio tracks: by its number, or its language, whichever code the file has for it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sottovoce.audio.container import AudioTrack
from sottovoce.audio.io import Recording, Source, load_audio, probe_audio
from sottovoce.errors import AudioError, OptionError
from tests.audio.media import Sound, load_channels, tones, wav_bytes, write_tracks

HIGH, LOW = tones(64_000, 16_000, 6)[5], tones(64_000, 16_000)[0]
SOUNDS: list[Sound] = [(LOW, "eng", "Original"), (HIGH, "ger", None)]


def frequency(samples: np.ndarray) -> int:
    """The loudest one, in Hz."""
    return round(float(np.argmax(np.abs(np.fft.rfft(samples)))) * 16_000 / len(samples), -1)


@pytest.mark.quick(8)
@pytest.mark.parametrize("name", ["film.mka", "film.mp4", "film.mov"])
@pytest.mark.parametrize(
    ("track", "expected"),
    [(None, 300), (1, 300), (2, 800), ("2", 800), ("de", 800), ("deu", 800), ("EN", 300)],
)
def test_a_track_is_chosen(name: str, track: int | str | None, expected: int, tmp_path: Path) -> None:
    path = write_tracks(tmp_path / name, SOUNDS)
    assert frequency(load_audio(Source(path, audio_track=track))) == pytest.approx(expected, abs=10)
    with Recording(Source(path, audio_track=track)) as recording:
        for _ in range(2):  # every reading takes the same one
            assert frequency(recording.beginning(2.0)) == pytest.approx(expected, abs=10)
        with recording.open_channels() as reader:
            assert frequency(next(reader.channels())[0]) == pytest.approx(expected, abs=10)
        for channel in recording.channels():
            assert frequency(channel.beginning(2.0)) == pytest.approx(expected, abs=10)


def test_a_part_of_a_track(tmp_path: Path) -> None:
    """The tracks are interleaved, or one after the other: the place is that of the track."""
    loud, quiet = np.tile(HIGH, 12), np.tile(LOW, 12)
    path = write_tracks(tmp_path / "film.mka", [(quiet, "eng", None), (loud, "fre", None)])
    whole = load_audio(Source(path, audio_track="fr"))
    part = load_audio(Source(path, audio_track="fr"), 40.0, 1.0)
    np.testing.assert_allclose(part, whole[640_000:656_000], atol=1e-3)


def test_the_tracks_are_listed(tmp_path: Path) -> None:
    info = probe_audio(Source(write_tracks(tmp_path / "film.mka", SOUNDS), audio_track=2))
    assert info.tracks == (AudioTrack(1, "eng", "Original"), AudioTrack(2, "ger", None))
    assert info.track == AudioTrack(2, "ger", None)
    assert list(map(str, info.tracks)) == ["1 (eng, 'Original')", "2 (ger)"]
    assert probe_audio(LOW).tracks == (AudioTrack(1),)
    assert load_channels(LOW).shape == (1, 64_000)


@pytest.mark.parametrize("track", [3, "3", "fr", "klingon"])
def test_a_track_that_is_not_there(track: int | str, tmp_path: Path) -> None:
    path = write_tracks(tmp_path / "film.mka", SOUNDS)
    message = re.escape(f"{path}: expected an audio track among 1 (eng, 'Original'), 2 (ger); got '{track}'")
    with pytest.raises(AudioError, match=message):
        load_audio(Source(path, audio_track=track))
    with pytest.raises(AudioError, match=f"among 1; got '{track}'"):
        load_audio(Source(LOW, audio_track=track))


@pytest.mark.parametrize("track", [0, "0", -1, "-2", "", "a b", "1.5"])
def test_neither_a_track_number_nor_a_language(track: int | str) -> None:
    with pytest.raises(OptionError, match="audio track: expected a number from 1 or a language"):
        load_audio(Source(wav_bytes(LOW), audio_track=track))
