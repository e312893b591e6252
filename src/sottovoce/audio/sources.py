"""Where blocks of samples come from: a decoded container, an array, or raw PCM.

A source yields float32 blocks (n_channels, n) at 16 kHz, one channel when it mixes. This module knows
nothing of chunks and times; `io` is what callers use.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO, Protocol, TypeAlias

import av
import numpy as np
import numpy.typing as npt

from sottovoce.audio.container import AudioInfo, ContainerDecoder
from sottovoce.audio.samples import MAX_RATE, MIN_RATE, as_channels
from sottovoce.errors import AudioError, cause_of
from sottovoce.types import SAMPLE_RATE, Samples

logger = logging.getLogger(__name__)

AudioSource: TypeAlias = str | os.PathLike[str] | BinaryIO | bytes | npt.NDArray[np.generic]
"""A path ("-": standard input), an open binary file, the bytes of a file, or samples.

Arrays have the shape (n,) or (channels, n): floats in [-1, 1], int16 or int32.
"""


class BlockSource(Protocol):
    """A recording that yields its samples once, front to back."""

    @property
    def info(self) -> AudioInfo: ...

    def blocks(self) -> Iterator[Samples]:
        """Blocks (n_channels, n) float32 at 16 kHz."""
        ...

    def close(self) -> None: ...


def open_source(source: AudioSource, *, sample_rate: int, keep_channels: bool) -> BlockSource:
    """The blocks of any AudioSource; sample_rate counts for arrays only.

    Raises: AudioError when the source cannot be opened.
    """
    name = source_name(source)
    if isinstance(source, np.ndarray):
        return ArraySource(source, name, sample_rate=sample_rate, keep_channels=keep_channels)
    if isinstance(source, str | os.PathLike):
        if os.fspath(source) == "-":
            return ContainerSource(sys.stdin.buffer, name, keep_channels=keep_channels, owned=False)
        return ContainerSource(open_path(source), name, keep_channels=keep_channels, owned=True)
    if isinstance(source, bytes):
        return ContainerSource(io.BytesIO(source), name, keep_channels=keep_channels, owned=True)
    if callable(getattr(source, "read", None)):
        return ContainerSource(source, name, keep_channels=keep_channels, owned=False)
    raise AudioError(
        f"expected a path, a binary file, bytes or an array as audio, got {type(source).__name__}"
    )


def source_name(source: AudioSource) -> str:
    """How messages call a source."""
    if isinstance(source, str | os.PathLike):
        return "standard input" if os.fspath(source) == "-" else _shown(os.fspath(source))
    if isinstance(source, bytes):
        return f"{len(source)} bytes of audio"
    if isinstance(source, np.ndarray):
        return f"array {source.dtype} {source.shape}"
    name = getattr(source, "name", None)
    return _shown(name) if isinstance(name, str) else "audio stream"


def _shown(path: str) -> str:
    """A path as it stands, escaped where it would break the line."""
    return path if path.isprintable() else repr(path)


class ContainerSource:
    """A container decoded by PyAV, as floats."""

    def __init__(self, file: BinaryIO, name: str, *, keep_channels: bool, owned: bool) -> None:
        self._file = file
        self._owned = owned
        try:
            self._decoder = ContainerDecoder(CheckedFile(file, name), name, keep_channels=keep_channels)
        except BaseException:
            if owned:
                file.close()
            raise

    @property
    def info(self) -> AudioInfo:
        return self._decoder.info

    def blocks(self) -> Iterator[Samples]:
        for block in self._decoder.blocks():
            yield block.T.astype(np.float32) / np.float32(32768.0)

    def close(self) -> None:
        self._decoder.close()
        if self._owned:
            self._file.close()


class CheckedFile:
    """A file object as libav may use it: never more bytes than asked for, and only bytes.

    libav copies what `read` returns into a buffer of its own, whatever its length.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._surplus = b""
        self.is_seekable = is_seekable(file)
        self.n_read = 0

    def seekable(self) -> bool:
        return self.is_seekable

    def readable(self) -> bool:
        return True

    def read(self, n_bytes: int) -> bytes:
        """Up to n_bytes; empty at the end only.

        Raises: AudioError when the file gives something else, or cannot be read.
        """
        try:
            received = self._surplus or self._file.read(n_bytes)
        except (OSError, ValueError) as error:
            raise AudioError(f"{self._name}: expected a readable file, got {_refusal(error)}") from error
        if not isinstance(received, bytes | bytearray | memoryview):
            got = "nothing yet (non-blocking)" if received is None else type(received).__name__
            raise AudioError(f"{self._name}: expected bytes from read(), got {got}")
        self._surplus = bytes(received[n_bytes:])
        self.n_read += min(len(received), n_bytes)
        return bytes(received[:n_bytes])

    def seek(self, offset: int, whence: int = 0) -> int:
        self._surplus = b""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def is_seekable(file: BinaryIO) -> bool:
    """Whether a file object can be read again."""
    try:
        return file.seekable()
    except (AttributeError, OSError, ValueError):
        return False


