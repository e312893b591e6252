"""Channels of opposite phase do not cancel each other, and every other downmix stays as libswresample's."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest

from sottovoce.audio.container import ContainerDecoder, MediaFile
from sottovoce.audio.io import Recording, Source, load_audio
from sottovoce.audio.samples import Downmix
from sottovoce.types import Samples
from tests.audio.media import encoded_bytes, from_live, load_channels, speechlike, wav_bytes

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"
RATE = 16_000


def speech() -> Samples:
    return 0.8 * load_audio(CLIP)


def other_speech() -> Samples:
    other = 0.8 * load_audio(CLIP.with_name("de.flac"))
    resized: Samples = np.resize(other, len(speech()))
    return resized


def libswresample(data: bytes) -> Samples:
    """The mono of libswresample alone, of a file that does not change its format."""
    with av.open(io.BytesIO(data)) as container:
        resampler = av.AudioResampler("s16", "mono", RATE)
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
        frames += [frame for frame in resampler.resample(None) if frame is not None]
    mixed: Samples = np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]) / np.float32(32768)
    return mixed


def level(samples: Samples) -> float:
    return float(np.sqrt(np.mean(samples.astype(np.float64) ** 2)))


def test_the_louder_channel_is_taken_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    a = speech()
    data = wav_bytes(np.stack([0.9 * a, -a]))
    with caplog.at_level(logging.WARNING):
        mixed = load_audio(data)
    np.testing.assert_array_equal(mixed, load_audio(data, channel=1))
    (record,) = caplog.records
    assert "cancel each other" in record.getMessage()


def test_several_readings_of_a_recording_have_one_line(caplog: pytest.LogCaptureFixture) -> None:
    a = speech()
    with Recording(wav_bytes(np.stack([a, -a]))) as recording, caplog.at_level(logging.WARNING):
        for reading in (recording, recording, recording.part(1.0)):
            with reading.open() as reader:
                assert list(reader)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("container", "codec", "rate"), [("flac", "flac", 8_000), ("mp3", "libmp3lame", 44_100)]
)
def test_no_container_loses_it(container: str, codec: str, rate: int) -> None:
    a = speech()
    data = encoded_bytes(np.stack([a, -a]), rate=rate, container=container, codec=codec, layout="stereo")
    assert level(load_audio(data)) == pytest.approx(level(load_channels(data)[0]), rel=0.05)


@pytest.mark.parametrize(
    ("layout", "signs"), [("5.1", (1, -1, 0, 0, 0, 0)), ("quad", (1, -1, 1, -1)), ("7.1", (0,) * 6 + (1, -1))]
)
def test_pairs_of_a_surround_layout_cancel_no_more(layout: str, signs: tuple[int, ...]) -> None:
    a = speech()
    data = encoded_bytes(
        np.outer(signs, a).astype(np.float32), rate=RATE, container="wav", codec="pcm_s16le", layout=layout
    )
    assert level(load_audio(data)) > 0.08 * level(a)


def test_the_centre_is_kept_where_sides_cancel() -> None:
    a, b = speech(), other_speech()
    channels = np.stack([a, -a, 0.1 * b, 0 * a, 0 * a, 0 * a])
    data = encoded_bytes(channels, rate=RATE, container="wav", codec="pcm_s16le", layout="5.1")
    mixed = load_audio(data)
    loudest = np.lib.stride_tricks.sliding_window_view(b, 1600)[::1600].std(axis=1).argmax() * 1600
    within = slice(loudest, loudest + 1600)
    fit = np.linalg.lstsq(np.stack([a, b], axis=1)[within], mixed[within], rcond=None)[0]
    assert np.abs(fit).min() > 0.03


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
@pytest.mark.parametrize("rate", [RATE, 44_100])
def test_arrays(dtype: type, rate: int) -> None:
    a = speechlike(3 * rate)
    a = a if dtype is np.float32 else (a * 32767).astype(np.int16)
    np.testing.assert_array_equal(
        load_audio(Source(np.stack([a, -a]), sample_rate=rate)), load_audio(Source(a, sample_rate=rate))
    )


def test_a_part_of_a_recording() -> None:
    """In phase, then out of phase, then two speakers: nothing is lost on the way."""
    a, b = speech(), other_speech()
    left, right = np.concatenate([a, a, a]), np.concatenate([a, -a, b])
    mixed, n = load_audio(np.stack([left, right])), len(a)
    np.testing.assert_array_equal(mixed[:n], a)
    blocks = (mixed[n : 2 * n][: n // 1600 * 1600].reshape(-1, 1600), a[: n // 1600 * 1600].reshape(-1, 1600))
    got, wanted = ((block**2).mean(axis=1) for block in blocks)
    loud = wanted > 1e-3 * wanted.max()
    assert (got[loud] > 0.2 * wanted[loud]).all()
    np.testing.assert_allclose(mixed[2 * n + RATE :], (a + b)[RATE:] / 2, atol=1e-6)


@pytest.mark.parametrize("snr_db", [12, 20, 40])
def test_noise_of_each_channel_hides_no_cancelled_speech(snr_db: int) -> None:
    a = speech()
    noise = np.random.default_rng(0).standard_normal((2, len(a))) * level(a) * 10 ** (-snr_db / 20)
    mixed = load_audio(np.stack([a, -a]) + noise)
    assert level(mixed) > 0.9 * level(a)


def ordinary() -> dict[str, npt.NDArray[np.float32]]:
    """Stereo that does not cancel: (2, n) each."""
    a, b = speech(), other_speech()
    spectrum = np.fft.rfft(a)
    noise = np.random.default_rng(0).standard_normal((2, len(a))).astype(np.float32)
    stereo = {
        "identical": np.stack([a, a]),
        "one silent side": np.stack([a, 0 * a]),
        "two speakers": np.stack([a, b]),
        "two speakers, crosstalk of opposite phase": np.stack([a - 0.3 * b, b - 0.3 * a]),
        "music-like": 0.1 * noise,
        "last bits": (np.sign(noise) * (np.abs(noise) > 2.5) / 32768).astype(np.float32),
        "phase": np.stack([a, np.fft.irfft(spectrum * np.exp(2j * np.pi / 3), len(a))]),
    }
    stereo |= {f"delay of {n}": np.stack([a, np.roll(a, n)]) for n in (1, 16, 800)}
    return stereo


@pytest.mark.parametrize("kind", list(ordinary()))
def test_ordinary_stereo_is_that_of_libswresample(kind: str) -> None:
    data = wav_bytes(ordinary()[kind])
    np.testing.assert_array_equal(load_audio(data), libswresample(data))


def test_the_result_does_not_depend_on_the_cuts() -> None:
    a, b = speech(), other_speech()
    channels = np.stack([np.concatenate([b, a, a]), np.concatenate([a, -a, b])])
    mean = channels.mean(axis=0, dtype=np.float32)
    weights = (0.5, 0.5)
    whole = Downmix[np.float32](weights, "whole").push(mean, channels, is_last=True)
    for piece in (7, 1600, 5000):
        cut = Downmix[np.float32](weights, "cut")
        starts = range(0, len(mean), piece)
        parts = [cut.push(mean[i : i + piece], channels[:, i : i + piece]) for i in starts]
        parts.append(cut.push(mean[:0], channels[:, :0], is_last=True))
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_live_containers_are_mixed_as_files() -> None:
    a, b = speech(), other_speech()
    channels = np.stack([np.concatenate([a, a]), np.concatenate([-a, b])])
    data = encoded_bytes(channels, rate=RATE, container="flac", codec="flac", layout="stereo")
    mixed = load_audio(data)
    assert level(mixed[: len(a)]) > 0.5 * level(a)
    np.testing.assert_array_equal(np.concatenate(from_live(data, 1000)), mixed)


def test_a_part_is_that_of_the_whole_recording() -> None:
    a = speechlike(60 * RATE)
    data = wav_bytes(np.stack([a, -a]))
    whole = load_audio(data)
    np.testing.assert_array_equal(load_audio(data, 41.2345, 10.0), whole[659_752:819_752])


def test_the_text_of_a_report_is_there(shared_dir: Path) -> None:
    path = shared_dir / "fixtures" / "reports" / "out-of-phase.flac"
    np.testing.assert_array_equal(load_audio(path), load_audio(path, channel=0))


def test_blocks_of_a_decoder_hold_all_samples() -> None:
    """The downmix and the channels of a frame come out of two resamplers: none is ahead at the end."""
    a = speechlike(44_100)
    data = encoded_bytes(np.stack([a, a]), rate=44_100, container="flac", codec="flac", layout="stereo")
    decoder = ContainerDecoder(MediaFile(io.BytesIO(data), "a"))
    assert sum(block.shape[1] for block in decoder.blocks()) == len(libswresample(data))
    decoder.close()
