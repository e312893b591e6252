"""Whatever the bytes are, reading ends in samples or in one AudioError."""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sottovoce.audio.io import load_audio, probe_audio
from sottovoce.errors import AudioError
from tests.audio.media import encoded_bytes, load_channels, speechlike, wav_bytes

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
