"""Recordings that are answered later: kept in a folder, and transcribed in turn of those who sent them.

A recording of a job is work of the model like any other recording: behind what is live. Few are under way
at a time, beside those that somebody waits for. What waits for the disk runs in threads.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import re
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TypeAlias, get_args

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from starlette.datastructures import UploadFile

from sottovoce.errors import OptionError, cause_of
from sottovoce.formats.document import Json, json_text
from sottovoce.serving.access.api_keys import KeyRing
from sottovoce.serving.jobs.webhooks import WAITS_S, WebhookSender
from sottovoce.serving.parsing.faults import OUT_OF_MEMORY, ApiError, busy, fault_of, logged_fault
from sottovoce.serving.parsing.fields import Fields
from sottovoce.serving.recordings.decode_pool import DecodePool
from sottovoce.serving.recordings.openai_documents import TEXT_TYPES, json_answer, text_answer
from sottovoce.serving.recordings.requests import FileRequest, transcription_request
from sottovoce.serving.recordings.uploaded_file import UploadedFile
from sottovoce.serving.scheduling.model_registry import ModelRegistry
from sottovoce.serving.settings import JobSettings
from sottovoce.serving.telemetry import Metrics, Tracing
from sottovoce.types import Transcript

JobState: TypeAlias = Literal["queued", "running", "succeeded", "failed"]
JOB_STATES: tuple[JobState, ...] = get_args(JobState)
WebhookState: TypeAlias = Literal["pending", "delivered", "failed"]
ID = re.compile(r"job_[0-9a-f]{32}")


@dataclass(slots=True)
class TranscriptionJob:
    """A job. Times are seconds since 1970.

    owner: name of the key that made it, "" without one. model: as it was asked for. duration_s: of the audio.
    n_bytes: on disk. n_tries: how often it was begun. error: see OpenAI's error objects. progress: the part
    of the recording that is done.
    """

    id: str
    owner: str
    created_s: float
    filename: str
    duration_s: float
    response_format: str
    n_bytes: int
    model: str | None = None
    state: JobState = "queued"
    n_tries: int = 0
    started_s: float | None = None
    finished_s: float | None = None
    error: dict[str, Json] | None = None
    webhook_url: str | None = None
    webhook_state: WebhookState = "pending"
    n_webhook_tries: int = 0
    progress: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether nothing more becomes of it."""
        return self.finished_s is not None

    def begin(self) -> None:
        """Note that it is begun."""
        self.state, self.started_s, self.progress = "running", time.time(), 0.0
        self.n_tries += 1

    def end(self, error: dict[str, Json] | None) -> None:
        """Note that it is over. error: None: it went well."""
        self.state = "succeeded" if error is None else "failed"
        self.error, self.finished_s = error, time.time()
        self.progress = 1.0 if error is None else self.progress

    @property
    def record(self) -> dict[str, Any]:
        """What is kept on disk; one that is under way is to be read again at the next start."""
        return {**asdict(self), "state": "queued" if self.state == "running" else self.state}

    @property
    def document(self) -> dict[str, Json]:
        """What its client is told, without the result."""
        webhook: dict[str, Json] | None = None
        if self.webhook_url is not None:
            webhook = {"url": self.webhook_url, "status": self.webhook_state, "tries": self.n_webhook_tries}
        return {
            "id": self.id,
            "object": "transcription.job",
            "status": self.state,
            "created_at": int(self.created_s),
            "started_at": None if self.started_s is None else int(self.started_s),
            "finished_at": None if self.finished_s is None else int(self.finished_s),
            "model": self.model,
            "filename": self.filename,
            "duration": round(self.duration_s, 3),
            "response_format": self.response_format,
            "progress": round(self.progress, 3),
            "error": None if self.error is None else dict(self.error),
            "webhook": webhook,
        }


def new_id() -> str:
    """Make the id of a job, which nobody can guess."""
    return f"job_{secrets.token_hex(16)}"


def job_of(record: Mapping[str, Any]) -> TranscriptionJob:
    """Return the job of a record. Raises: TypeError for what is none."""
    names = {field.name for field in fields(TranscriptionJob)}
    return TranscriptionJob(**{name: value for name, value in record.items() if name in names})


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


