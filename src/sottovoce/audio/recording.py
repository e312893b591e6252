"""A recording that can be read several times, whatever its source.

Finding the maximum of a whole file, its speech, and its windows takes more than one reading. Files and
arrays are simply read again; what comes through a pipe is kept, in memory while it is small and then in a
temporary file, still compressed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from copy import copy
from types import TracebackType
from typing import BinaryIO, cast

import numpy as np

from sottovoce.audio.io import AudioReader, Span, open_audio, open_channels
from sottovoce.audio.sources import (
    AudioSource,
    PlainSource,
    is_seekable,
    open_path,
    plain_source,
    source_name,
)
from sottovoce.errors import AudioError, cause_of
from sottovoce.types import SAMPLE_RATE, Samples

_SPOOL_BYTES = 16 * 2**20


class Recording:
    """A source to be opened as often as needed, one reading at a time.

    sample_rate, channel, audio_filter, audio_track and input_format: see `open_audio`. reread: whether
    more than one reading will be asked for; with False a pipe is passed on as it comes, and a second `open`
    of it raises.
    name: for people, where the source has none. A context manager.

    Raises: AudioError when a pipe cannot be read.
    """

    def __init__(
        self,
        source: AudioSource,
        *,
        sample_rate: int = SAMPLE_RATE,
        channel: int | None = None,
        reread: bool = True,
        name: str | None = None,
        audio_filter: str | None = None,
        audio_track: int | str | None = None,
        input_format: str | None = None,
    ) -> None:
        source = plain_source(source)
        self.name = name or source_name(source)
        self.declared_s: float | None = None
        """Seconds of the whole recording as it declares, once it was opened; None where it does not."""
        self._audio_track = audio_track
        self._input_format = input_format
        self._warned: set[str] = set()
        self._start_s: float | None = None
        self._duration_s: float | None = None
        self._sample_rate = sample_rate
        self._channel = channel
        self._audio_filter = audio_filter
        self._silent: Sequence[Span] = ()
        self._reader: AudioReader | None = None
        self._spool: BinaryIO | None = None
        self._n_readings = 0
        if reread and _is_pipe(source):
            source = self._spool = _spooled(source, self.name)
        self._source = source
        self._is_pipe = not reread and _is_pipe(source)
        # A file object is read again from where it stood, not from its beginning.
        self._position = (
            None if isinstance(source, str | os.PathLike | bytes | np.ndarray) else _position(source)
        )

    def open(self) -> AudioReader:
        """Begin a reading from the start, or that of the part.

        Raises: AudioError as in `open_audio`, and for a second reading of a pipe.
        """
        self._begin_reading()
        reader = open_audio(
            self._source,
            sample_rate=self._sample_rate,
            channel=self._channel,
            audio_filter=self._audio_filter,
            audio_track=self._audio_track,
            input_format=self._input_format,
            start_s=self._start_s,
            duration_s=self._duration_s,
            warned=self._warned,
        )
        self._reader = reader
        reader.silent = self._silent
        self.declared_s = reader.recording_s
        return reader

    def silences(self) -> list[tuple[float, float]]:
        """Return the silences of the last reading, as far as it came: see `AudioReader.silences`."""
        return [] if self._reader is None else self._reader.silences()

    def part(self, start_s: float, duration_s: float | None = None) -> Recording:
        """Return the part from start_s of this one on, of at most duration_s: read as if it were all there
        is.

        To be closed before this recording, and not read beside it.
        """
        part = copy(self)
        part._spool = None
        part._start_s, part._duration_s = (self._start_s or 0.0) + start_s, duration_s
        n_before = round(start_s * SAMPLE_RATE)
        part._silent = [(max(0, first - n_before), last - n_before) for first, last in self._silent]
        return part

    def to_read_beside(self) -> Recording:
        """Return the same recording, which can be read while this one is; to be closed before it."""
        beside = copy(self)
        beside._spool = None
        beside._source = self._shared_source()
        return beside

    def _shared_source(self) -> PlainSource:
        """What one more reader can read: of a file, with a place of reading of its own."""
        if self._position is None:
            return self._source
        return cast(BinaryIO, FileView(cast(BinaryIO, self._source), self._position))

    def open_channels(self) -> AudioReader:
        """Begin a reading of all channels apart, for `AudioReader.channels`.

        Raises: AudioError, as `open`.
        """
        self._begin_reading()
        reader = open_channels(
            self._source,
            sample_rate=self._sample_rate,
            audio_track=self._audio_track,
            input_format=self._input_format,
            start_s=self._start_s,
            duration_s=self._duration_s,
            warned=self._warned,
        )
        self.declared_s = reader.recording_s
        return reader

    def channels(self, silent: Sequence[Sequence[Span]] | None = None) -> list[Recording]:
        """Return a recording of each channel, which can be read side by side; to be closed before this one.

        silent: of each channel, spans [start, end) in samples that are read as silence.
        Raises: AudioError.
        """
        with self.open_channels() as reader:
            n_channels = reader.info.n_channels
        found = [
            Recording(
                self._shared_source(),
                sample_rate=self._sample_rate,
                channel=channel,
                name=self.name,
                audio_filter=self._audio_filter,
                audio_track=self._audio_track,
                input_format=self._input_format,
            ).part(self._start_s or 0.0, self._duration_s)
            for channel in range(n_channels)
        ]
        for one, spans in zip(found, silent or [()] * n_channels, strict=True):
            one._silent, one._warned = spans, self._warned
        return found

    def _begin_reading(self) -> None:
        if self._is_pipe and self._n_readings:
            raise AudioError(f"{self.name}: expected one reading of a pipe, got a second (use reread=True)")
        if self._position is not None:
            cast(BinaryIO, self._source).seek(self._position)
        self._n_readings += 1

    def beginning(self, seconds: float) -> Samples:
        """Read the first samples (n,) float32, at most so many seconds.

        Raises: AudioError as `open`.
        """
        n_left, pieces = int(seconds * SAMPLE_RATE), [np.zeros(0, np.float32)]
        with self.open() as reader:
            for chunk in reader:
                pieces.append(chunk.samples[:n_left])
                n_left -= len(pieces[-1])
                if not n_left:
                    break
        return np.concatenate(pieces)

    def close(self) -> None:
        """Remove the copy of a pipe."""
        if self._spool is not None:
            self._spool.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class FileView:
    """A file that others read too, none of them while this reads, from a place of its own on."""

    def __init__(self, file: BinaryIO, position: int) -> None:
        self._file = file
        self._position = position

    def read(self, n_bytes: int = -1) -> bytes:
        before = self._file.tell()
        try:
            self._file.seek(self._position)
            found = self._file.read(n_bytes)
            self._position += len(found)
        finally:
            self._file.seek(before)
        return found

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            before = self._file.tell()
            offset += self._file.seek(0, os.SEEK_END)
            self._file.seek(before)
        elif whence == os.SEEK_CUR:
            offset += self._position
        self._position = offset
        return offset

    def tell(self) -> int:
        return self._position

    def seekable(self) -> bool:
        return True


def _is_pipe(source: PlainSource) -> bool:
    """Tell whether reading a source uses it up."""
    if isinstance(source, bytes | np.ndarray):
        return False
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        return path == "-" or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path))
    return not is_seekable(source)


def _position(file: BinaryIO) -> int | None:
    return file.tell() if is_seekable(file) else None


def _spooled(source: PlainSource, name: str) -> BinaryIO:
    copy = cast(BinaryIO, tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES))  # noqa: SIM115 - kept open
    try:
        if isinstance(source, str | os.PathLike) and os.fspath(source) != "-":
            with open_path(source) as file:
                shutil.copyfileobj(file, copy)
        else:
            shutil.copyfileobj(sys.stdin.buffer if isinstance(source, str) else cast(BinaryIO, source), copy)
    except (OSError, TypeError) as error:
        copy.close()
        raise AudioError(f"{name}: expected a readable pipe, got '{cause_of(error)}'") from error
    copy.seek(0)
    return copy
