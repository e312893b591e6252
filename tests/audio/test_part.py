"""A part of a recording is the part of its samples; a track is chosen by its number or its language."""

from __future__ import annotations

import io
import re
from pathlib import Path

import av
import numpy as np
import pytest

from sottovoce.audio.container import AudioTrack, ContainerDecoder
from sottovoce.audio.io import Recording, Source, load_audio, open_audio, probe_audio
from sottovoce.errors import AudioError, OptionError
from sottovoce.types import SAMPLE_RATE
from tests.audio.media import (
    Sound,
    encoded_bytes,
    ffmpeg,
    load_channels,
    pipe,
    speechlike,
    tones,
    wav_bytes,
    write_tracks,
)

LENGTH_S = 50
START_S, PART_S = 30.12345, 5.0
MOST_DECODED_S = 16.0
"""The part, a second before it, and what a cluster of Matroska holds beside it."""
SOUGHT = [
    ("wav", "pcm_s16le", 16_000),
    ("wav", "pcm_s16le", 44_100),
    ("flac", "flac", 44_100),
    ("mp3", "libmp3lame", 44_100),
    ("mp3", "libmp3lame", 22_050),
    ("mp4", "aac", 44_100),
    ("ogg", "libopus", 48_000),
    ("matroska", "libopus", 48_000),
    ("matroska", "aac", 44_100),
    ("webm", "libopus", 48_000),
]
DECODED = [("adts", "aac", 44_100), ("mpegts", "aac", 44_100)]
"""Without an index: read from the beginning."""
DRAWS = 20 / 32768
"""AAC's decoder fills bands with noise that it draws, which goes on from what it drew before."""


