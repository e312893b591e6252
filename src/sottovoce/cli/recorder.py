"""What a session heard, kept as a WAV file while it comes."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from sottovoce.errors import OptionError, cause_of
from sottovoce.types import SAMPLE_RATE, Samples


class WaveRecorder:
    """Writes 16-bit mono audio; a context manager. An interrupted recording is a whole file too.

    What was in the file stays until the first piece comes. On a full disk the pieces go on without it.
    Raises: OptionError for a path that cannot be written; where it could not be later, at the end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: wave.Wave_write | None = None
        self._raw: BinaryIO | None = None
        self._fault: OptionError | None = None
        was_there = path.exists()
        with self._named():
            path.open("ab").close()
            if not was_there:
                path.unlink()

    def __enter__(self) -> WaveRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._fault_deferred(), ExitStack() as stack:
            if self._raw is not None:
                stack.callback(self._raw.close)
            if self._file is not None:
                self._file.close()
        if kind is None and self._fault is not None:
            raise self._fault

    def through(self, pieces: Iterator[Samples]) -> Iterator[Samples]:
        """Pass pieces on, and write them."""
        for piece in pieces:
            if self._fault is None:
                with self._fault_deferred():
                    self._file = self._file or self._begun()
                    self._file.writeframes((np.clip(piece, -1.0, 1.0) * 32767).astype("<i2").tobytes())
            yield piece

    def _begun(self) -> wave.Wave_write:
        self._raw = self._path.open("wb")
        file = wave.open(self._raw, "wb")  # noqa: SIM115
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        return file

    @contextmanager
    def _fault_deferred(self) -> Iterator[None]:
        try:
            with self._named():
                yield
        except OptionError as error:
            self._fault = self._fault or error

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OptionError(f"recording '{self._path}': cannot be written ({cause_of(error)})") from error
