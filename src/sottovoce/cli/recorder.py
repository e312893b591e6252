"""What a session heard, kept as a WAV file while it comes."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np

from sottovoce.errors import OptionError
from sottovoce.types import SAMPLE_RATE, Samples


class WaveRecorder:
    """Writes 16-bit mono audio; a context manager. An interrupted recording is a whole file too.

    Raises: OptionError for a path that cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._raw = path.open("wb")
        except OSError as error:
            raise OptionError(f"recording '{path}': cannot be written ({error.strerror})") from error
        self._file = wave.open(self._raw, "wb")  # noqa: SIM115
        self._file.setnchannels(1)
        self._file.setsampwidth(2)
        self._file.setframerate(SAMPLE_RATE)

    def __enter__(self) -> WaveRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._raw.close()

    def through(self, pieces: Iterator[Samples]) -> Iterator[Samples]:
        """The pieces, written as they pass."""
        for piece in pieces:
            self._file.writeframes((np.clip(piece, -1.0, 1.0) * 32767).astype("<i2").tobytes())
            yield piece
