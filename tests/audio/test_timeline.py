"""The place of a sample is its time stamp from the start of the container, however it is read."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sottovoce.audio.io import Recording, Source, load_audio, probe_audio
from sottovoce.errors import AudioError
from sottovoce.types import SAMPLE_RATE, Samples
from tests.audio.media import encoded_bytes, ffmpeg, from_live, load_channels, pipe, tones
from tests.audio.stamped import loud_spans, stamped_bytes

Stamp = Callable[[float], float]
NOISE = (0.2 * np.random.default_rng(3).standard_normal(9 * SAMPLE_RATE)).astype(np.float32)
CONTAINERS = [
    ("mp4", "aac", 16_000),
    ("ipod", "aac", 44_100),
    ("matroska", "libopus", 48_000),
    ("mpegts", "aac", 48_000),
    ("webm", "libopus", 48_000),
    ("ogg", "libopus", 48_000),
    ("flv", "aac", 44_100),
]
STAMPS: dict[str, Stamp] = {
    "gap": lambda t: t + 2.0 * (t > 3),
    "two gaps": lambda t: t + 1.0 * (t > 3) + 4.0 * (t > 6),
    "overlap": lambda t: t - 1.5 * (t > 3),
    "ahead": lambda t: 1.05 * t,
    "behind": lambda t: 0.95 * t,
}
SAME_S = 0.02


def spans_near(samples: Samples, expected: list[tuple[float, float]]) -> bool:
    spans = loud_spans(samples)
    return len(spans) == len(expected) and bool(np.abs(np.subtract(spans, expected)).max() <= 0.21)


def by_ffmpeg(data: bytes, path: Path) -> Samples:
    """Decode with the program, which fills and trims by time stamps."""
    path.write_bytes(data)
    words = "-map 0:a -af aresample=async=1:first_pts=0 -ac 1 -ar 16000 -f s16le -"
    return np.frombuffer(ffmpeg(f"-i {path} {words}"), np.int16) / np.float32(32768)


def lags_s(theirs: Samples, ours: Samples) -> list[float]:
    """How much later each half second of theirs is in ours."""
    n_each, lags = SAMPLE_RATE // 2, []
    for start in range(n_each, len(theirs) - 2 * n_each, n_each):
        piece = theirs[start : start + n_each]
        near = ours[start - n_each // 2 : start + 2 * n_each]
        if (piece == 0).mean() > 0.05 or len(near) < n_each:
            continue  # silence was filled in
        lags.append((int(np.argmax(np.correlate(near, piece, "valid"))) - n_each // 2) / SAMPLE_RATE)
    return lags


@pytest.mark.quick(10)
@pytest.mark.parametrize("kind", STAMPS)
@pytest.mark.parametrize(("container", "codec", "rate"), CONTAINERS)
def test_places_are_those_of_ffmpeg(container: str, codec: str, rate: int, kind: str, tmp_path: Path) -> None:
    data = stamped_bytes(NOISE, STAMPS[kind], container=container, codec=codec, rate=rate)
    lags = lags_s(by_ffmpeg(data, tmp_path / "talk"), load_audio(data))
    assert len(lags) > 6
    assert np.abs(lags).max() <= SAME_S


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [
        ("mp4", "aac", 16_000),
        ("matroska", "libopus", 48_000),
        ("matroska", "aac", 48_000),
        ("webm", "libopus", 48_000),
    ],
)
@pytest.mark.parametrize("late_s", [5.0, 8.0])
def test_a_track_that_begins_later_begins_with_silence(
    container: str, codec: str, rate: int, late_s: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where its sound begins behind what is probed; it ends before the picture, and is whole."""
    data = stamped_bytes(
        NOISE, lambda t: t + late_s, container=container, codec=codec, rate=rate, picture_s=late_s + 12.0
    )
    samples = load_audio(data)
    assert spans_near(samples, [(late_s, late_s + 9.0)])
    assert caplog.text.count("the audio begins at") == 1
    assert "truncated" not in caplog.text
    np.testing.assert_array_equal(load_audio(data, late_s), samples[round(late_s * SAMPLE_RATE) :])
    np.testing.assert_array_equal(load_audio(Source(data, audio_track=1)), samples)
    assert np.abs(lags_s(by_ffmpeg(data, tmp_path / "film"), samples)).max() <= SAME_S


@pytest.mark.parametrize("name", ["film.ts", "film.ogg"])
def test_a_late_track_of_formats_that_the_program_writes(name: str, tmp_path: Path) -> None:
    sound = tmp_path / "sound.flac"
    sound.write_bytes(encoded_bytes(NOISE, rate=16_000, container="flac", codec="flac"))
    codecs = "-c:v mpeg2video -c:a aac" if name == "film.ts" else "-c:v libtheora -c:a libvorbis"
    ffmpeg(f"-f lavfi -i color=s=64x48:r=25:d=16 -itsoffset 5 -i {sound} {codecs} {tmp_path / name}")
    assert spans_near(load_audio(tmp_path / name), [(5.0, 14.0)])


