"""Jobs in a folder: a folder for each with its record, its recording and fields until it is over, its result.

Everything here waits for the disk: it is called in threads. What stands in names of files is made here alone.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, BinaryIO

from sottovoce.errors import OptionError, cause_of
from sottovoce.serving.jobs.transcription_job import ID, TranscriptionJob, job_of

logger = logging.getLogger(__name__)

RECORD, RECORDING, FIELDS, RESULT = "job.json", "recording", "fields.json", "result.json"
UNFINISHED = ".part"
"""Ends the name of a folder whose job is not taken yet."""
COPY_BYTES = 1024 * 1024


class JobStore:
    """The folder of one server, which locks out others.

    Raises: OptionError for a folder that cannot be written, or that another server has.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock: IO[str] | None = open(self._folder / ".lock", "a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            message = f"--jobs-dir '{folder}': expected a folder to write to, got '{cause_of(error)}'"
            raise OptionError(message) from error
        if not lock(self._lock):
            self._lock.close()
            raise OptionError(f"--jobs-dir '{folder}': expected a folder of its own, another server has it")

    def load(self) -> list[TranscriptionJob]:
        """Return all jobs, oldest first; what is no whole job is removed."""
        found = []
        for folder in sorted(self._folder.iterdir()):
            name = folder.name
            if ID.fullmatch(name.removesuffix(UNFINISHED)) is None:
                continue
            try:
                job = job_of(json.loads((folder / RECORD).read_text(encoding="utf-8")))
                is_whole = job.id == name and (folder / (RECORDING if not job.is_over else RECORD)).is_file()
            except (OSError, ValueError, TypeError):
                is_whole = False
            if is_whole:
                found.append(job)
            else:
                logger.warning("what is no whole job is removed", extra={"job": name})
                shutil.rmtree(folder, ignore_errors=True)
        return sorted(found, key=lambda job: job.created_s)

    def add(self, job: TranscriptionJob, fields: Sequence[tuple[str, str]], recording: BinaryIO) -> None:
        """Keep a new job with a copy of its recording: it is there whole, or not at all. Raises: OSError."""
        folder = self._folder / (job.id + UNFINISHED)
        folder.mkdir(mode=0o700)
        try:
            recording.seek(0)
            with open(folder / RECORDING, "wb") as copy:
                shutil.copyfileobj(recording, copy, COPY_BYTES)
            (folder / FIELDS).write_text(json.dumps(fields), encoding="utf-8")
            write_whole(folder / RECORD, json.dumps(job.record))
            os.rename(folder, self._folder / job.id)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def save(self, job: TranscriptionJob) -> None:
        """Keep what a job has become. Raises: OSError."""
        write_whole(self._folder / job.id / RECORD, json.dumps(job.record))

    def recording(self, job: TranscriptionJob) -> BinaryIO:
        """Open the recording of a job that is not over. Raises: OSError."""
        return open(self._folder / job.id / RECORDING, "rb")

    def fields(self, job: TranscriptionJob) -> list[tuple[str, str]]:
        """Return the fields of a job that is not over. Raises: OSError."""
        pairs = json.loads((self._folder / job.id / FIELDS).read_text(encoding="utf-8"))
        return [(name, value) for name, value in pairs]

    def keep_result(self, job: TranscriptionJob, result: bytes) -> None:
        """Keep a result, before its job says that it is there. Raises: OSError."""
        (self._folder / job.id / RESULT).write_bytes(result)

    def finish(self, job: TranscriptionJob, n_result_bytes: int) -> None:
        """Note that a job is over; its recording and fields go. Raises: OSError."""
        folder = self._folder / job.id
        job.n_bytes = n_result_bytes
        self.save(job)
        for name in (RECORDING, FIELDS):
            (folder / name).unlink(missing_ok=True)

    def result(self, job: TranscriptionJob) -> bytes:
        """Return the result of a job that went well, as JSON. Raises: OSError."""
        return (self._folder / job.id / RESULT).read_bytes()

    def remove(self, job: TranscriptionJob) -> None:
        """Remove all of a job; harmless where it is gone."""
        shutil.rmtree(self._folder / job.id, ignore_errors=True)

    def close(self) -> None:
        """Let others have the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it has its old or its new text, whatever happens. Raises: OSError."""
    unfinished = path.with_suffix(UNFINISHED)
    with open(unfinished, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def lock(file: IO[str]) -> bool:
    """Lock a file until it is closed; False where another process has it. Where there are no locks, True."""
    if sys.platform == "win32":
        return True
    fcntl = importlib.import_module("fcntl")
    flock: Callable[[int, int], None] = fcntl.flock
    try:
        flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
