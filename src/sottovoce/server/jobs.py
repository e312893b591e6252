"""Jobs: recordings that are answered later. They are kept in a folder, and their owners take turns.

Few run at a time, so that recordings that are answered at once have most of the model.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, get_args

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync
from filelock import FileLock, Timeout
from starlette.datastructures import UploadFile

from sottovoce.errors import OptionError, cause_of
from sottovoce.formats.document import Json, json_text
from sottovoce.server.auth import KeyRing
from sottovoce.server.decode_pool import DecodePool
from sottovoce.server.errors import (
    OUT_OF_MEMORY,
    ApiError,
    logged_api_error,
    to_api_error,
    too_many_requests,
)
from sottovoce.server.fields import Fields
from sottovoce.server.models import ModelRegistry
from sottovoce.server.openai_format import (
    TEXT_TYPES,
    UploadedFile,
    json_answer,
    text_answer,
    transcription_request,
)
from sottovoce.server.settings import JobSettings
from sottovoce.server.telemetry import Metrics, Tracing
from sottovoce.server.webhooks import Webhook, WebhookSender

logger = logging.getLogger(__name__)

JobStatus: TypeAlias = Literal["queued", "running", "succeeded", "failed"]
JOB_STATUSES: tuple[JobStatus, ...] = get_args(JobStatus)
INTERNAL = ("owner", "fields", "n_bytes", "n_tries")
ID = re.compile(r"job_[0-9a-f]{32}")
remove_folder = partial(shutil.rmtree, ignore_errors=True)
RECORD, UNFINISHED, RECORDING, RESULT = "job.json", "job.part", "recording", "result.json"
COPY_BYTES = 1024 * 1024
EXPIRE_EVERY_S = 1.0
MOST_TRIES = 3
"""Times that a job may end the process."""
RETRY_S = 60.0
MAX_WAIT_S = 30.0


@dataclass(slots=True)
class TranscriptionJob:
    """A job: the fields of the API, and after them those of the server.

    Times are seconds since 1970. progress: fraction transcribed. owner: name of its key, or "". fields: of
    its form. n_bytes: on disk. n_tries: how often it ended the process.
    """

    id: str
    status: JobStatus = "queued"
    created_at: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    model: str | None = None
    filename: str = ""
    duration: float = 0.0
    response_format: str = "json"
    progress: float = 0.0
    error: dict[str, Json] | None = None
    webhook: Webhook | None = None

    owner: str = ""
    fields: list[tuple[str, str]] = field(default_factory=list)
    n_bytes: int = 0
    n_tries: int = 0

    def end(self, error: dict[str, Json] | None = None, n_bytes: int = 0) -> None:
        """End the job. error: None: it succeeded, with a result of n_bytes."""
        self.status = "succeeded" if error is None else "failed"
        self.finished_at = int(time.time())
        self.progress = 1.0 if error is None else self.progress
        self.error, self.n_bytes = error, n_bytes

    @property
    def has_webhook_due(self) -> bool:
        is_over = self.finished_at is not None
        return is_over and self.webhook is not None and self.webhook.status == "pending"

    @property
    def document(self) -> dict[str, Json]:
        public = {name: value for name, value in asdict(self).items() if name not in INTERNAL}
        return {"id": self.id, "object": "transcription.job", **public}

    @property
    def event(self) -> dict[str, Json]:
        return {
            "id": f"evt_{self.id.removeprefix('job_')}",
            "object": "event",
            "type": f"transcription.job.{self.status}",
            "created_at": self.finished_at,
            "data": {name: value for name, value in self.document.items() if name != "webhook"},
        }


def load_jobs(folder: Path) -> list[TranscriptionJob]:
    """Return the jobs of a folder, oldest first; remove incomplete ones and requeue running ones."""
    found = []
    for path in folder.iterdir():
        if ID.fullmatch(path.name) is None:
            continue
        try:
            job = TranscriptionJob(**json.loads((path / RECORD).read_text(encoding="utf-8")))
            job.fields = [(name, value) for name, value in job.fields]
            webhook: Any = job.webhook
            job.webhook = webhook and Webhook(**webhook)
            is_whole = job.finished_at is not None or (path / RECORDING).is_file()
        except (OSError, ValueError, TypeError):
            is_whole = False
        if not is_whole:
            logger.warning("an incomplete job is removed", extra={"job": path.name})
            remove_folder(path)
            continue
        if job.status == "running":
            job.status = "queued"
            job.n_tries += 1
        found.append(job)
    return sorted(found, key=lambda job: job.created_at)


def create_job(folder: Path, job: TranscriptionJob, recording: BinaryIO) -> None:
    """Write a new job with a copy of its recording. Raises: OSError."""
    path = folder / job.id
    try:
        path.mkdir(mode=0o700)
        recording.seek(0)
        with open(path / RECORDING, "wb") as copy:
            shutil.copyfileobj(recording, copy, COPY_BYTES)
        save_job(folder, job)
    except BaseException:
        remove_folder(path)
        raise


def save_job(folder: Path, job: TranscriptionJob) -> None:
    """Replace the record of a job atomically; remove the recording of one that is over. Raises: OSError."""
    path = folder / job.id
    with open(path / UNFINISHED, "w", encoding="utf-8") as file:
        json.dump(asdict(job), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path / UNFINISHED, path / RECORD)
    if job.finished_at is not None:
        (path / RECORDING).unlink(missing_ok=True)


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raises: ApiError 503 in place of an OSError."""
    try:
        yield
    except OSError as error:
        logger.exception("a job cannot be written")
        message = "the server has no place to keep the job"
        raise ApiError(message, status=503, code="no_space", retry_s=RETRY_S) from error


