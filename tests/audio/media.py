"""Recordings made in memory for the tests."""

from __future__ import annotations

import io
import subprocess
import wave
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, cast

import av
import numpy as np
import numpy.typing as npt
import pytest
from av.audio.stream import AudioStream
from av.container import OutputContainer

from sottovoce.audio.container import LiveContainer
from sottovoce.audio.io import AudioSource, open_audio
from sottovoce.types import SAMPLE_RATE, Samples


def load_channels(source: AudioSource) -> Samples:
    """Read a whole recording without mixing: (n_channels, n)."""
    with open_audio(source, keep_channels=True) as reader:
        return np.concatenate(list(reader.channels()), axis=1)


def tones(n_samples: int, rate: int, n_channels: int = 1) -> npt.NDArray[np.float32]:
    """Channel k holds a tone of 300 + 100 k Hz: (n_channels, n_samples), amplitude 0.5."""
    t = np.arange(n_samples) / rate
    return np.stack([0.5 * np.sin(2 * np.pi * (300 + 100 * k) * t) for k in range(n_channels)]).astype(
        np.float32
    )


def speechlike(n_samples: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Noise that swells and fades, with pauses, over a range of 80 dB: (n_samples,)."""
    generator = np.random.default_rng(seed)
    envelope = np.abs(np.sin(np.arange(n_samples) / 9000)) ** 3
    return (0.1 * generator.standard_normal(n_samples) * envelope + 1e-5).astype(np.float32)


def wav_bytes(samples: npt.NDArray[np.float32], rate: int = 16_000) -> bytes:
    """16-bit wav of (n,) or (n_channels, n) floats."""
    channels = np.atleast_2d(samples)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels.shape[0])
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((channels.T * 32767).astype("<i2").tobytes())
    return file.getvalue()


def encoded_bytes(
    samples: npt.NDArray[np.float32],
    *,
    rate: int,
    container: str,
    codec: str,
    layout: str = "mono",
    sample_rate: int | None = None,
    file: io.BytesIO | None = None,
) -> bytes:
    """Encode (n_channels, n) floats by any container and codec of PyAV. sample_rate: theirs, or `rate`."""
    file = file or io.BytesIO()
    with av.open(file, "w", format=container) as out:
        encode(out, out.add_stream(codec, rate=rate, layout=layout), samples, sample_rate or rate)
    return file.getvalue()


def encode(out: OutputContainer, stream: AudioStream, samples: Samples, sample_rate: int) -> None:
    """Write all of (n_channels, n) floats to a stream of a container."""
    interleaved = np.ascontiguousarray(np.atleast_2d(samples).T).reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(interleaved, format="flt", layout=stream.layout)
    frame.sample_rate = sample_rate
    resampler = av.AudioResampler(
        stream.format, stream.layout, stream.rate, frame_size=stream.frame_size or 1024
    )
    for part in [*resampler.resample(frame), *resampler.resample(None)]:
        if part is not None:
            out.mux(stream.encode(part))
    out.mux(stream.encode(None))


Sound = tuple[Samples, str | None, str | None]
"""Samples (n,) at 16 kHz, the language tag and the title of a track."""


def write_tracks(path: Path, sounds: Sequence[Sound], codec: str = "aac") -> Path:
    """A file in the container of its extension, with a track for each sound."""
    with av.open(str(path), "w") as out:
        streams = []
        for _, language, title in sounds:
            stream = out.add_stream(codec, rate=SAMPLE_RATE, layout="mono")
            tags = {"language": language, "title": title}
            stream.metadata.update({name: tag for name, tag in tags.items() if tag})
            streams.append(stream)
        for stream, (samples, _, _) in zip(streams, sounds, strict=True):
            encode(out, stream, samples, SAMPLE_RATE)
    return path


def silent_video_bytes() -> bytes:
    """A short video without an audio track."""
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as out:
        stream = out.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(3):
            out.mux(
                stream.encode(av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24"))
            )
        out.mux(stream.encode(None))
    return file.getvalue()


class Pipe:
    """A binary stream that cannot seek, and gives less than asked for."""

    def __init__(self, data: bytes, *, at_most: int = 1000) -> None:
        self._file = io.BytesIO(data)
        self._at_most = at_most

    def read(self, n_bytes: int = -1) -> bytes:
        return self._file.read(self._at_most if n_bytes < 0 else min(n_bytes, self._at_most))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def pipe(data: bytes, *, at_most: int = 1000) -> BinaryIO:
    return cast(BinaryIO, Pipe(data, at_most=at_most))


def from_live(data: bytes, piece: int = 3000) -> list[Samples]:
    """Decode bytes that come live, cut into pieces: the samples of each piece, and of the end."""
    pieces = []
    with closing(LiveContainer()) as container:
        for bytes_of_piece in [*(data[start : start + piece] for start in range(0, len(data), piece)), None]:
            if bytes_of_piece is None:
                container.end()
            else:
                container.feed(bytes_of_piece)
            parts, is_more = [], True
            while is_more:
                samples, is_more = container.take()
                parts.append(samples)
            pieces.append(np.concatenate(parts))
    return pieces


def ffmpeg(arguments: str, data: bytes = b"") -> bytes:
    """Run the program over data; skip the test where it is not installed."""
    command = ["ffmpeg", "-v", "error", *arguments.split()]
    try:
        return subprocess.run(command, input=data, capture_output=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("the program ffmpeg is not installed")
