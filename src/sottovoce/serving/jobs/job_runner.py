"""Works jobs off, in turn of those who sent them, and lets them go when their time is over.

A recording of a job is work of the model like any other recording: behind what is live. Few are under way
at a time, beside those that somebody waits for.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from starlette.datastructures import UploadFile

from sottovoce.formats.document import Json, json_text
from sottovoce.serving.access.api_keys import KeyRing
from sottovoce.serving.jobs.job_store import JobStore
from sottovoce.serving.jobs.transcription_job import TranscriptionJob
from sottovoce.serving.jobs.upload_store import ResumableUpload, UploadStore
from sottovoce.serving.jobs.webhooks import WAITS_S, WebhookSender
from sottovoce.serving.metrics import Metrics
from sottovoce.serving.parsing.faults import OUT_OF_MEMORY, ApiError, busy, fault_of, logged_fault
from sottovoce.serving.parsing.forms import Fields
from sottovoce.serving.recordings.decode_pool import DecodePool
from sottovoce.serving.recordings.openai_documents import TEXT_TYPES, json_answer, text_answer
from sottovoce.serving.recordings.requests import FileRequest, UploadedFile, transcription_request
from sottovoce.serving.scheduling.model_registry import ModelRegistry
from sottovoce.serving.settings import JobSettings
from sottovoce.serving.tracing import Tracing
from sottovoce.types import Transcript

logger = logging.getLogger(__name__)

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
        self.uploads = UploadStore(Path(settings.folder))
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
        return self._reserved_bytes + self.uploads.n_bytes + sum(job.n_bytes for job in self._jobs.values())

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
        """Check that there is a place for another job or upload. Raises: ApiError 429."""
        settings = self._settings
        n_jobs = len(self._jobs) + self._reserved.total() + self.uploads.count()
        own = len(self.jobs_of(owner)) + self._reserved[owner] + self.uploads.count(owner)
        if n_jobs >= settings.most or (owner and own >= max(1, settings.most // 2)):
            raise busy(f"{own} jobs are here: take their results and delete them, or try later", RETRY_S)

    def check_bytes(self, n_bytes: int) -> None:
        """Check that there is room for so much. Raises: ApiError 429."""
        settings = self._settings
        if self.n_bytes + n_bytes > settings.most_bytes:
            raise busy(f"{settings.most_mb:g} MB of jobs are here: try again later", RETRY_S)

    @property
    def keep_s(self) -> float:
        """Seconds for which what is over, or does not go on, is kept."""
        return self._settings.keep_s

    async def begin_upload(self, owner: str, n_bytes: int, filename: str) -> ResumableUpload:
        """Begin an upload, which has its place among jobs. Raises: ApiError 429 without room, 503."""
        self.check_place(owner)
        self.check_bytes(n_bytes)
        with disk_errors():
            return await self.uploads.create(owner, n_bytes, filename)

    async def append(self, upload: ResumableUpload, piece: bytes) -> None:
        """Take the next bytes of an upload. Raises: ApiError 503 where they cannot be kept."""
        with disk_errors():
            await self.uploads.append(upload, piece)

    async def add(
        self, job: TranscriptionJob, fields: Sequence[tuple[str, str]], recording: BinaryIO | ResumableUpload
    ) -> None:
        """Take a job that has its place, and its recording, which is moved where it is an upload.

        The bytes of an upload are counted already, so that its job is never refused for them.
        Raises: ApiError 429 without room, 503 where it cannot be kept.
        """
        source: BinaryIO | Path
        if isinstance(recording, ResumableUpload):
            n_new, source = 0, self.uploads.data(recording)
        else:
            n_new, source = job.n_bytes, recording
            self.check_bytes(n_new)
        self._reserved_bytes += n_new
        try:
            with disk_errors(), anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._store.add, job, fields, source)
        finally:
            self._reserved_bytes -= n_new
        self._jobs[job.id] = job
        self._note_change()
        if isinstance(recording, ResumableUpload):
            await self.uploads.remove(recording)

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
                if await self.webhooks.tell(job):
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
            await self.uploads.remove_older_than(oldest_s)
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
