"""Recordings that are answered later: kept in a folder, and transcribed in turn of those who sent them.

A recording of a job is work of the model like any other recording: behind what is live. Few are under way at
a time, so that recordings that are answered at once have most of the model. Disk access runs in threads.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import random
import re
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, BinaryIO, Literal, TypeAlias, get_args

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from starlette.datastructures import UploadFile

from sottovoce.errors import OptionError, cause_of
from sottovoce.formats.document import Json, json_text
from sottovoce.serving.access.api_keys import KeyRing
from sottovoce.serving.jobs.webhooks import WebhookSender
from sottovoce.serving.parsing.faults import OUT_OF_MEMORY, ApiError, busy, fault_of, logged_fault
from sottovoce.serving.parsing.forms import Fields
from sottovoce.serving.recordings.decode_pool import DecodePool
from sottovoce.serving.recordings.openai_documents import TEXT_TYPES, json_answer, text_answer
from sottovoce.serving.recordings.requests import FileRequest, UploadedFile, transcription_request
from sottovoce.serving.scheduling.model_registry import ModelRegistry
from sottovoce.serving.settings import JobSettings, network_of
from sottovoce.serving.telemetry import Metrics, Tracing
from sottovoce.types import Transcript

logger = logging.getLogger(__name__)

JobState: TypeAlias = Literal["queued", "running", "succeeded", "failed"]
JOB_STATES: tuple[JobState, ...] = get_args(JobState)
ID = re.compile(r"job_[0-9a-f]{32}")
RECORD, RECORDING, RESULT = "job.json", "recording", "result.json"
UNFINISHED = ".part"
"""Ends the name of a folder whose job is not taken yet."""
COPY_BYTES = 1024 * 1024
LOOK_EVERY_S = 1.0
"""Interval of the search for jobs whose time is over."""
MOST_TRIES = 3
"""Tries in which a job may end the process before it is given up."""
RETRY_S = 60.0
NO_SPACE = "no_space"
MAX_WAIT_S = 30.0
"""For a model that has no room, until a job asks again."""
WAITS_S = (0.0, 5.0, 30.0, 120.0, 600.0, 1800.0)
"""Before each try of a webhook."""
SPREAD = 0.2
"""Of a wait, so that many that fail together do not come again together."""


@dataclass(slots=True)
class TranscriptionJob:
    """A job. Times are seconds since 1970.

    owner: name of the key that made it, "" without one. model: as it was asked for. duration_s: of the audio.
    n_bytes: on disk. fields: of its form. n_tries: how often it was begun. error: see OpenAI's error objects.
    progress: the part of the recording that is done.
    """

    id: str
    owner: str
    created_s: float
    filename: str
    duration_s: float
    response_format: str
    n_bytes: int
    fields: list[tuple[str, str]] = field(default_factory=list)
    model: str | None = None
    state: JobState = "queued"
    n_tries: int = 0
    started_s: float | None = None
    finished_s: float | None = None
    error: dict[str, Json] | None = None
    webhook_url: str | None = None
    webhook_state: Literal["pending", "delivered", "failed"] = "pending"
    n_webhook_tries: int = 0
    progress: float = 0.0

    @property
    def has_webhook_due(self) -> bool:
        """Whether it is over, and its webhook is not sent yet."""
        is_over = self.finished_s is not None
        return is_over and self.webhook_url is not None and self.webhook_state == "pending"

    def end(self, error: dict[str, Json] | None) -> None:
        """Note that it is over. error: None: it went well."""
        self.state = "succeeded" if error is None else "failed"
        self.error, self.finished_s = error, time.time()
        self.progress = 1.0 if error is None else self.progress

    @property
    def document(self) -> dict[str, Json]:
        """The job as its client gets it, without the result."""
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

    @property
    def event(self) -> dict[str, Json]:
        """Its webhook, the same at every try: without the result, which is to be fetched."""
        return {
            "id": f"evt_{self.id.removeprefix('job_')}",
            "object": "event",
            "type": f"transcription.job.{self.state}",
            "created_at": int(self.finished_s or 0),
            "data": {name: value for name, value in self.document.items() if name != "webhook"},
        }


def new_id() -> str:
    return f"job_{secrets.token_hex(16)}"


class JobStore:
    """A folder for each job, with its record, its recording until it is over, and its result.

    Everything here waits for the disk. Names of files are made here alone.
    Raises: OptionError for a folder that cannot be written, or that another server has.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock: IO[str] = open(self._folder / ".lock", "a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            message = f"--jobs-dir '{folder}': expected a folder to write to, got '{cause_of(error)}'"
            raise OptionError(message) from error
        if not lock(self._lock):
            self._lock.close()
            raise OptionError(f"--jobs-dir '{folder}': expected a folder of its own, another server has it")

    def load(self) -> list[TranscriptionJob]:
        """Return all jobs; what is no whole job is removed."""
        found = []
        for folder in self._folder.iterdir():
            if ID.fullmatch(folder.name.removesuffix(UNFINISHED)) is None:
                continue
            try:
                job = TranscriptionJob(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
                job.fields = [(name, value) for name, value in job.fields]
                is_over = job.finished_s is not None
                is_whole = job.id == folder.name and (is_over or (folder / RECORDING).is_file())
            except (OSError, ValueError, TypeError):
                is_whole = False
            if is_whole:
                found.append(job)
            else:
                logger.warning("what is no whole job is removed", extra={"job": folder.name})
                shutil.rmtree(folder, ignore_errors=True)
        return found

    def folder(self, job: TranscriptionJob) -> Path:
        return self._folder / job.id

    def add(self, job: TranscriptionJob, recording: BinaryIO) -> None:
        """Keep a new job with a copy of its recording: it is there whole, or not at all. Raises: OSError."""
        folder = self._folder / (job.id + UNFINISHED)
        folder.mkdir(mode=0o700)
        try:
            recording.seek(0)
            with open(folder / RECORDING, "wb") as copy:
                shutil.copyfileobj(recording, copy, COPY_BYTES)
            write_whole(folder / RECORD, record_of(job))
            os.rename(folder, self.folder(job))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def save(self, job: TranscriptionJob) -> None:
        write_whole(self.folder(job) / RECORD, record_of(job))

    def finish(self, job: TranscriptionJob, result: bytes | None, error: dict[str, Json] | None) -> None:
        """End a job, whose result is there before it says so; its recording goes. Raises: OSError."""
        if result is not None:
            (self.folder(job) / RESULT).write_bytes(result)
        job.end(error)
        job.n_bytes = len(result or b"")
        self.save(job)
        (self.folder(job) / RECORDING).unlink(missing_ok=True)

    def remove(self, job: TranscriptionJob) -> None:
        shutil.rmtree(self.folder(job), ignore_errors=True)

    def close(self) -> None:
        self._lock.close()


def record_of(job: TranscriptionJob) -> str:
    """Write what is kept of a job; one that is under way is to be read again at the next start."""
    return json.dumps({**asdict(job), "state": "queued" if job.state == "running" else job.state})


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
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


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
        networks = [network_of(network) for network in settings.webhook_networks]
        self.webhooks = WebhookSender(self._secret_for, networks)
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
        """Of jobs that are under way, or whose webhooks are being sent."""
        self._reserved: Counter[str] = Counter()
        """Jobs that are being taken, by their owners."""
        self._reserved_bytes = 0
        self._changed = asyncio.Event()

    def count(self, state: str) -> int:
        return sum(job.state == state for job in self._jobs.values())

    @property
    def n_bytes(self) -> int:
        """Bytes of all jobs, and of those that are being taken."""
        return self._reserved_bytes + sum(job.n_bytes for job in self._jobs.values())

    def jobs_of(self, owner: str) -> list[TranscriptionJob]:
        """Return the jobs of an owner, newest first."""
        found = [job for job in self._jobs.values() if job.owner == owner]
        return sorted(found, key=lambda job: job.created_s, reverse=True)

    def find(self, owner: str, name: str) -> TranscriptionJob:
        job = self._jobs.get(name)
        if job is None or job.owner != owner:
            raise ApiError("job: expected the id of one that is here", status=404, code="job_not_found")
        return job

    @contextmanager
    def place(self, owner: str) -> Iterator[None]:
        """Take a place for a job while it comes. Raises: ApiError 429 where there is none."""
        most = self._settings.most
        own = len(self.jobs_of(owner)) + self._reserved[owner]
        is_full = len(self._jobs) + self._reserved.total() >= most
        if is_full or (owner and own >= max(1, most // 2)):
            raise busy(f"{own} jobs are here: take their results and delete them, or try later", RETRY_S)
        self._reserved[owner] += 1
        try:
            yield
        finally:
            self._reserved[owner] -= 1

    def check_bytes(self, n_bytes: int) -> None:
        """Check that there is room for so much. Raises: ApiError 429."""
        settings = self._settings
        if self.n_bytes + n_bytes > settings.most_bytes:
            raise busy(f"{settings.most_mb:g} MB of jobs are here: try again later", RETRY_S)

    async def add(self, job: TranscriptionJob, recording: BinaryIO) -> None:
        """Take a job that has its place, and its recording.

        Raises: ApiError 429 without room, 503 where it cannot be kept.
        """
        self.check_bytes(job.n_bytes)
        self._reserved_bytes += job.n_bytes
        try:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._store.add, job, recording)
        except OSError as error:
            logger.exception("a job cannot be written")
            message = "the server has no place to keep the job"
            raise ApiError(
                message, status=503, kind="server_error", code=NO_SPACE, retry_s=RETRY_S
            ) from error
        finally:
            self._reserved_bytes -= job.n_bytes
        self._jobs[job.id] = job
        self._changed.set()

    async def document_with_result(self, job: TranscriptionJob) -> bytes:
        """Return a job as JSON, with its result if it went well. Raises: ApiError 404 where that is gone."""
        result = b"null"
        if job.state == "succeeded":
            try:
                result = await anyio.to_thread.run_sync((self._store.folder(job) / RESULT).read_bytes)
            except OSError as error:
                message = "job: its result has gone"
                raise ApiError(message, status=404, code="job_not_found") from error
        return json.dumps(job.document).encode()[:-1] + b', "result": ' + result + b"}"

    async def delete(self, job: TranscriptionJob) -> None:
        """Stop a job, and remove it with its files."""
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
                if job.has_webhook_due:
                    tasks.start_soon(self._while_here, job, self._notify)

    def close(self) -> None:
        self._store.close()

    async def _work(self, tasks: TaskGroup) -> None:
        while True:
            job = await self._next()
            await self._while_here(job, self._do)
            if job.has_webhook_due:
                tasks.start_soon(self._while_here, job, self._notify)

    async def _next(self) -> TranscriptionJob:
        """Wait for the oldest job of the owner who has fewest under way, and begin it."""
        while True:
            under_way = Counter(job.owner for job in self._jobs.values() if job.state == "running")
            waiting = [job for job in self._jobs.values() if job.state == "queued"]
            if waiting:
                job = min(waiting, key=lambda job: (under_way[job.owner], job.created_s))
                job.state, job.started_s, job.progress = "running", time.time(), 0.0
                job.n_tries += 1
                return job
            self._changed.clear()
            await self._changed.wait()

    def _secret_for(self, owner: str) -> bytes | None:
        """Return what signs the webhooks of a key: its own secret, or that of the server."""
        key = self._keys.by_name(owner)
        own = None if key is None else key.webhook_secret
        return own or self._settings.webhook_secret

    async def _while_here(
        self, job: TranscriptionJob, work: Callable[[TranscriptionJob], Awaitable[None]]
    ) -> None:
        """Work on a job until that is done or the job is deleted, and then remove its files."""
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
            try:
                await anyio.to_thread.run_sync(self._store.finish, job, result, error)
            except OSError:
                logger.exception("the result of a job cannot be written")
                job.end(ApiError("no place for the result", kind="server_error", code=NO_SPACE).details)
        self._metrics.jobs.labels(job.state).inc()
        seconds = round(time.monotonic() - began_s, 3)
        logger.info(
            "job over", extra={"job": job.id, "status": job.state, "seconds": seconds, "key": job.owner}
        )

    async def _transcribe_when_possible(self, job: TranscriptionJob) -> bytes:
        """Transcribe a job, again where it failed for a reason that passes. Raises: as `_transcribe`."""
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
        request = await self._decoding.call(lambda: transcription_request(Fields(job.fields)))
        name = self._registry.resolve(request.model)
        file = await anyio.to_thread.run_sync(open, self._store.folder(job) / RECORDING, "rb")
        with file:
            recording = UploadedFile(UploadFile(file, filename=job.filename))
            wanted = request.transcription
            async with self._registry.transcribing(name, recording.source, wanted) as handle:
                async for segment in handle:
                    job.progress = min(1.0, segment.end / max(job.duration_s, 1e-3))
                transcript = await handle.collect()
        self._metrics.file_seconds.inc(transcript.duration)
        return await anyio.to_thread.run_sync(rendered, transcript, request)

    async def _save(self, job: TranscriptionJob) -> None:
        try:
            await anyio.to_thread.run_sync(self._store.save, job)
        except OSError:
            logger.exception("what a job has become cannot be written")

    async def _notify(self, job: TranscriptionJob) -> None:
        """Send the webhook of a job, until it is taken or there were tries enough."""
        while job.webhook_state == "pending":
            wait_s = WAITS_S[min(job.n_webhook_tries, len(WAITS_S) - 1)]
            await anyio.sleep(wait_s * random.uniform(1 - SPREAD, 1 + SPREAD))
            job.n_webhook_tries += 1
            try:
                if await self.webhooks.tell(job.webhook_url or "", job.owner, job.event):
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


def rendered(transcript: Transcript, request: FileRequest) -> bytes:
    """Render a result as JSON: a document, or a string of text."""
    if request.response_format in TEXT_TYPES:
        return json_text(text_answer(transcript, request)).encode()
    return json_text(json_answer(transcript, request)).encode()
