"""Containers, samples without a header, and what is no sound, are told apart in files, uploads and pipes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pytest

from sottovoce.audio.container import is_container, no_sound, read_input_format
from sottovoce.audio.io import Recording, Source, check_reading, load_audio, open_audio, read_live
from sottovoce.errors import AudioError, OptionError
from sottovoce.types import SAMPLE_RATE, Samples
from tests.audio.media import encoded_bytes, load_channels, pipe, wav_bytes

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
CLIP = CLIPS / "en.flac"
CONTAINERS = [
    ("wav", "pcm_s16le"),
    ("flac", "flac"),
    ("mp3", "libmp3lame"),
    ("mp2", "mp2"),
    ("ogg", "libopus"),
    ("webm", "libopus"),
    ("adts", "aac"),
    ("mpegts", "aac"),
    ("aiff", "pcm_s16be"),
    ("au", "pcm_s16be"),
    ("caf", "pcm_s16le"),
    ("ac3", "ac3"),
]
HEADERLESS = [("g722", "g722", 16_000), ("mulaw", "pcm_mulaw", 8_000), ("alaw", "pcm_alaw", 8_000)]


def speech() -> Samples:
    return load_audio(CLIP)


def encoded(container: str, codec: str, rate: int) -> bytes:
    """The clip at another rate."""
    return encoded_bytes(speech(), sample_rate=SAMPLE_RATE, rate=rate, container=container, codec=codec)


def piped(data: bytes, input_format: str | None = None) -> Samples:
    chunks = [chunk.samples for chunk in read_live(pipe(data), input_format=input_format)]
    return np.concatenate([np.zeros(0, np.float32), *chunks])


def likeness(samples: Samples) -> float:
    """The correlation of samples with the clip, at the best of small delays."""
    wanted = speech()[4_000:40_000]
    correlations = [
        np.corrcoef(wanted, samples[start : start + 36_000])[0, 1] for start in range(4_000, 7_000)
    ]
    return float(max(correlations))


@pytest.mark.parametrize(("container", "codec"), [("mp3", "libmp3lame"), ("adts", "aac")])
def test_a_broadcast_that_begins_within_a_frame_is_decoded(container: str, codec: str) -> None:
    data = encoded(container, codec, 48_000)
    assert 0.85 < len(piped(data[1234:])) / len(load_audio(data)) < 1.0


def test_noise_of_a_quiet_microphone_is_no_container() -> None:
    """A sample of -1 is also how a frame of AAC may begin."""
    noise = np.random.default_rng(0).standard_normal((400, 2048)) * 3
    noise[:, 0] = -1
    assert not [1 for samples in noise.astype("<i2") if is_container(samples.tobytes())]


@pytest.mark.parametrize(("container", "codec"), CONTAINERS)
def test_a_container_in_a_pipe_is_that_of_the_file(container: str, codec: str) -> None:
    data = encoded(container, codec, 48_000)
    assert is_container(data[:4096])
    np.testing.assert_array_equal(piped(data), load_audio(pipe(data)))


def test_other_pipes_are_pcm() -> None:
    pcm = (speech() * 32768).astype("<i2")
    np.testing.assert_array_equal(piped(pcm.tobytes()), pcm / np.float32(32768))


def test_pcm_is_never_taken_for_a_container() -> None:
    """Recordings that begin anywhere, with loud samples too."""
    for clip in sorted(CLIPS.glob("*.flac")):
        data = (load_audio(clip) * 32767).astype("<i2").tobytes()
        heads = [data[start : start + 4096] for start in range(0, len(data) - 4096, 502)]
        heads += [
            first + head for head in heads for first in (b"\xff\xfb", b"\xff\xf1", b"\x0b\x77", b"\x47\x47")
        ]
        assert not any(is_container(head) or no_sound(head) for head in heads)
    assert no_sound(bytes(4096)) is None


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "0 bytes"),
        (b"This is no sound.\n", "text"),
        ("Größe".encode("utf-16"), "text"),
        (b'{"text": 1}' * 1000, "text"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(200), "JPEG"),
        (b"\x89PNG\r\n\x1a\n" + bytes(200), "PNG"),
        (b"%PDF-1.7\n", "PDF"),
        (b"PK\x03\x04" + bytes(200), "ZIP"),
    ],
)
def test_the_kind_of_other_data_is_named(data: bytes, named: str) -> None:
    with pytest.raises(
        AudioError, match=rf"standard input: expected a sound file or 16-bit PCM .* got .*{named}"
    ):
        piped(data)


@pytest.mark.parametrize(("name", "codec", "rate"), HEADERLESS)
def test_samples_without_a_header(name: str, codec: str, rate: int, tmp_path: Path) -> None:
    """By the name of the file, of an upload, or of the format; in files, pipes and parts."""
    data = encoded(name, codec, rate)
    path = tmp_path / f"call.{'ulaw' if name == 'mulaw' else name}"
    path.write_bytes(data)
    whole = load_audio(path)
    assert likeness(whole) > 0.9
    upload = io.BytesIO(data)
    upload.name = path.name  # type: ignore[attr-defined]
    with Recording(Source(pipe(data), input_format=name)) as recording, recording.open() as reader:
        spooled = np.concatenate([chunk.samples for chunk in reader])
    for samples in (
        load_audio(upload),
        load_audio(Source(data, input_format=name)),
        piped(data, name),
        spooled,
    ):
        np.testing.assert_array_equal(samples, whole)
    np.testing.assert_array_equal(load_audio(path, 1.0, 0.5), whole[16_000:24_000])


def test_rate_and_channels_of_samples_without_a_header() -> None:
    channels = np.stack([speech(), speech()[::-1]])
    data = (channels.T * 32767).astype("<i2").tobytes()
    wav = wav_bytes(channels, 44_100)
    np.testing.assert_array_equal(load_audio(Source(data, input_format="s16le:44100:2")), load_audio(wav))
    with open_audio(Source(data, input_format="s16le:44100:2"), channel=1) as reader:
        right = np.concatenate([chunk.samples for chunk in reader])
    np.testing.assert_array_equal(right, load_channels(wav)[1])


def test_a_container_is_one_whatever_its_name_ends_in(tmp_path: Path) -> None:
    path = tmp_path / "call.ulaw"
    path.write_bytes(CLIP.read_bytes())
    np.testing.assert_array_equal(load_audio(path), speech())


@pytest.mark.parametrize(
    "wrong", ["", "mp3", "s16le:", "s16le:0", "s16le:16000:0", "g722:8000", "s16le:1:2:3"]
)
def test_input_formats_that_are_none(wrong: str) -> None:
    with pytest.raises(OptionError, match="input_format: expected"):
        read_input_format(wrong)
    with pytest.raises(OptionError, match="input_format: expected"):
        check_reading(None, wrong)


def test_samples_of_an_unknown_format_need_an_input_format(tmp_path: Path) -> None:
    path = tmp_path / "call.raw"
    path.write_bytes(encoded("g722", "g722", 16_000))
    with pytest.raises(AudioError, match="need input_format"):
        load_audio(path)


def test_a_pipe_is_decoded_as_it_comes() -> None:
    """A container gives samples before its end is there."""
    data = encoded("webm", "libopus", 48_000)
    half = len(data) // 2

    class Stopping(io.RawIOBase):
        def __init__(self) -> None:
            self.n_read = 0

        def read(self, n_bytes: int = -1) -> bytes:
            if self.n_read >= half:
                raise OSError("nothing more yet")
            piece = data[self.n_read : min(half, self.n_read + min(n_bytes, 500))]
            self.n_read += len(piece)
            return piece

    heard: list[Samples] = []
    with pytest.raises(AudioError, match="nothing more yet"):
        heard.extend(chunk.samples for chunk in read_live(cast(BinaryIO, Stopping())))
    assert sum(map(len, heard)) > 0.35 * len(speech())


def test_the_telephone_call_of_a_report(shared_dir: Path) -> None:
    path = shared_dir / "fixtures" / "reports" / "telephone.g722"
    samples = load_audio(path)
    assert len(samples) == pytest.approx(5.14 * 16_000, abs=800)
    np.testing.assert_array_equal(piped(path.read_bytes(), "g722"), samples)
