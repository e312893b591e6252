"""A recording that can be read several times; a pipe is copied, still compressed, to a temporary file."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np

from sottovoce.audio.container import is_seekable
from sottovoce.audio.io import AudioReader, AudioSource, PlainSource, Source, Span, open_audio, open_path
from sottovoce.errors import AudioError, cause_of
from sottovoce.types import SAMPLE_RATE, Samples

if TYPE_CHECKING:
    from sottovoce.options.transcribe import TranscribeOptions

_SPOOL_BYTES = 16 * 2**20


class Recording:
    """A source that can be opened repeatedly, one reading at a time. A context manager.

    Arguments: `Source.of`. Errors: `open_audio`.
    """

    def __init__(
        self, source: AudioSource, options: TranscribeOptions | None = None, *, sample_rate: int = SAMPLE_RATE
    ) -> None:
        self._source = Source.of(source, options, sample_rate=sample_rate)
        self.name = self._source.name
        self.declared_s: float | None = None
        """Declared duration of the whole recording, once opened, or None."""
        self._warned: set[str] = set()
        self._start_s: float | None = None
        self._duration_s: float | None = None
        self._channel: int | None = None
        self._silent: Sequence[Span] = ()
        self._reader: AudioReader | None = None
        self._spool: BinaryIO | None = None
        place = self._source.plain()
        if is_pipe(place):
            place = self._spool = _spooled(place, self.name)
        self._source = replace(self._source, place=place, label=self.name)
        # A file object is reread from its initial position.
        self._position: int | None = None
        if not isinstance(place, str | os.PathLike | bytes | np.ndarray) and is_seekable(place):
            self._position = place.tell()

    def open(self) -> AudioReader:
        """Start a reading. Raises: AudioError as `open_audio`."""
        self._reader = reader = self._opened(channel=self._channel)
        reader.silent = self._silent
        return reader

    def open_channels(self) -> AudioReader:
        return self._opened(keep_channels=True)

    def _opened(self, *, channel: int | None = None, keep_channels: bool = False) -> AudioReader:
        if self._position is not None:
            cast(BinaryIO, self._source.place).seek(self._position)
        reader = open_audio(
            self._source,
            channel=channel,
            keep_channels=keep_channels,
            start_s=self._start_s,
            duration_s=self._duration_s,
            warned=self._warned,
        )
        self.declared_s = reader.recording_s
        return reader

    def silences(self) -> list[tuple[float, float]]:
        return [] if self._reader is None else self._reader.silences()

    def part(self, start_s: float, duration_s: float | None = None) -> Recording:
        """Return the part from start_s of at most duration_s. Read one of the two at a time."""
        part = copy(self)
        part._spool = None
        part._start_s, part._duration_s = (self._start_s or 0.0) + start_s, duration_s
        n_before = round(start_s * SAMPLE_RATE)
        part._silent = [(max(0, first - n_before), last - n_before) for first, last in self._silent]
        return part

    def to_read_beside(self) -> Recording:
        """Return the same recording for a concurrent reader; close it before this one."""
        other = copy(self)
        other._spool = None
        return other

    def channels(self, silent: Sequence[Sequence[Span]] | None = None) -> list[Recording]:
        """Return a recording of each channel, for concurrent reading; close them before this one.

        silent: for each channel, spans [start, end) in samples that become silence.
        """
        with self.open_channels() as reader:
            n_channels = reader.info.n_channels
        recordings = [self.to_read_beside() for _ in range(n_channels)]
        for channel, (recording, spans) in enumerate(
            zip(recordings, silent or [()] * n_channels, strict=True)
        ):
            recording._channel, recording._silent, recording._reader = channel, spans, None
        return recordings

    def beginning(self, seconds: float) -> Samples:
        """Read the first samples (n,) float32. Raises: AudioError as `open`."""
        n_left, pieces = int(seconds * SAMPLE_RATE), [np.zeros(0, np.float32)]
        with self.open() as reader:
            for chunk in reader:
                pieces.append(chunk.samples[:n_left])
                n_left -= len(pieces[-1])
                if not n_left:
                    break
        return np.concatenate(pieces)

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_pipe(source: PlainSource) -> bool:
    """Return whether a source can be read only once: standard input, a pipe or a device."""
    if isinstance(source, bytes | np.ndarray):
        return False
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        return path == "-" or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path))
    return not is_seekable(source)


def _spooled(source: PlainSource, name: str) -> BinaryIO:
    if isinstance(source, str | os.PathLike) and stat.S_ISCHR(os.stat(source).st_mode):
        raise AudioError(f"{name}: expected a file or a pipe, got a device, which may have no end")
    spool = cast(BinaryIO, tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES))  # noqa: SIM115 - kept open
    try:
        if isinstance(source, str | os.PathLike):
            with open_path(source) as file:
                shutil.copyfileobj(file, spool)
        else:
            shutil.copyfileobj(cast(BinaryIO, source), spool)
    except (OSError, TypeError) as error:
        spool.close()
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            folder = f"temporary folder {tempfile.gettempdir()} is full (TMPDIR names another)"
            raise AudioError(f"{name}: cannot be copied: {folder}") from error
        raise AudioError(f"{name}: expected a readable pipe, got '{cause_of(error)}'") from error
    spool.seek(0)
    return spool
