"""`/v1/jobs`: recordings that are answered later. They are kept in a folder, and their owners take
turns; webhooks report the end of a job.

Few run at a time, so that recordings that are answered at once have most of the model.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import os
import random
import re
import secrets
import shutil
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias, cast, get_args
from urllib.parse import SplitResult, urlsplit

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync
from filelock import FileLock, Timeout
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sottovoce.errors import OptionError, cause_of
from sottovoce.formats.document import Json, json_text
from sottovoce.server import api
from sottovoce.server.apis import openai_files
from sottovoce.server.auth import KeyRing
from sottovoce.server.errors import (
    OUT_OF_MEMORY,
    ApiError,
    invalid_value,
    logged_api_error,
    to_api_error,
    too_many_requests,
    unsupported,
)
from sottovoce.server.fields import Fields, query_of, read_number
from sottovoce.server.services import Services, key_of, run_until_first, services_of
from sottovoce.server.settings import JobSettings, network_of
from sottovoce.server.uploads import FileRequest, UploadedFile, checked_request, received_form, with_rules
from sottovoce.text.files import from_json, whole_file

logger = logging.getLogger(__name__)

Networks: TypeAlias = Sequence[IPv4Network | IPv6Network]
WebhookStatus: TypeAlias = Literal["pending", "delivered", "failed"]
WEBHOOK_URL = "webhook_url"
EXPECTED = "a URL as https://example.org/path, to a public address"
WAITS_S = (0.0, 5.0, 30.0, 120.0, 600.0, 1800.0)
"""Before each try."""
WITHIN_S = 10.0
STATUS = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)\b")
MAX_URL = 2_000
USUAL_PORTS = {"http": 80, "https": 443}
FIRST_FREE_PORT = 1024
"""Older protocols listen below it, and might take a post for something else."""
EMBEDDING_NETWORKS = tuple(
    ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")
)
"""Networks whose addresses embed others: NAT64 (RFC 6052, 8215), 6to4 (RFC 3056), Teredo (RFC 4380)."""


@dataclass(slots=True)
class Webhook:
    """tries: posts so far."""

    url: str
    status: WebhookStatus = "pending"
    tries: int = 0


class PostError(Exception): ...


class WebhookSender:
    def __init__(self, settings: JobSettings, keys: KeyRing) -> None:
        self._secret = settings.webhook_secret
        self._networks = [network_of(network) for network in settings.webhook_networks]
        self._keys = keys
        self._places = anyio.CapacityLimiter(4)

    def check(self, url: str, owner: str) -> tuple[SplitResult, bytes]:
        """Return the address of a webhook and the secret. Raises: ApiError 400 if it may not be called."""
        key = self._keys.by_name(owner)
        secret = (key and key.webhook_secret) or self._secret
        if secret is None:
            raise unsupported(WEBHOOK_URL, "not done here: this server has no secret to sign with")
        return target_of(url, self._networks), secret

    async def deliver(self, webhook: Webhook, owner: str, event: dict[str, Json]) -> AsyncIterator[None]:
        """Post an event until it is accepted or given up; yields after each try."""
        while webhook.status == "pending":
            wait_s = WAITS_S[min(webhook.tries, len(WAITS_S) - 1)]
            await anyio.sleep(wait_s * random.uniform(0.8, 1.2))
            webhook.status = await self._try(webhook.url, owner, event)
            webhook.tries += 1
            if webhook.status == "pending" and webhook.tries >= len(WAITS_S):
                webhook.status = "failed"
            yield

    async def _try(self, url: str, owner: str, event: dict[str, Json]) -> WebhookStatus:
        body, name = json_text(event).encode(), str(event["id"])
        try:
            target, secret = self.check(url, owner)
            headers = signed_headers(secret, name, body, int(time.time()))
            async with self._places:
                status = await post(target, headers, body, self._networks)
        except ApiError:  # the address may not be called any more
            return "failed"
        except PostError as error:
            logger.warning("webhook not delivered", extra={"event": name, "cause": str(error)})
            return "pending"
        if 200 <= status < 300:
            return "delivered"
        logger.warning("webhook not taken", extra={"event": name, "status": status})
        return "failed" if status == HTTPStatus.GONE else "pending"


def signed_headers(secret: bytes, name: str, body: bytes, now_s: int) -> list[tuple[str, str]]:
    """The signature is the HMAC-SHA256 of "id.seconds.body" in base64."""
    signed = f"{name}.{now_s}.".encode() + body
    signature = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    return [
        ("content-type", "application/json"),
        ("user-agent", "sottovoce"),
        ("webhook-id", name),
        ("webhook-timestamp", str(now_s)),
        ("webhook-signature", f"v1,{signature}"),
    ]


def target_of(url: str, networks: Networks) -> SplitResult:
    """Read a URL. networks: allowed private ones. Raises: ApiError 400."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise invalid_value(WEBHOOK_URL, EXPECTED, "one that cannot be read") from None
    is_plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= MAX_URL
    if not (is_plain and parts.scheme in USUAL_PORTS and parts.hostname):
        raise invalid_value(WEBHOOK_URL, f"{EXPECTED}, {MAX_URL} ASCII characters at most", "something else")
    if parts.username is not None or parts.password is not None:
        raise invalid_value(WEBHOOK_URL, EXPECTED, "one with a user")
    if port is not None and port not in USUAL_PORTS.values() and port < FIRST_FREE_PORT:
        raise invalid_value(WEBHOOK_URL, f"port 80, 443, or from {FIRST_FREE_PORT}", str(port))
    with suppress(ValueError):  # a name: resolved when it is called
        if not may_call(parts.hostname, networks):
            raise invalid_value(WEBHOOK_URL, EXPECTED, "a private one")
    return parts