LOOK_EVERY_S = 1.0
"""How often is looked whether the time of a job is over."""
MOST_TRIES = 3
"""That a job may end the process in before it is given up."""
RETRY_S = 60.0
NO_SPACE = "no_space"
MAX_WAIT_S = 30.0
"""For a model that has no room, until a job asks again."""


class JobRunner:
    """The jobs of a server. n_at_once: under way at a time.

    Raises: OptionError as `JobStore`.
    """

    def __init__(
        self,
        settings: JobSettings,
        registry: ModelRegistry,
        decoding: DecodePool,
        metrics: Metrics,
        keys: KeyRing,
        *,
        n_at_once: int,
        tracing: Tracing,
    ) -> None:
        self.webhooks = WebhookSender(self._secret_for, settings.webhook_networks)
        self._keys = keys
        self._settings = settings
        self._registry = registry
        self._decoding = decoding
        self._metrics = metrics
        self._n_at_once = n_at_once
        self._tracing = tracing
        self._store = JobStore(settings.folder)
        self._jobs = {job.id: job for job in self._store.load()}
        self._scopes: dict[str, anyio.CancelScope] = {}
        """Of jobs that are under way, or whose addresses are being told."""
        self._reserved: Counter[str] = Counter()
        """Jobs that are being taken, by their owners."""
        self._reserved_bytes = 0
        self._changed = asyncio.Event()

    def count(self, *states: str) -> int:
        """Return how many jobs are in one of these states."""
        return sum(job.state in states for job in self._jobs.values())

    @property
    def n_bytes(self) -> int:
        """Bytes of all jobs, and of those that are being taken."""
        return self._reserved_bytes + sum(job.n_bytes for job in self._jobs.values())

    def jobs_of(self, owner: str) -> list[TranscriptionJob]:
        """Return the jobs of an owner, newest first."""
        found = [job for job in self._jobs.values() if job.owner == owner]
        return sorted(found, key=lambda job: job.created_s, reverse=True)

    def find(self, owner: str, name: str) -> TranscriptionJob:
        """Return a job of an owner. Raises: ApiError 404, also for one of somebody else."""
        job = self._jobs.get(name)
        if job is None or job.owner != owner:
            raise ApiError("job: expected the id of one that is here", status=404, code="job_not_found")
        return job

    @contextmanager
    def place(self, owner: str) -> Iterator[None]:
        """Take a place for a job while it comes. Raises: ApiError 429 where there is none."""
        self.check_place(owner)
        self._reserved[owner] += 1
        try:
            yield
        finally:
            self._reserved[owner] -= 1

    def check_place(self, owner: str) -> None:
        """Check that there is a place for another job. Raises: ApiError 429."""
        settings = self._settings
        n_jobs = len(self._jobs) + self._reserved.total()
        own = len(self.jobs_of(owner)) + self._reserved[owner]
        if n_jobs >= settings.most or (owner and own >= max(1, settings.most // 2)):
            raise busy(f"{own} jobs are here: take their results and delete them, or try later", RETRY_S)

    def check_bytes(self, n_bytes: int) -> None:
        """Check that there is room for so much. Raises: ApiError 429."""
        settings = self._settings
        if self.n_bytes + n_bytes > settings.most_bytes:
            raise busy(f"{settings.most_mb:g} MB of jobs are here: try again later", RETRY_S)

    async def add(
        self, job: TranscriptionJob, fields: Sequence[tuple[str, str]], recording: BinaryIO
    ) -> None:
        """Take a job that has its place, and its recording.

        Raises: ApiError 429 without room, 503 where it cannot be kept.
        """
        self.check_bytes(job.n_bytes)
        self._reserved_bytes += job.n_bytes
        try:
            with disk_errors(), anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._store.add, job, fields, recording)
        finally:
            self._reserved_bytes -= job.n_bytes
        self._jobs[job.id] = job
        self._note_change()

    async def result(self, job: TranscriptionJob) -> bytes:
        """Return the result of a job that went well, as JSON. Raises: ApiError 404 where it just went."""
        try:
            return await anyio.to_thread.run_sync(self._store.result, job)
        except OSError as error:
            raise ApiError("job: its result has gone", status=404, code="job_not_found") from error

    async def delete(self, job: TranscriptionJob) -> None:
        """Stop a job, and remove all of it."""
        self._jobs.pop(job.id, None)
        if (scope := self._scopes.get(job.id)) is not None:
            scope.cancel()  # who was at it removes it
        else:
            await anyio.to_thread.run_sync(self._store.remove, job)

    async def run(self) -> None:
        """Work jobs off, until this is cancelled; what is under way then is begun anew at the next start."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._expire)
            for _ in range(self._n_at_once):
                tasks.start_soon(self._work, tasks)
            for job in self._jobs.values():
                if job.is_over and self._has_webhook_due(job):
                    tasks.start_soon(self._notify, job)

    def close(self) -> None:
        """Let others have the folder; once `run` has ended."""
        self._store.close()

    async def _work(self, tasks: TaskGroup) -> None:
        while True:
            job = await self._next()
            await self._while_here(job, self._do)
            if job.is_over and self._has_webhook_due(job):
                tasks.start_soon(self._notify, job)

    async def _next(self) -> TranscriptionJob:
        """Wait for the oldest job of the owner who has fewest under way."""
        while True:
            under_way = Counter(job.owner for job in self._jobs.values() if job.state == "running")
            waiting = [job for job in self._jobs.values() if job.state == "queued"]
            if waiting:
                job = min(waiting, key=lambda job: (under_way[job.owner], job.created_s))
                job.begin()
                return job
            self._changed.clear()
            await self._changed.wait()

    def _secret_for(self, owner: str) -> bytes | None:
        """Return what signs the webhooks of a key: its own secret, or that of the server."""
        key = self._keys.by_name(owner)
        own = None if key is None else key.webhook_secret
        return own or self._settings.webhook_secret

    def _note_change(self) -> None:
        self._changed.set()

    async def _while_here(
        self, job: TranscriptionJob, work: Callable[[TranscriptionJob], Awaitable[None]]
    ) -> None:
        """Work on a job until that is done or the job is deleted, and then remove what is left of it."""
        if job.id not in self._jobs:
            return
        try:
            with anyio.CancelScope() as scope:
                self._scopes[job.id] = scope
                await work(job)
        except Exception as error:  # of one job: the others go on
            job.end(logged_fault(error, job.id, "what is done with a job failed").details)
        finally:
            self._scopes.pop(job.id, None)
        if job.id not in self._jobs:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._store.remove, job)

    async def _do(self, job: TranscriptionJob) -> None:
        """Transcribe a job; where the server ends before it, the next start does it again."""
        began_s = time.monotonic()
        result: bytes | None = None
        error: dict[str, Json] | None = None
        try:
            if job.n_tries > MOST_TRIES:
                text = f"the server ended {MOST_TRIES} times while it read this recording"
                raise ApiError(text, status=500, kind="server_error", code="gave_up")
            await self._save(job)
            with self._tracing.span("job", sottovoce__job=job.id):
                result = await self._transcribe_when_possible(job)
        except anyio.get_cancelled_exc_class():
            if job.id in self._jobs:
                job.n_tries -= 1
                with anyio.CancelScope(shield=True):
                    await self._save(job)
            raise
        except Exception as problem:
            error = logged_fault(problem, job.id, "job failed").details
        with anyio.CancelScope(shield=True):
            await self._finish(job, result, error)
        seconds = round(time.monotonic() - began_s, 3)
        logger.info(
            "job over", extra={"job": job.id, "status": job.state, "seconds": seconds, "key": job.owner}
        )

    async def _transcribe_when_possible(self, job: TranscriptionJob) -> bytes:
        """Transcribe a job, again and again where what is in the way of it goes. Raises: as `_transcribe`."""
        while True:
            try:
                return await self._transcribe(job)
            except Exception as problem:
                fault = fault_of(problem)
                if fault.retry_s is None or fault.code == OUT_OF_MEMORY:
                    raise
            await anyio.sleep(min(fault.retry_s, MAX_WAIT_S))

    async def _transcribe(self, job: TranscriptionJob) -> bytes:
        """Return the result of a job, as JSON. Raises: ApiError, OSError, the errors of the library."""
        pairs = await anyio.to_thread.run_sync(self._store.fields, job)
        request = await self._decoding.call(lambda: transcription_request(Fields(pairs)))
        name = self._registry.resolve(request.model)
        file = await anyio.to_thread.run_sync(self._store.recording, job)
        with file:
            recording = UploadedFile(UploadFile(file, filename=job.filename))
            wanted = request.transcription
            async with self._registry.transcribing(name, recording.source, wanted) as handle:
                async for segment in handle:
                    job.progress = min(1.0, segment.end / max(job.duration_s, 1e-3))
                transcript = await handle.collect()
        self._metrics.file_seconds.inc(transcript.duration)
        return await anyio.to_thread.run_sync(rendered, transcript, request)

    async def _finish(
        self, job: TranscriptionJob, result: bytes | None, error: dict[str, Json] | None
    ) -> None:
        """End a job, whose result is there before it says so."""
        try:
            if result is not None:
                await anyio.to_thread.run_sync(self._store.keep_result, job, result)
            job.end(error)
            await anyio.to_thread.run_sync(self._store.finish, job, len(result or b""))
        except OSError:
            logger.exception("the result of a job cannot be written")
            job.end(ApiError("no place for the result", kind="server_error", code=NO_SPACE).details)
        self._metrics.jobs.labels(job.state).inc()

    async def _save(self, job: TranscriptionJob) -> None:
        try:
            await anyio.to_thread.run_sync(self._store.save, job)
        except OSError:
            logger.exception("what a job has become cannot be written")

    def _has_webhook_due(self, job: TranscriptionJob) -> bool:
        return job.id in self._jobs and job.webhook_url is not None and job.webhook_state == "pending"

    async def _notify(self, job: TranscriptionJob) -> None:
        """Tell the address of a job what became of it, until it takes that or there were tries enough."""
        await self._while_here(job, self._notify_until_taken)

    async def _notify_until_taken(self, job: TranscriptionJob) -> None:
        while job.webhook_state == "pending":
            await self.webhooks.wait(job.n_webhook_tries)
            job.n_webhook_tries += 1
            try:
                if await self.webhooks.tell(job.webhook_url or "", job.owner, event_of(job)):
                    job.webhook_state = "delivered"
            except ApiError:
                job.webhook_state = "failed"
            except Exception:
                logger.exception("webhook failed", extra={"job": job.id})
            if job.webhook_state == "pending" and job.n_webhook_tries >= len(WAITS_S):
                job.webhook_state = "failed"
            with anyio.CancelScope(shield=True):
                await self._save(job)
        self._metrics.webhooks.labels(job.webhook_state).inc()

    async def _expire(self) -> None:
        while True:
            oldest_s = time.time() - self._settings.keep_s
            for job in [job for job in self._jobs.values() if (job.finished_s or oldest_s) < oldest_s]:
                await self.delete(job)
            await anyio.sleep(LOOK_EVERY_S)


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raises: ApiError 503 where what is done inside finds no place on the disk."""
    try:
        yield
    except OSError as error:
        logger.exception("a job cannot be written")
        message = "the server has no place to keep the job"
        raise ApiError(message, status=503, kind="server_error", code=NO_SPACE, retry_s=RETRY_S) from error


def event_id(job: TranscriptionJob) -> str:
    """Name what is told of a job: the same at every try."""
    return f"evt_{job.id.removeprefix('job_')}"


def event_of(job: TranscriptionJob) -> dict[str, Json]:
    """Render what is told of a job that is over: without its result, which is to be fetched."""
    return {
        "id": event_id(job),
        "object": "event",
        "type": f"transcription.job.{job.state}",
        "created_at": int(job.finished_s or 0),
        "data": {name: value for name, value in job.document.items() if name != "webhook"},
    }


def rendered(transcript: Transcript, request: FileRequest) -> bytes:
    """Render a result as JSON: a document, or text as a string of it."""
    if request.response_format in TEXT_TYPES:
        return json_text(text_answer(transcript, request)).encode()
    return json_text(json_answer(transcript, request)).encode()


def with_result(job: TranscriptionJob, result: bytes) -> Iterator[bytes]:
    """Yield the document of a job with its result, which is JSON already."""
    yield json.dumps(job.document).encode()[:-1]
    yield b', "result": '
    yield result
    yield b"}"
