"""Sources of sample blocks (a decoded container, an array, or raw PCM). Use them through `io`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from sottovoce.audio.container import ONLY_TRACK, AudioInfo, ContainerDecoder, track_named
from sottovoce.audio.downmix import FloatMixer, FloatResampler
from sottovoce.audio.input_format import HEAD_BYTES, RawFormat, format_of_ending, is_container
from sottovoce.audio.samples import as_channels, is_tensor, tensor_array
from sottovoce.audio.timeline import MOST_GAP_S
from sottovoce.errors import AudioError, cause_of
from sottovoce.types import SAMPLE_RATE, Samples

if TYPE_CHECKING:
    from torch import Tensor

PlainSource: TypeAlias = str | os.PathLike[str] | BinaryIO | bytes | npt.NDArray[np.generic]
AudioSource: TypeAlias = "PlainSource | Tensor"
"""A path ("-": standard input), an open binary file, the bytes of a file, or samples.

Arrays, and tensors on the CPU, have the shape (n,) or (channels, n): floats in [-1, 1], int16 or int32.
"""


def plain_source(source: AudioSource) -> PlainSource:
    return tensor_array(source, "audio") if is_tensor(source) else cast(PlainSource, source)


class BlockSource(Protocol):
    """A recording that yields blocks (n_channels, n) float32 at 16 kHz once, front to back.

    first_sample: first sample of `blocks` in the recording.
    """

    @property
    def info(self) -> AudioInfo: ...

    @property
    def first_sample(self) -> int: ...

    def blocks(self) -> Iterator[Samples]: ...

    def warnings(self) -> list[str]: ...

    def silences(self) -> list[tuple[float, float]]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """How to read a source; see `open_audio` and `ContainerDecoder`.

    start_sample: first sample needed, at 16 kHz. raw: format of headerless samples; None: by the file's
    extension.
    """

    keep_channels: bool = False
    audio_track: int | str | None = None
    start_sample: int = 0
    raw: RawFormat | None = None
    warned: set[str] = field(default_factory=set)
    most_gap_s: float = MOST_GAP_S


def open_source(source: AudioSource, request: SourceRequest, *, sample_rate: int) -> BlockSource:
    """Open any AudioSource; sample_rate applies to arrays only.

    Raises: AudioError when the source cannot be opened, or has no such track.
    """
    name = source_name(source)
    source = plain_source(source)
    if isinstance(source, np.ndarray):
        track_named((ONLY_TRACK,), request.audio_track or 1, name)
        return ArraySource(source, name, request, sample_rate=sample_rate)
    if isinstance(source, str | os.PathLike):
        if os.fspath(source) == "-":
            return open_container(sys.stdin.buffer, name, request, owned=False)
        return open_container(open_path(source), name, request, owned=True)
    if isinstance(source, bytes):
        return open_container(io.BytesIO(source), name, request, owned=True)
    if callable(getattr(source, "read", None)):
        return open_container(source, name, request, owned=False)
    raise AudioError(
        f"expected a path, a binary file, bytes, an array or a tensor as audio, got {type(source).__name__}"
    )


def source_name(source: AudioSource) -> str:
    source = plain_source(source)
    if isinstance(source, str | os.PathLike):
        return "standard input" if os.fspath(source) == "-" else _shown(os.fspath(source))
    if isinstance(source, bytes):
        return f"{len(source)} bytes of audio"
    if isinstance(source, np.ndarray):
        return f"array {source.dtype} {source.shape}"
    name = getattr(source, "name", None)
    return _shown(name) if isinstance(name, str) else "audio stream"


def _shown(path: str) -> str:
    return path if path.isprintable() else repr(path)


def open_container(file: BinaryIO, name: str, request: SourceRequest, *, owned: bool) -> ContainerDecoder:
    """Open a container, near the start of the request if seeking can reach it.

    owned: the file is closed with the decoder.
    """
    try:
        begin = file.tell() if is_seekable(file) else None
        raw = request.raw or (None if begin is None else _format_of_ending(file, name, begin))
        decoder = _decoder(file, name, request, raw)
        if begin is not None and not decoder.seek(request.start_sample):  # the position is uncertain
            decoder.close()
            file.seek(begin)
            decoder = _decoder(file, name, request, raw)
    except BaseException:
        if owned:
            file.close()
        raise
    decoder.owned_file = file if owned else None
    return decoder


def _decoder(file: BinaryIO, name: str, request: SourceRequest, raw: RawFormat | None) -> ContainerDecoder:
    return ContainerDecoder(
        CheckedFile(file, name),
        name,
        keep_channels=request.keep_channels,
        audio_track=request.audio_track,
        raw=raw,
        warned=request.warned,
        most_gap_s=request.most_gap_s,
    )


def _format_of_ending(file: BinaryIO, name: str, begin: int) -> RawFormat | None:
    found = format_of_ending(name)
    if found is not None:
        try:
            head = file.read(HEAD_BYTES)
            file.seek(begin)
        except (OSError, ValueError) as error:
            raise AudioError(f"{name}: expected a readable file, got {_refusal(error)}") from error
        if is_container(head):
            return None
    return found


class CheckedFile:
    """Makes a file object safe for libav, which copies whatever `read` returns into a buffer of fixed size.

    Positions count from the file's initial position.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._surplus = b""
        self._is_seekable = is_seekable(file)
        self._begin = file.tell() if self._is_seekable else 0
        self.n_read = 0

    def seekable(self) -> bool:
        return self._is_seekable

    def readable(self) -> bool:
        return True

    def read(self, n_bytes: int) -> bytes:
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
        return self._file.seek(offset + self._begin if whence == 0 else offset, whence) - self._begin

    def tell(self) -> int:
        return self._file.tell() - self._begin


def is_seekable(file: BinaryIO) -> bool:
    try:
        return file.seekable()
    except (AttributeError, OSError, ValueError):
        return False


class ArraySource:
    def __init__(
        self, array: npt.NDArray[np.generic], name: str, request: SourceRequest, *, sample_rate: int
    ) -> None:
        self._samples = channels = as_channels(array, name)
        # Whole seconds: there the grid of 16 kHz meets that of every other rate.
        whole_s = channels.shape[1] // sample_rate if sample_rate > 0 else 0
        self._first_s = min(max(0, request.start_sample // SAMPLE_RATE - 1), whole_s)
        self.first_sample = self._first_s * SAMPLE_RATE
        duration_s = channels.shape[1] / sample_rate if sample_rate > 0 else None
        self.info = AudioInfo(name, array.dtype.name, sample_rate, channels.shape[0], duration_s)
        self._resampler: FloatResampler | FloatMixer
        if request.keep_channels:
            self._resampler = FloatResampler(sample_rate, len(channels), name)
        else:
            self._resampler = FloatMixer(
                sample_rate,
                len(channels),
                name,
                first_sample=self.first_sample,
                warned=request.warned,
            )

    def blocks(self) -> Iterator[Samples]:
        step, first = 10 * self.info.sample_rate, self._first_s * self.info.sample_rate
        for start in range(first, self._samples.shape[1], step):
            yield self._resampler.push(self._samples[:, start : start + step])
        yield self._resampler.flush()

    def warnings(self) -> list[str]:
        return []

    def silences(self) -> list[tuple[float, float]]:
        return []

    def close(self) -> None:
        pass


def open_path(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file that exists, is readable and not empty.

    Raises: AudioError otherwise.
    """
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