def test_an_audio_file_begins_where_its_sound_begins() -> None:
    """The container has no earlier start: that of a cut, or of a stream that was recorded from its middle."""
    for container in ("matroska", "ogg", "mpegts"):
        data = stamped_bytes(NOISE, lambda t: t + 7200.0, container=container)
        assert spans_near(load_audio(data), [(0.0, 9.0)])
        assert spans_near(live(data), [(0.0, 9.0)])


@pytest.mark.quick(3)
@pytest.mark.parametrize("container", ["mp4", "matroska", "webm", "ogg"])
@pytest.mark.parametrize("start_s", [21.0, 27.5, 38.3])
def test_a_part_has_the_places_of_the_whole(container: str, start_s: float) -> None:
    noise = np.tile(NOISE, 5)
    data = stamped_bytes(noise, lambda t: t + 8.0 * (t > 24), container=container)
    whole, part = load_audio(data), load_audio(data, start_s, 6.0)
    expected = whole[round(start_s * SAMPLE_RATE) :][: len(part)]
    spans = loud_spans(part)
    assert len(part) == 6 * SAMPLE_RATE
    assert [round(edge, 1) for edge in np.ravel(spans)] == pytest.approx(
        np.ravel(loud_spans(expected)), abs=0.11
    )
    assert 32.0 <= np.ravel(loud_spans(whole))[2] <= 32.2


@pytest.mark.parametrize("container", ["matroska", "webm", "ogg", "mpegts"])
def test_live_containers_and_pipes_have_the_places_of_files(container: str) -> None:
    data = stamped_bytes(NOISE, STAMPS["two gaps"], container=container)
    whole = load_audio(data)
    second = (4.0, 6.0), (10.0, 14.0)  # a page of Ogg holds a second
    assert spans_near(whole, [(0.0, 3.0), *(second if container == "ogg" else ((4.0, 7.0), (11.0, 14.0)))])
    np.testing.assert_array_equal(live(data), whole)
    np.testing.assert_array_equal(load_audio(pipe(data)), whole)


def test_many_gaps_do_not_shift_the_sound_behind_them() -> None:
    data = stamped_bytes(
        np.tile(NOISE, 5), lambda t: t + 0.3 * (t // 0.7), container="ipod", codec="aac", rate=44_100
    )
    whole, part = load_audio(data), load_audio(data, 60.0)
    assert len(whole) - 60 * SAMPLE_RATE == pytest.approx(len(part), abs=1)
    np.testing.assert_allclose(part[:SAMPLE_RATE], whole[60 * SAMPLE_RATE :][:SAMPLE_RATE], atol=1e-3)


@pytest.mark.parametrize("codec", ["pcm_u8", "pcm_s16le", "pcm_f32le"])
def test_a_gap_is_silent_in_every_sample_format(codec: str) -> None:
    data = stamped_bytes(NOISE, STAMPS["gap"], container="matroska", codec=codec, rate=16_000)
    assert not load_audio(data)[round(3.2 * SAMPLE_RATE) : round(4.8 * SAMPLE_RATE)].any()


def test_a_long_pause_of_a_live_sender_is_not_replayed() -> None:
    data = stamped_bytes(NOISE, lambda t: t + 600.0 * (t > 3), container="webm")
    assert spans_near(live(data), [(0.0, 9.0)])


@pytest.mark.parametrize(
    "stamp_s",
    [
        lambda t: t + 36_000.0 * (t > 5),  # hours ahead, to the end
        lambda t: t + 36_000.0 * (5 < t < 5.05),  # one frame; the muxer lets those behind it stand still
        lambda t: t + 30.0 * (5 < t < 5.05),
    ],
)
@pytest.mark.parametrize("container", ["mp4", "matroska", "webm"])
def test_absurd_stamps_add_no_silence_and_lose_no_sound(
    container: str, stamp_s: Stamp, caplog: pytest.LogCaptureFixture
) -> None:
    codec, rate = ("aac", 48_000) if container == "mp4" else ("libopus", 48_000)
    data = stamped_bytes(NOISE, stamp_s, container=container, codec=codec, rate=rate)
    assert spans_near(load_audio(data), [(0.0, 9.0)])
    assert "truncated" not in caplog.text


def test_concatenated_files_are_joined_where_their_stamps_begin_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for container, codec in (("mpegts", "aac"), ("matroska", "libopus")):
        file = stamped_bytes(NOISE, lambda t: t, container=container, codec=codec)
        caplog.clear()
        assert len(load_audio(file + file)) / SAMPLE_RATE == pytest.approx(18.0, abs=0.1)
        assert "the time stamps start anew once" in caplog.text
    far = stamped_bytes(
        NOISE, lambda t: t + 95_440.0, container="mpegts", codec="aac"
    )  # 33 bits end within it
    assert len(load_audio(far)) / SAMPLE_RATE == pytest.approx(9.0, abs=0.1)


def test_other_sound_in_a_concatenated_file_is_decoded() -> None:
    """A change of the rate within MPEG-TS, whose stamps libav guesses by the first rate."""
    files = [
        encoded_bytes(tones(8 * rate, rate, n), rate=rate, container="mpegts", codec="aac", layout=layout)
        for rate, n, layout in ((44_100, 2, "stereo"), (16_000, 1, "mono"))
    ]
    assert len(load_audio(b"".join(files))) / SAMPLE_RATE == pytest.approx(16.1, abs=0.15)


def test_changes_are_logged_once_for_a_recording(caplog: pytest.LogCaptureFixture) -> None:
    data = stamped_bytes(NOISE, STAMPS["two gaps"], container="matroska")
    with caplog.at_level(logging.WARNING), Recording(io.BytesIO(data)) as talk:
        for _ in range(3):
            with talk.open() as reader:
                list(reader)
    assert len(caplog.records) == 1
    assert "5.00 s of missing sound are silence, first at 3.0" in caplog.text


def live(data: bytes) -> Samples:
    return np.concatenate(from_live(data))


def link(seconds: int, n_channels: int) -> bytes:
    layout = "stereo" if n_channels == 2 else "mono"
    sound = tones(seconds * 48_000, 48_000, n_channels)
    return encoded_bytes(sound, rate=48_000, container="ogg", codec="libopus", layout=layout)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "links",
    [[(8, 2), (5, 1)], [(2, 1), (3, 1)], [(20, 1), (2, 2), (12, 1)], [(9, 1), (2, 2), (4, 1), (2, 2)]],
)
def test_every_link_of_chained_ogg_is_decoded(links: list[tuple[int, int]]) -> None:
    data = b"".join(link(*part_of_chain) for part_of_chain in links)
    expected = np.concatenate([load_audio(link(*part_of_chain)) for part_of_chain in links])
    assert len(expected) == sum(part_of_chain[0] for part_of_chain in links) * SAMPLE_RATE
    for samples in (load_audio(data), load_audio(pipe(data, at_most=7)), live(data)):
        assert len(samples) == pytest.approx(len(expected), abs=5)
        np.testing.assert_allclose(samples[:30_000], expected[:30_000], atol=1e-3)
        assert np.corrcoef(samples[-SAMPLE_RATE:], expected[-SAMPLE_RATE:])[0, 1] > 0.98
    start_s = sum(part_of_chain[0] for part_of_chain in links[:-1])
    part = load_audio(data, start_s, 1.0)
    np.testing.assert_array_equal(part, load_audio(data)[start_s * SAMPLE_RATE :][:SAMPLE_RATE])


