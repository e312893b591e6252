"""Mel spectrograms equal openai-whisper's, as a stream, as a whole, and in windows of any recording."""

from __future__ import annotations

import itertools
import platform

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.audio.io import AudioSource, Recording, load_audio
from sottovoce.audio.mel import (
    LogMel,
    MelStream,
    NativeLogMel,
    RecordingFeatures,
    log_mel,
    mel_filters,
    normalize,
    pad_or_trim,
    window_features,
)
from sottovoce.errors import AudioError, OptionError, SessionClosedError
from sottovoce.types import Floats
from tests.audio.media import pipe, speechlike, wav_bytes
from tests.conftest import Reference, some


@pytest.mark.reference
@pytest.mark.parametrize("n_mels", [80, 128])
def test_filters_equal_openai_whisper(n_mels: int, reference: Reference) -> None:
    def compute() -> list[list[float]]:
        whisper_audio = pytest.importorskip("whisper.audio", reason="openai-whisper is not installed")
        return whisper_audio.mel_filters("cpu", n_mels)[:, 5::31].tolist()  # type: ignore[no-any-return]

    theirs = np.float32(reference(compute))
    np.testing.assert_allclose(mel_filters(n_mels)[:, 5::31], theirs, atol=1e-15, rtol=0)


@pytest.mark.reference
@pytest.mark.parametrize("n_mels", [80, 128])
@pytest.mark.parametrize("n_samples", [201, 16_000, 500_037])
def test_log_mel_equals_openai_whisper(n_mels: int, n_samples: int, reference: Reference) -> None:
    samples = speechlike(n_samples)

    def compute(padding: int) -> list[float]:
        whisper_audio = pytest.importorskip("whisper.audio", reason="openai-whisper is not installed")
        return some(whisper_audio.log_mel_spectrogram(samples, n_mels, padding=padding))

    for padding in (0, 32_000):
        ours = some(normalize(log_mel(samples, n_mels, padding_samples=padding)))
        assert ours == pytest.approx(reference(lambda padding=padding: compute(padding)), abs=1e-5)


@pytest.mark.parametrize("n_mels", [80, 128])
def test_kernels_equal_numpy_whatever_the_other_frames(n_mels: int) -> None:
    kernels = pytest.importorskip("sottovoce_kernels", reason="the kernels are not installed")
    samples = np.concatenate((speechlike(40_000), np.zeros(8_000, np.float32), 1e-4 * speechlike(8_000)))
    n_frames, before = (len(samples) - 400) // 160 + 1, kernels.in_use()
    expected = LogMel(n_mels).compute(samples, n_frames)
    try:
        for name in filter(kernels.runs_here, kernels.built()):
            kernels.use(name)
            result = NativeLogMel(n_mels).compute(samples, n_frames)
            alone = [NativeLogMel(n_mels).compute(samples[160 * t :], 1) for t in range(0, n_frames, 7)]
            np.testing.assert_array_equal(np.concatenate(alone, axis=1), result[:, ::7])
            # Elsewhere compilers fuse NumPy's products and sums.
            tolerance = 0 if platform.machine() in ("x86_64", "AMD64") else 2e-6
            np.testing.assert_allclose(result, expected, atol=tolerance, rtol=0)
    finally:
        kernels.use(before)