class JobRunner:
    """The jobs of a server. n_parallel: jobs that run at a time.

    Raises: OptionError for a folder that cannot be written, or that another server uses.
    """

    def __init__(
        self,
        settings: JobSettings,
        registry: ModelRegistry,
        decoding: DecodePool,
        metrics: Metrics,
        keys: KeyRing,
        *,
        n_parallel: int,
        tracing: Tracing,
    ) -> None:
        self.webhooks = WebhookSender(settings, keys)
        self._settings = settings
        self._registry = registry
        self._decoding = decoding
        self._metrics = metrics
        self._n_parallel = n_parallel
        self._tracing = tracing
        self._folder = Path(settings.folder)
        self._lock = FileLock(self._folder / ".lock", timeout=0, thread_local=False)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout:
            message = "expected a folder of its own, another server has it"
            raise OptionError(f"--jobs-dir '{self._folder}': {message}") from None
        except OSError as error:
            message = f"expected a folder to write to, got '{cause_of(error)}'"
            raise OptionError(f"--jobs-dir '{self._folder}': {message}") from error
        self._jobs = {job.id: job for job in load_jobs(self._folder)}
        self._incoming: dict[str, TranscriptionJob] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._has_new = asyncio.Event()

    def close(self) -> None:
        self._lock.release()

    def count(self, state: str) -> int:
        return sum(job.status == state for job in self._jobs.values())

    @property
    def n_bytes(self) -> int:
        return sum(job.n_bytes for job in (*self._jobs.values(), *self._incoming.values()))

    def jobs_of(self, owner: str) -> list[TranscriptionJob]:
        return [job for job in reversed(self._jobs.values()) if job.owner == owner]

    def find(self, owner: str, name: str) -> TranscriptionJob:
        job = self._jobs.get(name)
        if job is None or job.owner != owner:
            raise ApiError("job: expected the id of one that is here", status=404, code="job_not_found")
        return job

    @contextmanager
    def new(self, owner: str) -> Iterator[TranscriptionJob]:
        """Yield a job, whose place is reserved while its request is received. Raises: ApiError 429."""
        here = [*self._jobs.values(), *self._incoming.values()]
        n_own = sum(job.owner == owner for job in here)
        most = self._settings.most
        if len(here) >= most or (owner and n_own >= max(1, most // 2)):
            raise too_many_requests(
                f"{n_own} jobs are here: take their results and delete them, or try later", RETRY_S
            )
        job = TranscriptionJob(f"job_{secrets.token_hex(16)}", owner=owner)
        self._incoming[job.id] = job
        try:
            yield job
        finally:
            self._incoming.pop(job.id, None)

    async def add(self, job: TranscriptionJob, recording: BinaryIO, n_bytes: int) -> None:
        """Queue a new job. Raises: ApiError 429 without room for its bytes, 503 if it cannot be written."""
        if self.n_bytes + n_bytes > self._settings.most_bytes:
            raise too_many_requests(
                f"{self._settings.most_mb:g} MB of jobs are here: try again later", RETRY_S
            )
        job.n_bytes, job.created_at = n_bytes, int(time.time())
        with disk_errors(), anyio.CancelScope(shield=True):
            await run_sync(create_job, self._folder, job, recording)
        self._jobs[job.id] = self._incoming.pop(job.id)
        self._has_new.set()

    async def document_with_result(self, job: TranscriptionJob) -> bytes:
        """Return a job as JSON, with its result if it succeeded. Raises: ApiError 404 if that is gone."""
        result = b"null"
        if job.status == "succeeded":
            try:
                result = await run_sync((self._folder / job.id / RESULT).read_bytes)
            except OSError as error:
                message = "job: its result has gone"
                raise ApiError(message, status=404, code="job_not_found") from error
        return json.dumps(job.document).encode()[:-1] + b', "result": ' + result + b"}"

    async def delete(self, job: TranscriptionJob) -> None:
        self._jobs.pop(job.id, None)
        if (scope := self._scopes.get(job.id)) is not None:
            scope.cancel()  # its task removes the files
        else:
            await run_sync(remove_folder, self._folder / job.id)

    async def run(self) -> None:
        """Run jobs until cancelled; interrupted ones begin anew at the next start."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._expire)
            for _ in range(self._n_parallel):
                tasks.start_soon(self._work, tasks)
            for job in self._jobs.values():
                if job.has_webhook_due:
                    tasks.start_soon(self._unless_deleted, job, self._notify)

    async def _work(self, tasks: TaskGroup) -> None:
        while True:
            job = await self._next()
            await self._unless_deleted(job, self._transcribe)
            if job.has_webhook_due:
                tasks.start_soon(self._unless_deleted, job, self._notify)

    async def _next(self) -> TranscriptionJob:
        while True:
            under_way = Counter(job.owner for job in self._jobs.values() if job.status == "running")
            waiting = [job for job in self._jobs.values() if job.status == "queued"]
            if waiting:
                job = min(waiting, key=lambda job: under_way[job.owner])
                job.status, job.started_at, job.progress = "running", int(time.time()), 0.0
                return job
            self._has_new.clear()
            await self._has_new.wait()

    async def _unless_deleted(
        self, job: TranscriptionJob, work: Callable[[TranscriptionJob], Awaitable[None]]
    ) -> None:
        if job.id not in self._jobs:
            return
        try:
            with anyio.CancelScope() as scope:
                self._scopes[job.id] = scope
                await work(job)
        except Exception:  # of one job: the others go on
            logger.exception("work on a job failed", extra={"job": job.id})
        finally:
            self._scopes.pop(job.id, None)
        if job.id not in self._jobs:
            with anyio.CancelScope(shield=True):
                await run_sync(remove_folder, self._folder / job.id)

    async def _transcribe(self, job: TranscriptionJob) -> None:
        began_s = time.monotonic()
        await self._save(job)
        try:
            if job.n_tries >= MOST_TRIES:
                text = f"the server ended {MOST_TRIES} times while it read this recording"
                raise ApiError(text, status=500, code="gave_up")
            with self._tracing.span("job", sottovoce__job=job.id):
                result = await self._result_when_possible(job)
            with disk_errors(), anyio.CancelScope(shield=True):
                await run_sync((self._folder / job.id / RESULT).write_bytes, result)
            job.end(n_bytes=len(result))
        except anyio.get_cancelled_exc_class():
            await self._save(replace(job, status="queued"))  # begins anew at the next start
            raise
        except Exception as error:
            job.end(logged_api_error(error, job.id, "job failed").details)
        await self._save(job)
        self._metrics.jobs.labels(job.status).inc()
        seconds = round(time.monotonic() - began_s, 3)
        logger.info(
            "job over", extra={"job": job.id, "status": job.status, "seconds": seconds, "key": job.owner}
        )

    async def _result_when_possible(self, job: TranscriptionJob) -> bytes:
        while True:
            try:
                return await self._result(job)
            except Exception as error:
                fault = to_api_error(error)
                if fault.retry_s is None or fault.code == OUT_OF_MEMORY:
                    raise
            await anyio.sleep(min(fault.retry_s, MAX_WAIT_S))

    async def _result(self, job: TranscriptionJob) -> bytes:
        request = await self._decoding.call(lambda: transcription_request(Fields(job.fields)))
        name = self._registry.resolve(request.model)
        with await run_sync(open, self._folder / job.id / RECORDING, "rb") as file:
            recording = UploadedFile(UploadFile(file, filename=job.filename))
            wanted = request.transcription
            async with self._registry.transcribing(name, recording.source, wanted) as handle:
                async for segment in handle:
                    job.progress = round(min(1.0, segment.end / max(job.duration, 1e-3)), 3)
                transcript = await handle.collect()
        self._metrics.file_seconds.inc(transcript.duration)
        answer = text_answer if request.response_format in TEXT_TYPES else json_answer
        return (await run_sync(lambda: json_text(answer(transcript, request)))).encode()

    async def _save(self, job: TranscriptionJob) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await run_sync(save_job, self._folder, job)
            except Exception:
                logger.exception("the record of a job cannot be written")

    async def _notify(self, job: TranscriptionJob) -> None:
        assert job.webhook is not None
        async for _ in self.webhooks.deliver(job.webhook, job.owner, job.event):
            await self._save(job)
        self._metrics.webhooks.labels(job.webhook.status).inc()

    async def _expire(self) -> None:
        while True:
            ended_before_s = time.time() - self._settings.keep_s
            for job in list(self._jobs.values()):
                if job.finished_at is not None and job.finished_at < ended_before_s:
                    await self.delete(job)
            await anyio.sleep(EXPIRE_EVERY_S)