@pytest.mark.parametrize("codecs", [("flac", "flac"), ("libvorbis", "libvorbis"), ("libopus", "flac")])
def test_another_rate_or_codec_in_chained_ogg(codecs: tuple[str, str]) -> None:
    sound = encoded_bytes(NOISE, rate=16_000, container="flac", codec="flac")
    data = b""
    for codec, rate in zip(codecs, (48_000, 16_000), strict=True):
        data += ffmpeg(f"-i - -c:a {codec} -ar {rate} -f ogg -", sound)
    assert spans_near(load_audio(data), [(0.0, 18.0)])


def test_channels_apart_refuse_another_number_of_channels() -> None:
    data = link(3, 2) + link(3, 1)
    with pytest.raises(AudioError, match="expected 2 channels to the end, got 1 on the way"):
        load_channels(data)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("late-audio.mp4", [(5.0, 10.1)]),
        ("gap.ts", [(0.0, 9.6), (18.66, 23.7)]),
        ("gap.m4a", [(0.0, 9.6), (18.66, 23.7)]),
        ("gap.mka", [(0.0, 9.6), (18.66, 23.7)]),
        ("chain-stereo-then-mono.opus", [(0.0, 14.79)]),
    ],
)
def test_files_of_reports(name: str, expected: list[tuple[float, float]], shared_dir: Path) -> None:
    path = shared_dir / "fixtures" / "reports" / name
    spans = np.array(loud_spans(load_audio(path)))
    for start, end in expected:
        assert np.abs(spans[:, 0] - start).min() <= 0.3
        assert np.abs(spans[:, 1] - end).min() <= 0.4
    assert not [1 for start, end in spans if 10.3 < start < 18.4 and name.startswith("gap")]
    assert spans[-1, 1] == pytest.approx(probe_audio(path).duration_s, abs=0.4) or "chain" in name


def test_a_part_of_a_long_file_with_a_gap(shared_dir: Path) -> None:
    path = shared_dir / "fixtures" / "reports" / "gap-long.mka"
    whole, part = load_audio(path), load_audio(path, 80.0)
    n_same = 10 * SAMPLE_RATE
    near = whole[80 * SAMPLE_RATE - 1600 : 80 * SAMPLE_RATE + n_same + 1600]
    lag = int(np.argmax(np.correlate(near, part[:n_same], "valid"))) - 1600
    assert abs(lag) / SAMPLE_RATE <= SAME_S
    assert len(part) == pytest.approx(len(whole) - 80 * SAMPLE_RATE, abs=SAME_S * SAMPLE_RATE)
