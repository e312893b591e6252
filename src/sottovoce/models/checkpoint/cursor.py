"""Reading a binary file that may be damaged: never past its end, with errors that name the part."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sottovoce.errors import CheckpointError, cause_of


@dataclass(slots=True)
class Cursor:
    """A position in a memory-mapped file. source: name of the file in errors; part: name of what is read.

    Every method that reads raises CheckpointError where the file ends too soon.
    """

    content: mmap.mmap
    source: str
    at: int = 0

    @property
    def n_left(self) -> int:
        return len(self.content) - self.at

    def take(self, n_bytes: int, part: str) -> bytes:
        """Read the next bytes."""
        self.skip(n_bytes, part)
        return self.content[self.at - n_bytes : self.at]

    def text(self, n_bytes: int, part: str) -> str:
        """Read the next bytes as printable UTF-8. Raises: CheckpointError if they are not."""
        stored = self.take(n_bytes, part)
        name = stored.decode("utf-8", errors="replace")
        if not name.isprintable():
            raise CheckpointError(f"{self.source}: {part} is {stored[:40]!r}, expected printable text")
        return name

    def array(self, n_bytes: int, part: str) -> npt.NDArray[np.uint8]:
        """Read the next bytes as a writable array (n_bytes,) uint8."""
        self.skip(n_bytes, part)
        return np.frombuffer(self.content, np.uint8, n_bytes, self.at - n_bytes).copy()

    def skip(self, n_bytes: int, part: str) -> None:
        """Go on without reading. Raises: CheckpointError beyond the end."""
        if n_bytes > self.n_left:
            raise CheckpointError(
                f"{self.source}: ends inside {part}, expected {n_bytes} more bytes, found {self.n_left}"
            )
        self.at += n_bytes

    def integers(self, count: int, part: str, kind: str = "i") -> tuple[int, ...]:
        """Read little-endian integers. kind: a letter of `struct`, such as "i" or "H"."""
        layout = f"<{count}{kind}"
        return struct.unpack(layout, self.take(struct.calcsize(layout), part))

    def integer(self, part: str, kind: str = "i") -> int:
        return self.integers(1, part, kind)[0]

    def size(self, part: str, largest: int) -> int:
        """Read a count. Raises: CheckpointError unless it is in 0..largest."""
        value = self.integer(part)
        if not 0 <= value <= largest:
            raise CheckpointError(f"{self.source}: {part} is {value}, expected 0 to {largest}")
        return value


@contextmanager
def cursor_over(path: Path, source: str) -> Iterator[Cursor]:
    """Open a file and yield a cursor at its beginning; the file is mapped, not read.

    Raises: CheckpointError, also for errors of the system.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield Cursor(content, source)
    except CheckpointError:
        raise
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{source}: cannot be read ({cause_of(error)})") from error
