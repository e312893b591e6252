"""Windows of a recording equal openai-whisper's, whatever it comes from and however long it is."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.audio.io import AudioSource, Recording, load_audio
from sottovoce.audio.mel import RecordingFeatures, log_mel, normalize, pad_or_trim
from sottovoce.errors import AudioError, OptionError
from sottovoce.types import Floats
from tests.audio.media import pipe, speechlike, wav_bytes


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
            assert features.n_held_frames <= 3_000 + 1_000
