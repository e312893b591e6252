"""Samples in memory, whole or in pieces, and the buffer that holds them, a slice of the whole stream."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.api import Model
from sottovoce.audio.io import AudioSource, Source, load_audio
from sottovoce.audio.samples import AudioBuffer, PushedAudio
from sottovoce.errors import AudioError
from sottovoce.types import SAMPLE_RATE, Final, Samples
from tests.audio.media import wav_bytes
from tests.formats.transcripts import CLIPS

FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "float64": lambda ints: ints / 32768,
    "float16": lambda ints: (ints / 32768).astype(np.float16).astype(np.float32),
    "int16": lambda ints: ints,
    ">i2": lambda ints: ints.astype(">i2"),
    ">f4": lambda ints: (ints / 32768).astype(">f4"),
    "int32": lambda ints: ints.astype(np.int32) << 16,
    "tensor": torch.from_numpy,
    "float64 tensor with a gradient": lambda ints: torch.from_numpy(ints / 32768).requires_grad_(),
    "float16 tensor": lambda ints: torch.from_numpy(ints / 32768).half(),
    "bfloat16 tensor": lambda ints: torch.from_numpy(ints / 32768).bfloat16(),
    "a column": lambda ints: ints[:, None],
    "a row": lambda ints: ints[None],
    "stereo in columns": lambda ints: np.stack([ints, ints], axis=1),
    "stereo in rows": lambda ints: np.stack([ints, ints]),
    "stereo of two levels": lambda ints: np.stack([ints * 1.5, ints * 0.5]) / 32768,
    "stereo tensor in columns": lambda ints: torch.from_numpy(np.stack([ints, ints], axis=1)),
    "every other sample": lambda ints: np.repeat(ints, 2)[::2],
    "read only": lambda ints: np.frombuffer(ints.tobytes(), np.int16),
}


@pytest.fixture(scope="module")
def ints() -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(40_000) * 3000).astype(np.int16)


@pytest.mark.parametrize("form", FORMS)
def test_arrays_are_read_whole_and_in_pieces(form: str, ints: np.ndarray) -> None:
    array = FORMS[form](ints)
    expected, tolerance = ints / 32768, 5e-3 if "float16" in form else 1e-7
    np.testing.assert_allclose(load_audio(array), expected, atol=tolerance)
    axis = int(np.argmax(array.shape))
    reader, bounds = PushedAudio(), [0, 9000, 9000, 9300, 9301, 9303, 40_000]
    pieces = [reader.push(array[(slice(None),) * axis + (slice(*bound),)]) for bound in pairwise(bounds)]
    np.testing.assert_allclose(np.concatenate([*pieces, reader.flush()]), expected, atol=tolerance)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_a_file_are_read_from_any_buffer(kind: Callable[[bytes], AudioSource]) -> None:
    samples = np.linspace(-0.5, 0.5, 4000, dtype=np.float32)
    data = wav_bytes(samples)
    np.testing.assert_array_equal(load_audio(kind(data)), load_audio(data))
    np.testing.assert_array_equal(load_audio(memoryview(samples)), samples)
    np.testing.assert_array_equal(PushedAudio().push(memoryview(samples)), samples)


def test_pieces_of_another_rate_are_those_of_the_whole(ints: np.ndarray) -> None:
    reader = PushedAudio()
    pieces = [reader.push(piece, 48_000) for piece in np.array_split(ints, 17)]
    whole = load_audio(Source(ints, sample_rate=48_000))
    np.testing.assert_allclose(np.concatenate([*pieces, reader.flush()]), whole, atol=1e-6)


SHAPES = r"expected samples of shape \(n,\), \(channels, n\) or \(n, channels\) with at most 64 channels"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 2)), rf"{SHAPES}, fewer than samples, got \(2, 2\)"),
        (np.zeros((100, 200)), rf"{SHAPES}, .*got \(100, 200\)"),
        (np.zeros((1, 1, 9)), rf"{SHAPES}, .*got \(1, 1, 9\)"),
        (np.zeros(9, np.uint8), "expected float, int16 or int32 samples, got uint8"),
        (np.zeros(9, np.int64), "expected float, int16 or int32 samples, got int64"),
        (np.zeros(9, np.complex64), "expected float, int16 or int32 samples, got complex64"),
        (np.array([0.0, np.nan]), r"1 NaN or infinite of 2, the first at sample 1 \(0.000 s\)"),
        (np.array([[0.0, 1.0], [0.0, 1.0], [np.inf, 1.0]]), "1 NaN or infinite of 6, the first at sample 2"),
        (np.full(9, 20_000.0), "expected float samples from -1 to 1, got up to 20000"),
        (np.array([1e300]), "NaN or infinite"),
        (torch.zeros(10, device="meta"), r"expected a tensor on the CPU \(use .cpu\(\)\)"),
        ([0.0, 1.0], "got list"),
    ],
)
def test_arrays_that_are_no_audio_are_refused(array: Any, message: str) -> None:
    with pytest.raises(AudioError, match=message):
        load_audio(array)
    reader = PushedAudio()
    with pytest.raises(AudioError, match=message):
        reader.push(array)
    assert len(reader.push(np.zeros((7, 2)))) + len(reader.flush()) == 7


@pytest.mark.parametrize(
    ("piece", "rate", "message"),
    [
        (np.zeros((9, 2)), 16_000, "expected 16000 Hz and 1 channels as at first, got .* 2 channels"),
        (np.zeros(9), 8_000, "got 8000 Hz and 1 channels"),
        (np.zeros(9), 0, "got 0 Hz and 1 channels"),
        (np.zeros(16_000 * 700, np.float32), 16_000, "expected at most 600 s at once, got 700 s"),
        (b"abc", 16_000, r"expected an array \(of bytes: np.frombuffer\) or a tensor, got bytes"),
    ],
)
def test_a_piece_that_does_not_follow_changes_nothing(piece: Any, rate: int, message: str) -> None:
    reader = PushedAudio()
    reader.push(np.ones(5))
    with pytest.raises(AudioError, match=message):
        reader.push(piece, rate)
    np.testing.assert_array_equal(reader.push(np.ones(3)), np.ones(3))


@pytest.mark.parametrize("rate", [32_000.0, np.float64(32_000), np.int32(32_000)])
def test_whole_floats_are_rates(rate: Any) -> None:
    """Such as `default_samplerate` of a device of sounddevice."""
    samples = np.sin(np.arange(32_000) / 20).astype(np.float32)
    whole = load_audio(Source(samples, sample_rate=rate))
    np.testing.assert_array_equal(whole, load_audio(Source(samples, sample_rate=32_000)))
    np.testing.assert_array_equal(PushedAudio().push(samples, rate), PushedAudio().push(samples, 32_000))


@pytest.mark.parametrize("rate", [0, -16_000, 10**7, "16000", 44_100.5, None])
def test_a_first_piece_of_an_impossible_rate_changes_nothing(rate: Any) -> None:
    reader = PushedAudio()
    with pytest.raises(AudioError, match=f"expected 1000 to 768000 Hz, got {rate!r} Hz"):
        load_audio(Source(np.ones(5), sample_rate=rate))
    with pytest.raises(AudioError, match=f"expected 1000 to 768000 Hz, got {rate!r} Hz"):
        reader.push(np.ones(5), rate)
    np.testing.assert_array_equal(reader.push(np.ones(3)), np.ones(3))


def words_of(model: Model, pieces: list[Any], sample_rate: int = 16_000) -> list[str]:
    session = model.session("de")
    events = [event for piece in pieces for event in session.push(piece, sample_rate=sample_rate)]
    return [event.text for event in [*events, *session.close()] if isinstance(event, Final)]


def test_a_session_takes_what_a_transcription_takes(model: Model) -> None:
    samples: Samples = load_audio(CLIPS / "de.flac")
    ints = (samples * 32768).astype(np.int16)
    expected = words_of(model, np.array_split(samples, 20))
    assert expected == ["Wir haben heute viel Zeit."]
    assert words_of(model, np.array_split(ints[:, None], 20)) == expected
    assert words_of(model, np.array_split(np.repeat(samples, 3), 20), 48_000) == expected


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 60_000)), max_size=20))
def test_equals_a_slice_of_everything_pushed(steps: list[tuple[int, int]]) -> None:
    buffer = AudioBuffer()
    everything = np.zeros(0, np.float32)
    for n_new, n_dropped in steps:
        new = np.arange(len(everything), len(everything) + n_new, dtype=np.float32) / np.float32(2**20)
        everything = np.concatenate((everything, new))
        buffer.append(new)
        buffer.drop_before(buffer.start + n_dropped)
        assert buffer.end == len(everything)
        np.testing.assert_array_equal(buffer.view(), everything[buffer.start :])
        middle = (buffer.start + buffer.end) // 2
        np.testing.assert_array_equal(buffer.view(middle), everything[middle:])


def test_a_view_outlives_later_pushes_and_is_read_only() -> None:
    buffer = AudioBuffer()
    buffer.append(np.ones(10, np.float32))
    view = buffer.view(2, 5)
    for _ in range(5):
        buffer.drop_before(buffer.end)
        buffer.append(np.zeros(30_000, np.float32))
    assert view.tolist() == [1.0] * 3
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 2.0


def test_memory_follows_what_is_held() -> None:
    buffer = AudioBuffer()
    second = np.zeros(16_000, np.float32)
    for _ in range(2_000):
        buffer.append(second)
        buffer.drop_before(buffer.end - 32_000)
    assert buffer.end == 2_000 * 16_000
    base = buffer.view().base
    assert base is not None
    assert len(base) <= 4 * 48_000


def test_bad_requests_are_refused() -> None:
    buffer = AudioBuffer()
    buffer.append(np.ones(10, np.float32))
    buffer.append(np.zeros(0, np.float32))
    buffer.drop_before(4)
    for start, end in ((3, 8), (5, 11), (8, 5)):
        with pytest.raises(AudioError, match=r"expected samples in \[4, 10\)"):
            buffer.view(start, end)


def test_samples_are_taken_while_another_thread_imports_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    partial = ModuleType("torch")
    partial.__spec__ = ModuleSpec("torch", None)
    partial.__spec__._initializing = True  # type: ignore[attr-defined]  # as importlib marks it
    monkeypatch.setitem(sys.modules, "torch", partial)
    assert PushedAudio().push(np.zeros(1600, np.float32), SAMPLE_RATE).shape == (1600,)
