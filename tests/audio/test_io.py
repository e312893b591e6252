"""Any container, rate and channel count reads to the same samples; any other bytes end in one AudioError."""

from __future__ import annotations

import io
import os
import struct
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sottovoce.audio.container import ContainerDecoder, MediaFile, SourceRequest
from sottovoce.audio.io import Source, load_audio, open_audio, probe_audio, read_pcm
from sottovoce.errors import AudioError, OptionError
from tests.audio.media import (
    encoded_bytes,
    ffmpeg,
    load_channels,
    pipe,
    silent_video_bytes,
    speechlike,
    tones,
    wav_bytes,
)


def refusal(source: object) -> str:
    """The message of the AudioError that reading raises: one line."""
    with pytest.raises(AudioError) as caught:
        load_audio(source)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_16_khz_wav_is_read_to_the_bit(tmp_path: Path) -> None:
    samples = speechlike(50_000)
    path = tmp_path / "a.wav"
    path.write_bytes(wav_bytes(samples))
    expected = (samples * 32767).astype(np.int16) / np.float32(32768)
    for source in (
        path,
        str(path),
        path.read_bytes(),
        io.BytesIO(path.read_bytes()),
        pipe(path.read_bytes()),
    ):
        np.testing.assert_array_equal(load_audio(source), expected)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 192_000])
def test_any_rate_keeps_length_and_tone(rate: int) -> None:
    sound = tones(rate, rate)
    for source in (wav_bytes(sound, rate), Source(sound[0], sample_rate=rate)):
        samples = load_audio(source)
        assert abs(len(samples) - 16_000) <= 2
        np.testing.assert_allclose(samples[1_000:15_000], tones(16_000, 16_000)[0][1_000:15_000], atol=0.01)


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [("flac", "flac", 16_000), ("mp3", "mp3", 44_100), ("ogg", "libopus", 48_000), ("mp4", "aac", 44_100)],
)
def test_codecs_keep_the_tone(container: str, codec: str, rate: int) -> None:
    data = encoded_bytes(tones(rate * 2, rate), rate=rate, container=container, codec=codec)
    samples = load_audio(data)
    assert abs(len(samples) - 32_000) <= 2_000
    middle = samples[8_000:24_000]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert int(spectrum.argmax()) == 300  # Hz: one bin a hertz
    # Not the peak: AAC's encoder of a newer FFmpeg has some sample of 1.0 in it, which ffmpeg hears too.
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.1)


def test_seven_point_one_is_mixed_without_clipping() -> None:
    """Eight channels at full scale: the sum of weights is at most 1, and every one but LFE is heard."""
    loud = np.ones((8, 16_000), np.float32) * 0.999
    mixed = load_audio(encoded_bytes(loud, rate=16_000, container="wav", codec="pcm_s16le", layout="7.1"))
    assert 0.99 < mixed[4_000:].max() <= 1.0
    for k in range(8):
        single = np.zeros_like(loud)
        single[k] = 0.9
        heard = load_audio(
            encoded_bytes(single, rate=16_000, container="wav", codec="pcm_s16le", layout="7.1")
        )
        assert (heard[8_000] > 0.05) == (k != 3), k


@pytest.mark.parametrize("n_channels", [2, 3, 8, 11])
def test_channels_come_apart(n_channels: int) -> None:
    data = wav_bytes(tones(16_000, 16_000, n_channels))
    channels = load_channels(data)
    np.testing.assert_allclose(channels, tones(16_000, 16_000, n_channels), atol=1e-4)
    np.testing.assert_array_equal(load_audio(data, channel=n_channels - 1), channels[-1])
    assert np.abs(load_audio(data)).max() <= 1.0  # layouts without a rule are averaged


def test_planar_codec_with_eight_channels() -> None:
    data = encoded_bytes(
        tones(48_000, 48_000, 8), rate=48_000, container="matroska", codec="libopus", layout="7.1"
    )
    channels = load_channels(data)
    assert channels.shape == (8, len(load_audio(data)))
    assert channels.shape[1] == pytest.approx(16_000, abs=10)


@pytest.mark.parametrize(
    ("container", "codec", "rate", "n_channels", "layout"),
    [
        ("wav", "pcm_s16le", 16_000, 1, "mono"),
        ("flac", "flac", 44_100, 2, "stereo"),
        ("mp3", "libmp3lame", 22_050, 1, "mono"),
        ("matroska", "libopus", 48_000, 8, "7.1"),
    ],
)
def test_samples_do_not_depend_on_the_frames_that_are_resampled_together(
    container: str, codec: str, rate: int, n_channels: int, layout: str
) -> None:
    data = encoded_bytes(
        tones(3 * rate, rate, n_channels), rate=rate, container=container, codec=codec, layout=layout
    )
    for keep_channels in (False, True):
        result = []
        for joined_s in (0.0, 0.3):
            decoder = ContainerDecoder(
                MediaFile(io.BytesIO(data), "tones"), SourceRequest(keep_channels, joined_s=joined_s)
            )
            result.append(list(decoder.blocks()))
            decoder.close()
        alone, together = result
        assert len(together) < len(alone)
        np.testing.assert_array_equal(np.concatenate(together, 1), np.concatenate(alone, 1))