@pytest.fixture
def decoded_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of every frame that is decoded."""
    seconds: list[float] = []
    decode = ContainerDecoder._decoded

    def counted(decoder: ContainerDecoder, packet: object) -> list[av.AudioFrame]:
        frames = decode(decoder, packet)  # type: ignore[arg-type]
        seconds.extend(frame.samples / frame.sample_rate for frame in frames)
        return frames

    monkeypatch.setattr(ContainerDecoder, "_decoded", counted)
    return seconds


def recording(container: str, codec: str, rate: int) -> bytes:
    return encoded_bytes(speechlike(LENGTH_S * rate), rate=rate, container=container, codec=codec)


@pytest.mark.quick(4)
@pytest.mark.parametrize(("container", "codec", "rate"), SOUGHT + DECODED)
def test_a_part_is_that_of_the_whole_to_the_sample(
    container: str, codec: str, rate: int, decoded_s: list[float]
) -> None:
    data = recording(container, codec, rate)
    whole = load_audio(data)
    decoded_s.clear()
    part = load_audio(data, START_S, PART_S)
    first = round(START_S * SAMPLE_RATE)
    expected = whole[first : first + round(PART_S * SAMPLE_RATE)]
    is_sought = (container, codec, rate) in SOUGHT
    np.testing.assert_allclose(part, expected, rtol=0, atol=DRAWS if is_sought and codec == "aac" else 0)
    assert sum(decoded_s) < (MOST_DECODED_S if is_sought else START_S + PART_S + 1.0)


def test_a_part_to_the_end_and_one_of_the_beginning(decoded_s: list[float]) -> None:
    data = recording("mp3", "libmp3lame", 44_100)
    whole = load_audio(data)
    decoded_s.clear()
    np.testing.assert_array_equal(load_audio(data, 40.0), whole[40 * SAMPLE_RATE :])
    assert sum(decoded_s) < 12.0
    decoded_s.clear()
    np.testing.assert_array_equal(load_audio(data, None, 3.0), whole[: 3 * SAMPLE_RATE])
    assert sum(decoded_s) < 5.0


def test_channels_stay_apart_in_a_part(decoded_s: list[float]) -> None:
    left = speechlike(LENGTH_S * 48_000)
    data = encoded_bytes(
        np.stack([left, left[::-1]]), rate=48_000, container="flac", codec="flac", layout="stereo"
    )
    whole = load_channels(data)
    decoded_s.clear()
    first, last = round(35.5 * SAMPLE_RATE), round(37.5 * SAMPLE_RATE)
    with open_audio(data, keep_channels=True, start_s=35.5, duration_s=2.0) as reader:
        np.testing.assert_array_equal(np.concatenate(list(reader.channels()), axis=1), whole[:, first:last])
    np.testing.assert_array_equal(load_audio(data, 35.5, 2.0, channel=1), whole[1, first:last])
    assert sum(decoded_s) < 12.0


@pytest.mark.parametrize("rate", [16_000, 44_100, 48_000, 8_000])
def test_a_part_of_samples(rate: int) -> None:
    samples = speechlike(20 * rate)
    whole = load_audio(Source(samples, sample_rate=rate))
    part = load_audio(Source(samples, sample_rate=rate), 12.3456, 1.5)
    first = round(12.3456 * SAMPLE_RATE)
    np.testing.assert_allclose(part, whole[first : first + 24_000], atol=1e-6)


def test_a_pipe_and_a_file_object_that_stands_somewhere(tmp_path: Path) -> None:
    data = wav_bytes(speechlike(20 * SAMPLE_RATE))
    whole = load_audio(data)
    np.testing.assert_array_equal(load_audio(pipe(data), 15.0, 1.0), whole[240_000:256_000])
    path = tmp_path / "two"
    path.write_bytes(b"something else" + data)
    with path.open("rb") as file:
        file.read(14)
        with Recording(file) as talk:
            for start in (15.0, 16.0, 0.5):
                with talk.part(start, 1.0).open() as reader:
                    excerpt = np.concatenate([chunk.samples for chunk in reader])
                first = round(start * SAMPLE_RATE)
                np.testing.assert_array_equal(excerpt, whole[first : first + SAMPLE_RATE])


def test_duration_and_start_of_a_part() -> None:
    data = recording("flac", "flac", 16_000)
    with open_audio(data, start_s=40.0, duration_s=30.0) as reader:
        assert (reader.info.duration_s, reader.recording_s) == (10.0, 50.0)
    with open_audio(data, start_s=20.0, duration_s=30.0) as reader:
        assert reader.info.duration_s == 30.0
        assert [chunk.start_sample for chunk in reader] == [n * 5 * SAMPLE_RATE for n in range(6)]
    for start in (50.0, 200.0):
        with pytest.raises(AudioError, match=rf"start before its end at 50\.00 s, got {start} s"):
            load_audio(data, start)


def test_damage_before_a_part_is_as_when_all_is_read() -> None:
    """Frames of mp3 that are cut out are missing in both ways of counting, or the beginning is decoded."""
    data = bytearray(recording("mp3", "libmp3lame", 44_100))
    place = len(data) // 3
    data[place : place + 3000] = bytes(3000)
    whole, part = load_audio(bytes(data)), load_audio(bytes(data), START_S, PART_S)
    first = round(START_S * SAMPLE_RATE)
    assert len(part) == PART_S * SAMPLE_RATE
    shift = SAMPLE_RATE
    near = whole[first - shift : first + len(part) + shift]
    scores = np.correlate(near, part[: 2 * SAMPLE_RATE], mode="valid")
    assert abs(int(np.argmax(scores)) - shift) < 0.5 * SAMPLE_RATE


@pytest.mark.parametrize("container", ["ogg", "mkv"])
def test_packets_of_different_lengths(container: str, tmp_path: Path, decoded_s: list[float]) -> None:
    """Ogg tells the sample of each page. Matroska tells milliseconds: without a length, the beginning is
    read."""
    sound = wav_bytes(speechlike(LENGTH_S * 44_100), 44_100)
    path = tmp_path / f"talk.{container}"
    ffmpeg(f"-i - -c:a libvorbis {path}", sound)
    whole = load_audio(path)
    decoded_s.clear()
    first = round(START_S * SAMPLE_RATE)
    np.testing.assert_array_equal(load_audio(path, START_S, 2.0), whole[first : first + 32_000])
    assert (sum(decoded_s) < MOST_DECODED_S) == (container == "ogg")


def test_a_part_of_a_film(tmp_path: Path) -> None:
    """The picture's key frames say nothing about the sound."""
    sound = wav_bytes(speechlike(LENGTH_S * 44_100), 44_100)
    path = tmp_path / "film.mp4"
    ffmpeg(f"-f lavfi -i color=size=64x48:rate=5 -i - -shortest -g 100 -c:a aac {path}", sound)
    whole = load_audio(path)
    first = round(START_S * SAMPLE_RATE)
    expected = whole[first : first + 32_000]
    np.testing.assert_allclose(load_audio(path, START_S, 2.0), expected, rtol=0, atol=DRAWS)
    with io.BytesIO(path.read_bytes()) as file:
        np.testing.assert_allclose(load_audio(file, START_S, 2.0), expected, rtol=0, atol=DRAWS)


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