def may_call(address: str, networks: Networks) -> bool:
    """Return whether an address is public or in one of the networks. Raises: ValueError for a name."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if any(ip in network for network in networks):
        return True
    is_embedding = any(ip in network for network in EMBEDDING_NETWORKS)
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or is_embedding)


async def post(
    target: SplitResult, headers: Sequence[tuple[str, str]], body: bytes, networks: Networks
) -> int:
    """Post a body; return the status. Raises: PostError without a status within `WITHIN_S`."""
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    given = [("host", target.netloc), ("content-length", str(len(body))), ("connection", "close")]
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in (*given, *headers)), "", ""]
    try:
        with anyio.fail_after(WITHIN_S):
            reader, writer = await _connect(target, networks)
            try:
                writer.write("\r\n".join(lines).encode() + body)
                await writer.drain()
                while match := STATUS.match(await reader.readuntil(b"\r\n\r\n")):
                    if not match[1].startswith(b"1"):  # of an answer to come
                        return int(match[1])
                raise PostError("no status")
            finally:
                writer.transport.abort()
    except TimeoutError as error:
        raise PostError("no answer in time") from error
    except (OSError, EOFError, asyncio.LimitOverrunError, UnicodeError) as error:
        raise PostError(type(error).__name__) from error


async def _connect(
    target: SplitResult, networks: Networks
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Each address has its part of the time."""
    port = target.port or USUAL_PORTS[target.scheme]
    records = await anyio.getaddrinfo(target.hostname, port, type=socket.SOCK_STREAM)
    addresses = dict.fromkeys(str(where[4][0]) for where in records)
    allowed = [address for address in addresses if may_call(address, networks)]
    if not allowed:
        raise PostError("an address that is not public")
    tls = ssl.create_default_context() if target.scheme == "https" else None
    name = target.hostname if tls else None
    for address in allowed:
        try:
            with anyio.fail_after(WITHIN_S / len(allowed)):
                return await asyncio.open_connection(address, port, ssl=tls, server_hostname=name)
        except (OSError, TimeoutError) as error:
            fault: OSError | TimeoutError = error
    raise fault


JobStatus: TypeAlias = Literal["queued", "running", "succeeded", "failed"]
JOB_STATUSES: tuple[JobStatus, ...] = get_args(JobStatus)
INTERNAL = ("owner", "fields", "n_bytes", "n_tries")
ID = re.compile(r"job_[0-9a-f]{32}")
remove_folder = partial(shutil.rmtree, ignore_errors=True)
RECORD, RECORDING, RESULT = "job.json", "recording", "result.json"
MOST_TRIES = 3
"""Times that a job may end the process."""
RETRY_S = 60.0
DEFAULT_LISTED, MOST_LISTED = 20, 100


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
    error: Mapping[str, object] | None = None
    webhook: Webhook | None = None

    owner: str = ""
    fields: list[tuple[str, str]] = field(default_factory=list)
    n_bytes: int = 0
    n_tries: int = 0

    def end(self, error: dict[str, Json] | None = None, n_bytes: int = 0) -> None:
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
    jobs = []
    for path in folder.iterdir():
        if ID.fullmatch(path.name) is None:
            continue
        try:
            job = from_json(TranscriptionJob, (path / RECORD).read_bytes(), RECORD)
            if job.finished_at is None and not (path / RECORDING).is_file():
                raise OptionError(f"{RECORDING}: expected a file, got none")
        except (OSError, OptionError) as error:
            logger.warning("an incomplete job is removed", extra={"job": path.name, "cause": cause_of(error)})
            remove_folder(path)
            continue
        if job.status == "running":
            job.status = "queued"
            job.n_tries += 1
        jobs.append(job)
    return sorted(jobs, key=lambda job: job.created_at)