def test_chunks_are_equal_and_continuous() -> None:
    data = wav_bytes(tones(130_000, 44_100), 44_100)
    with open_audio(data, chunk_s=0.7) as reader:
        chunks = list(reader)
    assert {len(chunk.samples) for chunk in chunks[:-1]} == {11_200}
    assert [chunk.start_sample for chunk in chunks] == [11_200 * i for i in range(len(chunks))]
    np.testing.assert_array_equal(np.concatenate([chunk.samples for chunk in chunks]), load_audio(data))


def test_info_is_there_before_decoding() -> None:
    info = probe_audio(wav_bytes(tones(96_000, 48_000, 2), 48_000))
    assert (info.codec, info.sample_rate, info.n_channels) == ("pcm_s16le", 48_000, 2)
    assert info.duration_s == pytest.approx(2.0)


def test_pcm_stream_comes_in_chunks_however_it_is_read(caplog: pytest.LogCaptureFixture) -> None:
    pcm = (speechlike(5_000) * 32767).astype("<i2").tobytes()
    chunks = list(read_pcm(pipe(pcm + b"\x01"), chunk_s=0.1))
    assert [len(chunk.samples) for chunk in chunks] == [1_600, 1_600, 1_600, 200]
    assert "half a sample" in caplog.text
    joined = np.concatenate([chunk.samples for chunk in chunks])
    np.testing.assert_array_equal(joined, np.frombuffer(pcm, "<i2") / np.float32(32768))
    assert list(read_pcm(pipe(b""))) == []


def test_files_that_are_no_audio(tmp_path: Path) -> None:
    empty, text = tmp_path / "empty.wav", tmp_path / "text.wav"
    empty.touch()
    text.write_text("this is not a recording\n" * 50)
    assert "an empty one (0 bytes)" in refusal(empty)
    assert refusal(empty).startswith(str(empty))
    assert "data that matches no known format" in refusal(text)
    assert "missing.wav: no such file" in refusal(tmp_path / "missing.wav")
    assert "no such file; download it first" in refusal("http://127.0.0.1:9/a.wav")
    assert "is a folder; expected a file" in refusal(tmp_path)
    assert refusal("") == "recording: expected the name of a file, got ''"
    assert "got 'embedded null byte'" in refusal("a\0b")
    assert repr("a\nb") in refusal("a\nb")
    assert "0 bytes" in refusal(b"")
    assert "expected audio, got no samples" in refusal(np.zeros(0, np.float32))
    assert "0 bytes" in refusal(pipe(b""))
    cut = encoded_bytes(tones(16_000, 16_000), rate=16_000, container="mp4", codec="aac")
    assert cut.index(b"mdat") < cut.index(b"moov")
    assert "got MP4 without its index" in refusal(cut[: cut.index(b"moov") - 4])
    assert "expected an audio track, got video" in refusal(silent_video_bytes())
    assert "expected audio, got no samples (pcm_s16le)" in refusal(wav_bytes(np.zeros((1, 0), np.float32)))
    assert "from read(), got str" in refusal(io.StringIO("text"))
    assert "got int" in refusal(3)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may read everything")
def test_no_permission(tmp_path: Path) -> None:
    path = tmp_path / "secret.wav"
    path.write_bytes(wav_bytes(tones(1_600, 16_000)))
    path.chmod(0)
    assert "no permission to read it" in refusal(path)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_float_wav_with_bad_samples(bad: float) -> None:
    samples = tones(16_000, 8_000)
    samples[0, 12_000] = bad
    data = encoded_bytes(samples, rate=8_000, container="wav", codec="pcm_f32le")
    assert "got NaN or infinity at 1.500 s (sample 12000 at 8000 Hz)" in refusal(data)


MP3 = encoded_bytes(tones(44_100 * 6, 44_100), rate=44_100, container="mp3", codec="mp3")
NOISE = np.random.default_rng(0).bytes(4_000)


