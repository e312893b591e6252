"""Recordings that come in pieces, over any number of connections, until a job takes them.

Each is a file with a record beside it; how much of it is there is the size of the file. Everything but
`UploadStore.find` and the counts waits for the disk: it is called in threads.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from sottovoce.serving.jobs.job_store import write_whole
from sottovoce.serving.parsing.faults import ApiError

ID = re.compile(r"upload_[0-9a-f]{32}")
FOLDER = "uploads"


@dataclass(slots=True)
class ResumableUpload:
    """A recording on its way. owner: name of the key that sends it. n_bytes: in all. offset: that are here.

    is_busy: a piece is being taken, or a job takes it. changed_s: since 1970.
    """

    id: str
    owner: str
    n_bytes: int
    filename: str
    offset: int = 0
    is_busy: bool = False
    changed_s: float = 0.0


class UploadStore:
    """The uploads of one server. folder: of its jobs, which exists."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._uploads: dict[str, ResumableUpload] = {}
        for record in self._folder.glob("*.json"):
            self._load(record)

    def count(self, owner: str | None = None) -> int:
        """Return how many there are, of an owner or of all."""
        return sum(owner is None or upload.owner == owner for upload in self._uploads.values())

    @property
    def n_bytes(self) -> int:
        """Bytes that all of them will have."""
        return sum(upload.n_bytes for upload in self._uploads.values())

    def create(self, owner: str, n_bytes: int, filename: str) -> ResumableUpload:
        """Begin one. Raises: OSError."""
        upload = ResumableUpload(f"upload_{secrets.token_hex(16)}", owner, n_bytes, filename)
        upload.changed_s = time.time()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._data(upload.id).touch(mode=0o600)
        write_whole(self._record(upload.id), json.dumps(asdict(upload)))
        self._uploads[upload.id] = upload
        return upload

    def find(self, owner: str, name: str) -> ResumableUpload:
        """Return an upload of an owner. Raises: ApiError 404, also for one of somebody else."""
        upload = self._uploads.get(name)
        if upload is None or upload.owner != owner:
            message = "upload: expected the id of one that is here"
            raise ApiError(message, status=404, code="upload_not_found")
        return upload

    def append(self, upload: ResumableUpload, piece: bytes) -> None:
        """Take the next piece. Raises: OSError, with what was there before."""
        with open(self._data(upload.id), "r+b") as file:
            file.seek(upload.offset)
            file.write(piece)
            file.truncate()
        upload.offset += len(piece)
        upload.changed_s = time.time()

    def open(self, upload: ResumableUpload) -> BinaryIO:
        """Open one that is whole. Raises: ApiError 400 for one that is not, OSError."""
        if upload.offset < upload.n_bytes:
            message = f"upload_id: expected all {upload.n_bytes} bytes of it, {upload.offset} are here"
            raise ApiError(message, param="upload_id", code="upload_incomplete")
        return open(self._data(upload.id), "rb")

    def remove(self, upload: ResumableUpload) -> None:
        """Remove one; harmless where it is gone."""
        self._uploads.pop(upload.id, None)
        self._data(upload.id).unlink(missing_ok=True)
        self._record(upload.id).unlink(missing_ok=True)

    def remove_older_than(self, at_s: float) -> None:
        """Remove those of which nothing has come since a time, in seconds since 1970."""
        for upload in list(self._uploads.values()):
            if upload.changed_s < at_s and not upload.is_busy:
                self.remove(upload)

    def _load(self, record: Path) -> None:
        """Take one of an earlier start; what is none is removed."""
        data = record.with_suffix("")
        try:
            upload = ResumableUpload(**json.loads(record.read_text(encoding="utf-8")))
            found = os.stat(data)
        except (OSError, ValueError, TypeError):
            record.unlink(missing_ok=True)
            data.unlink(missing_ok=True)
            return
        upload.offset, upload.changed_s, upload.is_busy = found.st_size, found.st_mtime, False
        self._uploads[upload.id] = upload

    def _data(self, name: str) -> Path:
        assert ID.fullmatch(name), "names are made here"
        return self._folder / name

    def _record(self, name: str) -> Path:
        return self._folder / f"{name}.json"


@contextmanager
def held(upload: ResumableUpload) -> Iterator[None]:
    """Keep others from an upload. Raises: ApiError 423 where somebody has it."""
    if upload.is_busy:
        raise ApiError("upload: another request is at it", status=423, code="upload_locked")
    upload.is_busy = True
    try:
        yield
    finally:
        upload.is_busy = False
