"""Chained Ogg: files one behind another in one, each with headers, a rate and channels of its own, as
Internet radio sends them.

libav refuses a change of channels or rate within one container, and in some versions loses the first page of
a later link. So the reading of a file ends where its next link begins, and the caller opens that one as a
container of its own.
"""

from __future__ import annotations

import re
from typing import Protocol

_PAGE = re.compile(rb"OggS\0([\0-\7])", re.DOTALL)
_HEADER_BYTES = 6
_BEGINS_STREAM = 2
"""Flag of the pages that begin a stream; all of a link come before its other pages."""
_SCANNED_BYTES = 2**20


class ByteFile(Protocol):
    """A file for libav; `read` returns at most n_bytes, and nothing only at the end."""

    @property
    def is_seekable(self) -> bool: ...

    @property
    def n_read(self) -> int: ...

    def read(self, n_bytes: int) -> bytes: ...

    def seek(self, offset: int, whence: int = 0) -> int: ...

    def tell(self) -> int: ...

    def seekable(self) -> bool: ...


class OggLinks:
    """A file for libav that ends where the next link of chained Ogg begins; other files are unchanged."""

    def __init__(self, file: ByteFile) -> None:
        self._file = file
        self._place = 0
        self._magic = b""
        self._tail = b""
        """The last bytes that were read, as a page may begin in them."""
        self._rest = b""
        """Bytes that were read, but not given yet."""
        self._is_within = False
        """Whether a page was read that begins no stream: after it, one that does begins a link."""
        self._next_link: int | None = None
        """Place of the next link, where it is known."""
        self._is_first = True

    @property
    def is_seekable(self) -> bool:
        return self._file.is_seekable and self._is_first

    @property
    def n_read(self) -> int:
        return self._file.n_read

    def seekable(self) -> bool:
        return self.is_seekable

    def read(self, n_bytes: int) -> bytes:
        """Read up to n_bytes; empty at the end of the link."""
        if self._next_link is not None and self._place < self._next_link + _HEADER_BYTES:
            n_bytes = min(n_bytes, self._next_link - self._place)
            if n_bytes <= 0:
                return b""
        data = self._rest[:n_bytes] or self._file.read(n_bytes)
        self._rest = self._rest[n_bytes:]
        self._magic += data[: 4 - len(self._magic)]
        if self._magic == b"OggS" and self._next_link is None:
            data = self._within_link(data)
        self._place += len(data)
        return data

    def _within_link(self, data: bytes) -> bytes:
        """Return what belongs to this link."""
        joined = self._tail + data
        for page in _PAGE.finditer(joined):
            begins_stream = page[1][0] & _BEGINS_STREAM
            if begins_stream and self._is_within:
                n_left = page.start() - len(self._tail)
                self._next_link = self._place + n_left
                self._rest = joined[page.start() :] + self._rest
                return data[: max(0, n_left)]
            self._is_within = self._is_within or not begins_stream
        self._tail = joined[1 - _HEADER_BYTES :]
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._tail, self._rest, self._is_within = b"", b"", False
        self._place = self._file.seek(offset, whence)
        return self._place

    def tell(self) -> int:
        return self._place

    def is_chained(self) -> bool:
        """Tell whether another link follows the first one, of a file that can be sought in.

        It reads up to there, without decoding.
        """
        place = self._place
        self.seek(0)
        while self._magic == b"OggS" and self.read(_SCANNED_BYTES):
            pass
        self.seek(place)
        return self._next_link is not None

    def next(self) -> bool:
        """Go on to the next link, as a file that cannot be sought in; False where there is none."""
        if self._magic != b"OggS":
            return False
        while self.read(_SCANNED_BYTES):
            pass
        if self._next_link is None:
            return False
        if self.is_seekable:
            self.seek(self._next_link)
        self._next_link, self._is_within, self._is_first, self._tail = None, False, False, b""
        return True