def create_job(folder: Path, job: TranscriptionJob, recording: BinaryIO) -> None:
    """Write a new job with a copy of its recording."""
    path = folder / job.id
    try:
        path.mkdir(mode=0o700)
        recording.seek(0)
        with open(path / RECORDING, "wb") as copy:
            shutil.copyfileobj(recording, copy)
        save_job(folder, job)
    except BaseException:
        remove_folder(path)
        raise


def save_job(folder: Path, job: TranscriptionJob) -> None:
    """Replace the record of a job atomically; remove the recording of a finished job."""
    path = folder / job.id
    with whole_file(path / RECORD) as unfinished, open(unfinished, "w", encoding="utf-8") as file:
        json.dump(asdict(job), file)
        file.flush()
        os.fsync(file.fileno())
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
    """The jobs of a server. Raises: OptionError for a folder that is in use or cannot be written."""

    def __init__(self, services: Services, settings: JobSettings) -> None:
        self.webhooks = WebhookSender(settings, services.keys)
        self._services = services
        self._settings = settings
        self._folder = Path(settings.folder)
        self._lock = FileLock(self._folder / ".lock", timeout=0, thread_local=False)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire()
        except (Timeout, OSError) as error:
            message = f"expected a folder to write to, got '{cause_of(error)}'"
            if isinstance(error, Timeout):
                message = "expected a folder of its own, another server has it"
            raise OptionError(f"--jobs-dir '{self._folder}': {message}") from error
        self._jobs = {job.id: job for job in load_jobs(self._folder)}
        self._incoming: dict[str, TranscriptionJob] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._has_new = asyncio.Event()
        here = services.metrics.gauge("jobs_here", "Jobs in the folder, by status.", "status")
        for status in JOB_STATUSES:
            here.labels(status).set_function(partial(self.count, status))
        n_bytes = services.metrics.gauge("job_bytes", "Bytes on disk of recordings and results of jobs.")
        n_bytes.set_function(lambda: self.n_bytes)

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
        """Queue a new job. Raises: ApiError 429, 503."""
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
        """Return a job as JSON, with its result if it succeeded. Raises: ApiError 404."""
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

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run jobs until the server drains; interrupted ones begin anew at the next start."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run_until_first, self._run, self._services.draining.wait)
                yield
                tasks.cancel_scope.cancel()
        finally:
            self._lock.release()

    async def _run(self) -> None:
        # a job for four recordings answered at once
        n_parallel = max(1, self._services.settings.limits.requests // 4)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._expire)
            for _ in range(n_parallel):
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
            with self._services.tracing.span("job", sottovoce__job=job.id):
                result = await self._result_when_possible(job)
            with disk_errors(), anyio.CancelScope(shield=True):
                await run_sync((self._folder / job.id / RESULT).write_bytes, result)
            job.end(n_bytes=len(result))
        except anyio.get_cancelled_exc_class():
            await self._save(replace(job, status="queued"))  # begins anew at the next start
            raise
        except Exception as error:
            job.end(logged_api_error(error, job.id, "job failed").details)
        self._services.metrics.jobs.labels(job.status).inc()
        await self._save(job)
        seconds = round(time.monotonic() - began_s, 3)
        about = {"job": job.id, "status": job.status, "seconds": seconds, "key": job.owner}
        logger.info("job over", extra=about)

    async def _result_when_possible(self, job: TranscriptionJob) -> bytes:
        while True:
            try:
                return await self._result(job)
            except Exception as error:
                fault = to_api_error(error)
                if fault.retry_s is None or fault.code == OUT_OF_MEMORY:
                    raise
            await anyio.sleep(min(fault.retry_s, 30.0))

    async def _result(self, job: TranscriptionJob) -> bytes:
        services = self._services
        request = await services.decoding.call(lambda: openai_files.transcription_request(Fields(job.fields)))
        request = with_rules(request, services.keys.by_name(job.owner))
        name = services.registry.resolve(request.model)
        with await run_sync(open, self._folder / job.id / RECORDING, "rb") as file:
            recording = UploadedFile(UploadFile(file, filename=job.filename))
            async with services.registry.transcribing(name, recording.source, request) as handle:
                async for segment in handle:
                    job.progress = round(min(1.0, segment.end / max(job.duration, 1e-3)), 3)
                transcript = await handle.collect()
        services.metrics.file_seconds.inc(transcript.duration)
        is_text = request.response_format in openai_files.TEXT_TYPES
        answer = openai_files.text_answer if is_text else openai_files.json_answer
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
            if job.webhook.status != "pending":
                self._services.metrics.webhooks.labels(job.webhook.status).inc()
            await self._save(job)

    async def _expire(self) -> None:
        while True:
            ended_before_s = time.time() - self._settings.keep_s
            for job in list(self._jobs.values()):
                if job.finished_at is not None and job.finished_at < ended_before_s:
                    await self.delete(job)
            await anyio.sleep(1.0)


async def post_job(request: Request) -> Response:
    jobs, owner = jobs_and_owner(request)
    with jobs.new(owner) as job:
        async with AsyncExitStack() as stack:
            with services_of(request).upload(is_queued=True):
                fields, upload = await stack.enter_async_context(received_form(request))
            url = fields.text(WEBHOOK_URL)
            if url is not None:
                jobs.webhooks.check(url, owner)
                job.webhook = Webhook(url)
            fields = fields.without(WEBHOOK_URL)
            file_request, recording, audio_s = await checked_request(
                request, lambda: job_request(fields), upload
            )
            job.filename, job.duration = recording.name, round(audio_s, 3)
            job.fields, job.model = list(fields.pairs), file_request.model
            job.response_format = file_request.response_format
            n_bytes = recording.n_bytes + sum(len(name) + len(value) for name, value in job.fields)
            await jobs.add(job, recording.source, n_bytes)
    return JSONResponse(job.document, status_code=202, headers={"location": f"/v1/jobs/{job.id}"})


def job_request(fields: Fields) -> FileRequest:
    request = openai_files.transcription_request(fields)
    if request.stream:
        raise invalid_value("stream", "false, of what is answered later", "true")
    return request


async def job_list(request: Request) -> Response:
    query = query_of(request)
    limit = int(read_number("limit", query.get("limit", DEFAULT_LISTED), 1, MOST_LISTED))
    runner, owner = jobs_and_owner(request)
    jobs = runner.jobs_of(owner)
    if (after := query.get("after")) is not None:
        names = [job.id for job in jobs]
        if after not in names:
            raise invalid_value("after", "the id of a job that is here", "another")
        jobs = jobs[names.index(after) + 1 :]
    listed = [job.document for job in jobs[:limit]]
    return JSONResponse({"object": "list", "data": listed, "has_more": len(jobs) > limit})


async def job_info(request: Request) -> Response:
    jobs, owner = jobs_and_owner(request)
    body = await jobs.document_with_result(jobs.find(owner, request.path_params["id"]))
    return Response(body, media_type="application/json")


async def delete_job(request: Request) -> Response:
    jobs, owner = jobs_and_owner(request)
    job = jobs.find(owner, request.path_params["id"])
    await jobs.delete(job)
    return JSONResponse({"id": job.id, "object": "transcription.job", "deleted": True})


def jobs_and_owner(request: Request) -> tuple[JobRunner, str]:
    """Return the jobs of the server, and the name of the request's key ("": all without a named key)."""
    jobs, key = cast("JobRunner | None", request.app.state.jobs), key_of(request)
    if jobs is None:
        message = "jobs: expected a server that keeps them, got one without --jobs-dir"
        raise ApiError(message, status=403, code="not_allowed")
    return jobs, key.name if key else ""


JOB = api.an_object(
    *("id", "object", "status", "created_at", "progress", "error", "webhook"),
    id=api.STRING,
    status={"type": "string", "enum": [*JOB_STATUSES]},
    progress=api.NUMBER,
)
JOBS = api.an_object("data", "has_more", data={"type": "array", "items": JOB})
DELETED = api.an_object("id", "deleted")
URL: api.Schema = {"type": "string", "format": "uri", "maxLength": MAX_URL}
JOB_FORM = api.form({**api.form_schemas("openai"), WEBHOOK_URL: URL})
ONE_JOB = "/v1/jobs/{id}"
NAME = api.parameter("id", {"type": "string", "minLength": 1}, "path")
LIMIT = api.parameter("limit", {"type": "integer", "minimum": 1, "maximum": MOST_LISTED})
AFTER = api.parameter("after", api.STRING)
TAKEN, FOUND = api.json_answers(JOB, status="202"), api.json_answers(JOB)
API = api.Api(
    routes=(
        api.http_route(
            "POST", "/v1/jobs", post_job, "A recording answered later", TAKEN, body=JOB_FORM, reads_query=True
        ),
        api.http_route(
            "GET", "/v1/jobs", job_list, "Jobs, newest first", api.json_answers(JOBS), LIMIT, AFTER
        ),
        api.http_route("GET", ONE_JOB, job_info, "A job, and its result once it is there", FOUND, NAME),
        api.http_route(
            "DELETE", ONE_JOB, delete_job, "Stop a job and remove it", api.json_answers(DELETED), NAME
        ),
    )
)
