"""A recording that a client sent, in its file, by the name that it came with."""

from __future__ import annotations

import os
from typing import BinaryIO, cast

from starlette.datastructures import UploadFile

MAX_NAME_LENGTH = 200


class UploadedFile:
    """A recording in its temporary file, as `audio.io` reads it, by the name that it came with.

    sha256: of its bytes, in letters; "" where nobody took it.
    """

    def __init__(self, upload: UploadFile, sha256: str = "") -> None:
        self.sha256 = sha256
        name = (upload.filename or "").replace("\\", "/").rsplit("/", 1)[-1]
        shown = "".join(letter for letter in name if letter.isprintable())[:MAX_NAME_LENGTH]
        self.name = shown or "the upload"
        self._file = upload.file

    def read(self, n_bytes: int = -1) -> bytes:
        return self._file.read(n_bytes)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    @property
    def source(self) -> BinaryIO:
        """As the library's `AudioSource`."""
        return cast(BinaryIO, self)


def size_of(upload: UploadedFile) -> int:
    """Return the bytes of a recording."""
    n_bytes = upload.seek(0, os.SEEK_END)
    upload.seek(0)
    return n_bytes