@settings(max_examples=15, deadline=None)
@given(n_samples=st.integers(0, 9_000), cuts=st.lists(st.integers(0, 9_000), max_size=12))
def test_stream_equals_offline_however_it_is_cut(n_samples: int, cuts: list[int]) -> None:
    samples = speechlike(n_samples, seed=1)
    whole = log_mel(samples, padding_samples=480)[:, : n_samples // 160]
    stream = MelStream()
    edges = [0, *sorted(min(cut, n_samples) for cut in cuts), n_samples]
    parts = [stream.push(samples[a:b]) for a, b in itertools.pairwise(edges)]
    frames = np.concatenate([*parts, stream.finish()], axis=1)
    assert stream.n_samples == n_samples
    np.testing.assert_array_equal(frames, whole)


def test_stream_gives_a_frame_once_its_samples_are_there() -> None:
    stream = MelStream()
    samples = speechlike(2_000)
    given_out = [stream.push(samples[i : i + 1]).shape[1] for i in range(2_000)]
    received_at = np.repeat(np.arange(1, 2_001), given_out)
    assert received_at[0] == 201
    np.testing.assert_array_equal(received_at[1:], 160 * np.arange(1, len(received_at)) + 200)


def test_stream_takes_audio_again_only_after_reset() -> None:
    stream = MelStream()
    samples = speechlike(4_000)
    first = np.concatenate((stream.push(samples), stream.finish()), axis=1)
    with pytest.raises(SessionClosedError, match="reset"):
        stream.push(samples)
    stream.reset()
    np.testing.assert_array_equal(np.concatenate((stream.push(samples), stream.finish()), axis=1), first)


def test_normalize_clamps_at_the_maximum_that_is_given() -> None:
    quiet = np.float32([[[-10.0, -3.0]]])
    assert normalize(quiet).tolist() == [[[-1.5, 0.25]]]  # floor at -11: nothing is clamped
    assert normalize(quiet, 2.0).tolist() == [[[-0.5, 0.25]]]  # floor at -6


def test_windows_of_a_batch_are_normalized_by_themselves() -> None:
    loud, quiet = np.full((80, 4), 3.0, np.float32), np.full((80, 6), -9.0, np.float32)
    quiet[:, 0] = -2.0
    features = window_features([loud, quiet], 6)
    assert features.mel.shape == (2, 80, 6)
    assert features.n_content_frames == (4, 6)
    assert features.mel[0, 0].tolist() == [1.75] * 4 + [0.0] * 2
    assert features.mel[1, 0].tolist() == [0.5] + [-1.25] * 5


def test_pad_or_trim_fills_with_zero() -> None:
    assert pad_or_trim(np.ones((2, 3), np.float32), 5).tolist() == [[1, 1, 1, 0, 0]] * 2
    assert pad_or_trim(np.ones((2, 3), np.float32), 2).shape == (2, 2)


def test_bad_input_is_refused() -> None:
    with pytest.raises(AudioError, match=r"\(n,\), got \(2, 500\)"):
        log_mel(np.zeros((2, 500), np.float32))
    with pytest.raises(AudioError, match="at least 201 samples, got 200"):
        log_mel(np.zeros(200, np.float32))
    with pytest.raises(OptionError, match="even number of frames, got 3"):
        window_features([np.zeros((80, 3), np.float32)], 3)
    with pytest.raises(OptionError, match="at least one window"):
        window_features([])
    with pytest.raises(OptionError, match="at least 1 filter"):
        mel_filters(0)


def expected_windows(samples: np.ndarray, step: int) -> list[Floats]:
    """What openai-whisper gives its encoder: the maximum of everything, slices filled with 0.0."""
    whole = normalize(log_mel(samples, padding_samples=480_000))
    content = whole[:, : len(samples) // 160]
    return [pad_or_trim(content[:, s : s + 3_000]) for s in range(0, content.shape[1], step)]


@pytest.mark.parametrize("n_samples", [3_000, 400_199])
@pytest.mark.parametrize("held_frames", [60_000, 700])
def test_windows_equal_openai_whisper(n_samples: int, held_frames: int) -> None:
    data = wav_bytes(speechlike(n_samples))
    samples = load_audio(data)
    expected = expected_windows(samples, 1_700)
    sources: list[AudioSource] = [data, samples, pipe(data)]
    for source in sources:
        with (
            Recording(source) as recording,
            RecordingFeatures(recording, held_frames=held_frames) as features,
        ):
            assert features.n_frames == n_samples // 160
            assert features.duration_s == n_samples / 16_000
            for i, window in enumerate(expected):
                got = features.window(1_700 * i)
                np.testing.assert_allclose(got.mel[0], window, atol=1e-6, rtol=0)
                assert got.n_content_frames == (min(3_000, n_samples // 160 - 1_700 * i),)
                features.drop_before(1_700 * i)
            assert not features.has(n_samples // 160)


@pytest.mark.parametrize("n_samples", [3_000, 400_199, 479_999])
def test_a_short_recording_may_go_on_in_silence(n_samples: int) -> None:
    """What openai-whisper detects the language from: silence was added before the transform."""
    samples = speechlike(n_samples)
    expected = normalize(log_mel(samples, padding_samples=480_000))[:, :3_000]
    with Recording(samples) as recording, RecordingFeatures(recording) as features:
        got = features.window(0, fill="silence")
        assert got.n_content_frames == (n_samples // 160,)
        np.testing.assert_allclose(got.mel[0], expected, atol=1e-6, rtol=0)


def test_the_loudest_moment_sets_the_floor_of_every_window() -> None:
    samples = np.concatenate((1e-6 * speechlike(720_000), 5 * speechlike(480_000)))
    floors = {}
    for normalization in ("recording", "running", "window"):
        with (
            Recording(samples) as recording,
            RecordingFeatures(recording, normalization=normalization) as features,  # type: ignore[arg-type]
        ):
            floors[normalization] = [float(features.window(s).mel.min()) for s in (0, 4_500)]
    assert floors["recording"][0] > floors["running"][0] == floors["window"][0]
    assert floors["recording"][1] == floors["running"][1]


def test_part_of_a_window() -> None:
    with Recording(speechlike(160_000)) as recording, RecordingFeatures(recording) as features:
        part = features.window(100, 350, n_frames=500)
        assert part.mel.shape == (1, 80, 500)
        assert part.n_content_frames == (250,)
        assert not part.mel[0, :, 250:].any()
        np.testing.assert_array_equal(part.mel[0, :, :250], features.window(0).mel[0, :, 100:350])


def test_bad_requests_are_refused() -> None:
    with Recording(speechlike(160_000)) as recording:
        with RecordingFeatures(recording) as features:
            features.drop_before(500)
            for start in (499, 1_000, -1):
                with pytest.raises(OptionError, match=r"expected a start in \[500, "):
                    features.window(start)
        with pytest.raises(OptionError, match="normalization"):
            RecordingFeatures(recording, normalization="loudest")  # type: ignore[arg-type]
    with (
        Recording("/nonexistent/a.wav") as recording,
        pytest.raises(AudioError, match="no such file"),
    ):
        RecordingFeatures(recording)


def test_memory_of_a_long_recording_is_bounded() -> None:
    """Frames that were dropped are freed: no more than a window and a chunk stay."""
    with (
        Recording(speechlike(16_000 * 90)) as recording,
        RecordingFeatures(recording, held_frames=1_000) as features,
    ):
        for start in range(0, 9_000, 3_000):
            features.window(start)
            features.drop_before(start + 3_000)
            assert features._frames.end - features._frames.start <= 3_000 + 1_000
