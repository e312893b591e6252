"""Decoding of raw audio from a socket, cut at any byte, into samples at 16 kHz."""

from __future__ import annotations

import struct

import numpy as np

from sottovoce.audio.downmix import FloatMixer
from sottovoce.server.errors import invalid_value
from sottovoce.types import SAMPLE_RATE, Samples

SAMPLE_BYTES: dict[str, int] = {"s16le": 2, "f32le": 4, "mulaw": 1, "alaw": 1}
MIN_RATE, MAX_RATE = 8_000, 96_000
WAV_HEADER_BYTES = 44
WAV_FORMATS = {"s16le": 1, "alaw": 6, "mulaw": 7}
"""Source: Microsoft, Multimedia Programming Interface and Data Specifications 1.0, `fmt` chunk."""


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
        samples: Samples
        if self._encoding == "f32le":
            samples = np.frombuffer(data, "<f4").astype(np.float32)
        elif self._encoding == "s16le":
            samples = np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)
        else:
            samples = (MULAW if self._encoding == "mulaw" else ALAW)[np.frombuffer(data, np.uint8)]
        return samples


def wav_header(encoding: str, sample_rate: int, n_bytes: int) -> bytes:
    """Return the header of a mono WAV file of n_bytes, or of the largest size that it can state."""
    size = SAMPLE_BYTES[encoding]
    size_field = min(n_bytes, 2**32 - 1 - WAV_HEADER_BYTES)
    rates = (sample_rate, sample_rate * size, size, 8 * size)
    about = struct.pack("<4sIHHIIHH", b"fmt ", 16, WAV_FORMATS[encoding], 1, *rates)
    return (
        struct.pack("<4sI4s", b"RIFF", size_field + 36, b"WAVE")
        + about
        + struct.pack("<4sI", b"data", size_field)
    )


def _mulaw_table() -> Samples:
    """Source: ITU-T G.711, table 2: sign, exponent and mantissa, all inverted."""
    code = ~np.arange(256, dtype=np.uint8)
    exponent, mantissa = (code >> 4 & 7).astype(int), (code & 15).astype(int)
    size = ((mantissa << 3) + 0x84 << exponent) - 0x84
    samples: Samples = (np.where(code & 0x80, -size, size) / 32768).astype(np.float32)
    return samples


def _alaw_table() -> Samples:
    """Source: ITU-T G.711, table 1: every other bit inverted."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent, mantissa = (code >> 4 & 7).astype(int), (code & 15).astype(int)
    linear = (mantissa << 4) + 8
    size = np.where(exponent == 0, linear, (linear + 0x100) << np.maximum(exponent - 1, 0))
    samples: Samples = (np.where(code & 0x80, size, -size) / 32768).astype(np.float32)
    return samples


MULAW, ALAW = _mulaw_table(), _alaw_table()