@pytest.mark.parametrize(
    ("data", "least_s", "most_s", "warning"),
    [
        (MP3[: len(MP3) // 2], 2.0, 4.0, "truncated?"),
        (MP3[:8_000] + NOISE + MP3[12_000:], 4.0, 6.1, "damaged packets"),
    ],
    ids=["truncated", "damaged"],
)
def test_the_sound_part_of_a_damaged_file_is_decoded(
    data: bytes, least_s: float, most_s: float, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert least_s < len(load_audio(data)) / 16_000 < most_s
    assert warning in caplog.text


def test_a_playlist_opens_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav_bytes(tones(16_000, 16_000)))
    playlist = tmp_path / "list.ffconcat"
    playlist.write_text("ffconcat version 1.0\nfile a.wav\n")
    assert str(playlist) in refusal(playlist)


def test_a_title_in_no_known_encoding() -> None:
    title = b"\xff\xfe\xe9Gr\xfc\xdfe\0\0"
    info = b"INFOINAM" + struct.pack("<I", len(title)) + title
    plain = wav_bytes(tones(16_000, 16_000))
    at = plain.index(b"data")
    named = plain[:at] + b"LIST" + struct.pack("<I", len(info)) + info + plain[at:]
    whole = named[:4] + struct.pack("<I", len(named) - 8) + named[8:]
    np.testing.assert_array_equal(load_audio(whole), load_audio(plain))


def test_bad_requests_are_refused() -> None:
    with pytest.raises(AudioError, match="channel from 0 to 1, got 2"):
        load_audio(wav_bytes(tones(1_600, 16_000, 2)), channel=2)
    with pytest.raises(OptionError, match="chunk_s"):
        open_audio(b"", chunk_s=0.0)
    for start, duration in ((-1.0, None), (0.0, 0.0), (float("nan"), None)):
        with pytest.raises(OptionError):
            load_audio(wav_bytes(tones(1_600, 16_000)), start, duration)


def test_libav_says_nothing_itself(capfd: pytest.CaptureFixture[str]) -> None:
    load_audio(MP3[:3_000] + bytes(3_000) + MP3[6_000:])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("rate", "n_channels"), [(16_000, 1), (44_100, 2), (8_000, 1), (48_000, 6), (192_000, 1)]
)
def test_samples_equal_those_of_the_ffmpeg_program(tmp_path: Path, rate: int, n_channels: int) -> None:
    """What openai-whisper reads. libswresample converts 16-bit PCM by 16-bit arithmetic in ffmpeg 5 and by
    floats in later versions: 3 units of 16 bits apart."""
    path = tmp_path / "a.wav"
    path.write_bytes(wav_bytes(tones(rate * 2, rate, n_channels) * 1.2, rate))
    theirs = np.frombuffer(ffmpeg(f"-i {path} -f s16le -ac 1 -ar 16000 -"), np.int16)
    ours = np.rint(load_audio(path) * 32768)
    assert len(ours) == len(theirs)
    assert np.abs(ours - theirs).max() <= 3


FORMATS = ("wav", "wav-float", "flac", "mp3", "ogg", "mp4", "matroska")
HEADER_BYTES = 256


@lru_cache
def sound(name: str) -> bytes:
    """A quarter of a second in each format."""
    samples = speechlike(12_000)[None]
    if name == "wav":
        return wav_bytes(samples, 48_000)
    codecs = {"wav-float": "pcm_f32le", "flac": "flac", "mp3": "mp3", "ogg": "libopus", "mp4": "aac"}
    container = "wav" if name == "wav-float" else name
    return encoded_bytes(samples, rate=48_000, container=container, codec=codecs.get(name, "aac"))


def faults(data: bytes) -> list[str]:
    """What is wrong with reading in both ways, which gives finite samples or one line of refusal."""
    messages = []
    for reader in (load_audio, load_channels):
        try:
            probe_audio(data)
            samples = reader(data)
        except AudioError as error:
            messages += [f"more than one line: {error}"] if "\n" in str(error) else []
        else:
            messages += ["no samples"] if samples.shape[-1] == 0 else []
            messages += [] if np.isfinite(samples).all() else ["samples that are not finite"]
    return messages


FUZZ = settings(max_examples=40, deadline=5_000, suppress_health_check=[HealthCheck.too_slow])


@FUZZ
@given(
    data=st.binary(max_size=2_000),
    start=st.sampled_from([b"", b"RIFF", b"ID3\x04", b"fLaC", b"OggS", b"\xff\xfb"]),
)
def test_random_bytes(data: bytes, start: bytes) -> None:
    assert faults(start + data) == []


@FUZZ
@given(
    name=st.sampled_from(FORMATS),
    edits=st.lists(st.tuples(st.integers(0, HEADER_BYTES - 1), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_random_header_edits(name: str, edits: list[tuple[int, int]]) -> None:
    data = bytearray(sound(name))
    for position, value in edits:
        data[position] = value
    assert faults(bytes(data)) == []


@FUZZ
@given(name=st.sampled_from(FORMATS), fraction=st.floats(0, 1))
def test_truncation(name: str, fraction: float) -> None:
    data = sound(name)
    assert faults(data[: int(len(data) * fraction)]) == []


@pytest.mark.parametrize("rate", [1, 999, 2**31 - 1])
def test_rates_that_no_recording_has(rate: int) -> None:
    """One byte a second would make 16000 samples of each byte: memory without end."""
    data = bytearray(wav_bytes(speechlike(1_000)))
    data[24:28] = rate.to_bytes(4, "little")
    with pytest.raises(AudioError, match=r"expected 1000 to 768000 Hz|known format|no samples"):
        load_audio(bytes(data))


def test_a_file_object_that_raises() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(AudioError, match="got 'Input/output error'"):
        load_audio(Broken())
