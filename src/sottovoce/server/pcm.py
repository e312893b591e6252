"""Decoding of raw audio from a socket, cut at any byte, into samples at 16 kHz."""

from __future__ import annotations

from functools import cache

import numpy as np

from sottovoce.audio.io import Source, load_audio
from sottovoce.audio.samples import FloatMixer
from sottovoce.server.errors import invalid_value
from sottovoce.types import SAMPLE_RATE, Samples

SAMPLE_BYTES: dict[str, int] = {"s16le": 2, "f32le": 4, "mulaw": 1, "alaw": 1}
MIN_RATE, MAX_RATE = 8_000, 96_000


class PcmReader:
    """Decodes bytes into samples (n,) float32 at 16 kHz, mixed to one channel.

    Raises: ApiError 400 for an unknown encoding or rate.
    """

    def __init__(self, encoding: str = "s16le", sample_rate: int = SAMPLE_RATE, n_channels: int = 1) -> None:
        if encoding not in SAMPLE_BYTES:
            raise invalid_value("encoding", f"one of {', '.join(SAMPLE_BYTES)}", f"'{encoding[:50]}'")
        if not MIN_RATE <= sample_rate <= MAX_RATE:
            raise invalid_value("sample_rate", f"{MIN_RATE} to {MAX_RATE} Hz", str(sample_rate))
        self._encoding = encoding
        self._n_channels = n_channels
        self._n_bytes = SAMPLE_BYTES[encoding] * n_channels
        self._rest = b""
        self._mixer = FloatMixer(sample_rate, n_channels, "live audio")

    def read(self, piece: bytes) -> Samples:
        """Return the complete samples (n,); an incomplete frame waits for the next piece."""
        data = self._rest + piece
        whole = len(data) - len(data) % self._n_bytes
        self._rest = data[whole:]
        if not whole:
            return np.zeros(0, np.float32)
        channels = self._floats(data[:whole]).reshape(-1, self._n_channels).T
        samples: Samples = self._mixer.push(channels)[0]
        return samples

    def flush(self) -> Samples:
        """Return the last samples (n,); nothing may be read after it."""
        samples: Samples = self._mixer.flush()[0]
        return samples

    def _floats(self, data: bytes) -> Samples:
        if self._encoding == "f32le":
            return np.frombuffer(data, "<f4").astype(np.float32)
        if self._encoding == "s16le":
            return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)
        return g711_table(self._encoding)[np.frombuffer(data, np.uint8)]


@cache
def g711_table(encoding: str) -> Samples:
    """Return the samples (256,) of the bytes of mulaw or alaw (ITU-T G.711)."""
    return load_audio(Source(bytes(range(256)), input_format=f"{encoding}:{SAMPLE_RATE}"))
