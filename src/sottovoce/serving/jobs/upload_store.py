"""Recordings that come in pieces, over any number of connections, until a job takes them.

Each is a file with a JSON record of the same name; the size of the file says how much has arrived. The table
of uploads belongs to the event loop; only the work on the disk runs in threads.
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

import anyio
import anyio.to_thread

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
        for record in self._folder.glob("upload_*.json"):
            self._load(record)
        for path in self._folder.glob("upload_*"):
            if path.name.removesuffix(".json") not in self._uploads:
                path.unlink(missing_ok=True)

    def count(self, owner: str | None = None) -> int:
        """Return the number of uploads, of an owner or of all."""
        return sum(owner is None or upload.owner == owner for upload in self._uploads.values())

    def has_whole(self, owner: str) -> bool:
        """Return whether an owner has an upload that a job could take now."""
        own = (upload for upload in self._uploads.values() if upload.owner == owner)
        return any(upload.offset >= upload.n_bytes and not upload.is_busy for upload in own)

    @property
    def n_bytes(self) -> int:
        """The bytes of all uploads once they are whole."""
        return sum(upload.n_bytes for upload in self._uploads.values())

    async def create(self, owner: str, n_bytes: int, filename: str) -> ResumableUpload:
        """Begin an upload, which counts from this moment. Raises: OSError."""
        upload = ResumableUpload(f"upload_{secrets.token_hex(16)}", owner, n_bytes, filename)
        upload.changed_s = time.time()
        self._uploads[upload.id] = upload
        try:
            with held(upload), anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._write, upload)
        except BaseException:
            await self.remove(upload)
            raise
        return upload

    def find(self, owner: str, name: str) -> ResumableUpload:
        """Return an upload of an owner. Raises: ApiError 404, also for one of somebody else."""
        upload = self._uploads.get(name)
        if upload is None or upload.owner != owner:
            message = "upload: expected the id of one that is here"
            raise ApiError(message, status=404, code="upload_not_found")
        return upload

    async def append(self, upload: ResumableUpload, piece: bytes) -> None:
        """Take the next piece. Raises: OSError, with the upload as it was before."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._append, upload, piece)
            upload.offset += len(piece)
            upload.changed_s = time.time()

    def open(self, upload: ResumableUpload) -> BinaryIO:
        """Open a whole upload. Raises: ApiError 400 for one that is not whole, OSError."""
        if upload.offset < upload.n_bytes:
            message = f"upload_id: expected all {upload.n_bytes} bytes of it, {upload.offset} are here"
            raise ApiError(message, param="upload_id", code="upload_incomplete")
        return open(self.data(upload), "rb")

    async def remove(self, upload: ResumableUpload) -> None:
        """Remove an upload; harmless where it is gone."""
        self._uploads.pop(upload.id, None)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._delete, upload)

    async def remove_older_than(self, at_s: float) -> None:
        """Remove uploads of which nothing has come since a time, in seconds since 1970."""
        for upload in list(self._uploads.values()):
            if upload.changed_s < at_s and not upload.is_busy:
                await self.remove(upload)

    def data(self, upload: ResumableUpload) -> Path:
        """Return the file of an upload."""
        assert ID.fullmatch(upload.id), "names are made here"
        return self._folder / upload.id

    def _write(self, upload: ResumableUpload) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self.data(upload).touch(mode=0o600)
        write_whole(self._record(upload), json.dumps(asdict(upload)))

    def _append(self, upload: ResumableUpload, piece: bytes) -> None:
        with open(self.data(upload), "r+b") as file:
            file.seek(upload.offset)
            file.write(piece)
            file.truncate()

    def _delete(self, upload: ResumableUpload) -> None:
        self.data(upload).unlink(missing_ok=True)
        self._record(upload).unlink(missing_ok=True)

    def _record(self, upload: ResumableUpload) -> Path:
        return self._folder / f"{upload.id}.json"

    def _load(self, record: Path) -> None:
        """Take an upload of an earlier start, if its record and its file are there."""
        try:
            upload = ResumableUpload(**json.loads(record.read_text(encoding="utf-8")))
            found = os.stat(record.with_suffix(""))
        except (OSError, ValueError, TypeError):
            return
        if upload.id == record.stem and ID.fullmatch(upload.id):
            upload.offset, upload.changed_s, upload.is_busy = found.st_size, found.st_mtime, False
            self._uploads[upload.id] = upload


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