class ArraySource:
    """Samples that are in memory already; its mixture is the mean of the channels."""

    def __init__(
        self, array: npt.NDArray[np.generic], name: str, *, sample_rate: int, keep_channels: bool
    ) -> None:
        channels = as_channels(array, name)
        self._samples = channels if keep_channels else channels.mean(axis=0, keepdims=True, dtype=np.float32)
        duration_s = channels.shape[1] / sample_rate if sample_rate > 0 else None
        self.info = AudioInfo(name, array.dtype.name, sample_rate, channels.shape[0], duration_s)
        self._resampler = FloatResampler(sample_rate, self._samples.shape[0], name)

    def blocks(self) -> Iterator[Samples]:
        step = 10 * self.info.sample_rate
        for start in range(0, self._samples.shape[1], step):
            yield self._resampler.push(self._samples[:, start : start + step])
        yield self._resampler.flush()

    def close(self) -> None:
        """Nothing is held open."""


class FloatResampler:
    """Float samples (n_channels, n) of any rate to 16 kHz, each channel by itself; 16 kHz passes as it is.

    Raises: AudioError for a rate outside of 1 to 768 kHz.
    """

    def __init__(self, sample_rate: int, n_channels: int, name: str) -> None:
        if not MIN_RATE <= sample_rate <= MAX_RATE:
            raise AudioError(f"{name}: expected {MIN_RATE} to {MAX_RATE} Hz, got {sample_rate} Hz")
        self._rate = sample_rate
        self._n_channels = n_channels
        self._channels = (
            []
            if sample_rate == SAMPLE_RATE
            else [av.AudioResampler("flt", "mono", SAMPLE_RATE) for _ in range(n_channels)]
        )

    def push(self, samples: Samples) -> Samples:
        """Resample (n_channels, n): what comes out so far, a few samples behind."""
        if not self._channels:
            return samples
        return self._joined([self._frame(row) for row in samples])

    def flush(self) -> Samples:
        """The samples that the filter still holds; nothing may be pushed after."""
        if not self._channels:
            return np.zeros((self._n_channels, 0), np.float32)
        return self._joined([None] * self._n_channels)

    def _frame(self, samples: Samples) -> av.AudioFrame:
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples)[None], format="flt", layout="mono")
        frame.sample_rate = self._rate
        return frame

    def _joined(self, frames: list[av.AudioFrame | None] | list[av.AudioFrame] | list[None]) -> Samples:
        rows = []
        for resampler, frame in zip(self._channels, frames, strict=True):
            parts = [out.to_ndarray()[0] for out in resampler.resample(frame)]
            rows.append(np.concatenate([np.zeros(0, np.float32), *parts]))
        return np.stack(rows)


def pcm_blocks(stream: BinaryIO, n_bytes: int, name: str) -> Iterator[bytes]:
    """Blocks of n_bytes from a stream that may give fewer at a time; the last one shorter, of even length.

    Raises: AudioError when reading fails.
    """
    pending = b""
    while True:
        try:
            received = stream.read(n_bytes - len(pending))
        except OSError as error:
            raise AudioError(f"{name}: expected PCM, got '{cause_of(error)}'") from error
        if not received:
            break
        pending += received
        if len(pending) == n_bytes:
            yield pending
            pending = b""
    if len(pending) % 2:
        logger.warning("%s: dropped half a sample at the end of 16-bit PCM", name)
    if len(pending) >= 2:
        yield pending[: len(pending) // 2 * 2]


def open_path(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file that is there, readable and not empty."""
    name = source_name(path)
    try:
        file = open(path, "rb")  # noqa: SIM115 - the source owns it
        size = os.fstat(file.fileno()).st_size
    except (OSError, ValueError) as error:
        raise AudioError(f"{name}: expected an audio or video file, got {_refusal(error)}") from error
    if size == 0 and os.path.isfile(path):
        file.close()
        raise AudioError(f"{name}: expected an audio or video file, got an empty one (0 bytes)")
    return file


def _refusal(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "nothing of that name"
    if isinstance(error, IsADirectoryError):
        return "a directory"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    return f"'{cause_of(error)}'"
