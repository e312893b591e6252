"""Recordings of requests: received into a temporary file within limits of size and time, and checked.

`audio.io` reads the file by its bytes alone, so that a playlist cannot open other files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from email.message import Message
from functools import partial
from mimetypes import guess_extension
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, TypeVar, cast

import anyio
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from sottovoce.audio.io import Source, open_audio
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.server.auth import ApiKey
from sottovoce.server.errors import ApiError
from sottovoce.server.fields import RECORDINGS, Fields, field_name, note_ignored
from sottovoce.server.scheduler import FileJob, TranscriptionRequest
from sottovoce.server.services import Services, cancel_when, key_of, services_of
from sottovoce.server.settings import ServerLimits
from sottovoce.server.worker import Slices
from sottovoce.types import SAMPLE_RATE, Transcript

FILE_FIELDS = ("file", "audio_file")
"""Names of the recording; the second is whisper-asr-webservice's."""
MAX_FIELDS, FIELD_BYTES = 1_000, 64 * 1024
REFERENCE_BYTES = 8 * 1024 * 1024
"""Of a field that is a recording: 30 s of stereo at 48 kHz, in base64."""
FORM_BYTES = 4 * REFERENCE_BYTES + 1024 * 1024
MIN_BYTES_PER_S = 1_000
"""Less than any recording has."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRequest(TranscriptionRequest):
    """Options of a transcription and of its answer.

    max_len: most characters of a segment. offset_n: added to the numbers of `srt`. ignored: parameters
    without effect.
    """

    model: str | None = None
    response_format: str = "json"
    words: bool = False
    segments: bool = True
    logprobs: bool = False
    stream: bool = False
    max_len: int | None = None
    offset_n: int = 0
    language_probabilities: bool = True
    ignored: tuple[str, ...] = ()


class UploadedFile:
    """A recording in a temporary file, as `audio.io` reads it. sha256: hexadecimal, or ""."""

    def __init__(self, upload: UploadFile, sha256: str = "") -> None:
        self.sha256 = sha256
        name = (upload.filename or "").replace("\\", "/").rsplit("/", 1)[-1]
        shown = "".join(letter for letter in name if letter.isprintable())[:200]
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
        return cast(BinaryIO, self)

    @property
    def n_bytes(self) -> int:
        n_bytes = self.seek(0, os.SEEK_END)
        self.seek(0)
        return n_bytes


class _FormParser(MultiPartParser):
    _n_bytes = 0

    def on_headers_finished(self) -> None:
        part = self._current_part
        if (name := filename_of(part.content_disposition or b"", part.item_headers)) is not None:
            part.content_disposition = b'%s; filename="%s"' % (part.content_disposition, name.encode())
        super().on_headers_finished()

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        part = self._current_part
        if part.file is None:
            self._n_bytes += end - start
            if self._n_bytes > FORM_BYTES:
                raise MultiPartException(f"Fields exceeded maximum size of {FORM_BYTES // 1024}KB.")
            most = REFERENCE_BYTES if part.field_name.startswith(RECORDINGS) else FIELD_BYTES
            self.max_part_size = most
            if len(part.data) + end - start > most:
                name = part.field_name[:100]
                raise MultiPartException(f"Field '{name}' exceeded maximum size of {most // 1024}KB.")
        super().on_part_data(data, start, end)


def filename_of(disposition: bytes, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return a file name for a part without `filename`, or None if it has one or is not a file.

    The name is `filename*` (RFC 5987), or, for a recording without it, "upload" with the extension of its
    content type.
    """
    options = parse_options_header(disposition)[1]
    if b"filename" in options:
        return None
    if b"filename*" in disposition.lower():
        message = Message()
        message["content-disposition"] = disposition.decode("latin-1")
        if name := message.get_filename(""):
            return "".join(letter for letter in name if letter.isprintable() and letter not in '"\\')
    if options.get(b"name", b"").decode("latin-1") not in FILE_FIELDS:
        return None
    kinds = (value for name, value in headers if name == b"content-type")
    kind = parse_options_header(next(kinds, b""))[0].decode("latin-1")
    return f"upload{guess_extension(kind) or ''}"


@asynccontextmanager
async def received_form(request: Request) -> AsyncIterator[tuple[Fields, UploadedFile | None]]:
    """Receive the fields of a form and of the query, and the recording, until the context ends.

    Raises: ApiError 4xx.
    """
    services = services_of(request)
    limits = services.settings.limits
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise ApiError(
            f"expected multipart/form-data, got '{kind[:100] or 'no content type'}'", code="invalid_form"
        )
    check_charset(kind)
    check_length(request, limits)
    with services.uploaded_bytes() as take:
        pieces = limited_stream(request, limits, take)
        parser = _FormParser(request.headers, pieces, max_files=1, max_fields=MAX_FIELDS)
        try:
            form = await parser.parse()
        except MultiPartException as error:
            message = f"expected a form with one file, got '{error.message}'"
            raise ApiError(message, code="invalid_form") from error
        try:
            yield split_form(form, request)
        finally:
            await form.close()


def split_form(form: FormData, request: Request) -> tuple[Fields, UploadedFile | None]:
    """Return the fields and the recording. A field of the form counts more than one of the query."""
    pairs: list[tuple[str, str]] = []
    recording: UploadedFile | None = None
    for name, value in form.multi_items():
        if isinstance(value, str):
            pairs.append((name, value))
        elif name in FILE_FIELDS:
            recording = UploadedFile(value)
        else:
            message = f"{name[:100]}: expected the recording as 'file'"
            raise ApiError(message, param=name[:100], code="invalid_form")
    names = {field_name(name) for name, _ in pairs}
    query = request.query_params.multi_items()
    note_ignored(request, (name for name, _ in query if field_name(name) in names))
    return Fields([*pairs, *(pair for pair in query if field_name(pair[0]) not in names)]), recording


@asynccontextmanager
async def received_body(request: Request) -> AsyncIterator[tuple[Fields, UploadedFile]]:
    """Receive a body as a recording, until the context ends. Raises: ApiError 400, 408, 413."""
    services = services_of(request)
    limits = services.settings.limits
    check_length(request, limits)
    with services.uploaded_bytes() as take, SpooledTemporaryFile(max_size=1024 * 1024) as file:
        upload = UploadFile(cast(BinaryIO, file), filename="the body", size=0)
        digest = hashlib.sha256()
        async for piece in limited_stream(request, limits, take):
            digest.update(piece)
            await upload.write(piece)
        if not upload.size:
            raise ApiError("body: expected a recording, got 0 bytes", code="missing_parameter")
        await upload.seek(0)
        yield Fields([]), UploadedFile(upload, digest.hexdigest())


async def whole_body(pieces: AsyncIterable[bytes], most_bytes: int) -> bytes:
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) > most_bytes:
            message = f"body: expected at most {most_bytes} bytes"
            raise ApiError(message, status=413, code="body_too_large")
    return bytes(body)


async def limited_stream(
    request: Request, limits: ServerLimits, take: Callable[[int], None] = lambda n_bytes: None
) -> AsyncGenerator[bytes, None]:
    """Yield the body of a request. take: counts bytes. Raises: ApiError 413, or 408 if data stops or
    trickles.
    """
    n_bytes = 0
    stream = request.stream()
    began_s = anyio.current_time()
    while True:
        left_s = began_s + limits.upload_s + n_bytes / MIN_BYTES_PER_S - anyio.current_time()
        with anyio.move_on_after(min(limits.upload_s, left_s)) as waiting:
            piece = await anext(stream, None)
        if waiting.cancelled_caught:
            message = (
                f"upload: expected more within {limits.upload_s:g} s, and {MIN_BYTES_PER_S} bytes a second"
            )
            raise ApiError(message, status=408, code="upload_timeout")
        if piece is None:
            return
        n_bytes += len(piece)
        check_size(n_bytes, limits)
        take(len(piece))
        yield piece


def check_charset(kind: str) -> None:
    """Refuse charsets that are slow to decode."""
    named = parse_options_header(kind)[1].get(b"charset", b"utf-8").decode("latin-1")
    if named.lower() not in ("utf-8", "utf8", "us-ascii", "iso-8859-1"):
        raise ApiError(f"content type: expected the charset utf-8, got '{named[:50]}'", code="invalid_form")


def check_length(request: Request, limits: ServerLimits) -> None:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal():
        check_size(int(announced), limits)


def check_size(n_bytes: int, limits: ServerLimits) -> None:
    if n_bytes > limits.upload_bytes:
        most_mb = limits.upload_bytes / 1e6
        message = f"upload: expected at most {most_mb:g} MB, got {n_bytes / 1e6:.1f} MB or more"
        raise ApiError(message, status=413, param="file", code="file_too_large")


def check_duration(upload: UploadedFile, options: TranscribeOptions, most_s: float) -> Slices[float]:
    """Decode a recording and return its seconds. Raises: AudioError, ApiError 413.

    Durations in headers are not trusted: a small file may hold days of silence.
    """
    n_samples = 0
    upload.seek(0)
    with open_audio(Source.of(upload.source, options)) as reader:
        for chunk in reader:
            n_samples += len(chunk.samples)
            if n_samples > most_s * SAMPLE_RATE:
                break
            yield
    upload.seek(0)
    if n_samples > most_s * SAMPLE_RATE:
        message = f"{upload.name}: expected at most {most_s:g} s of audio, got more"
        raise ApiError(message, status=413, param="file", code="audio_too_long")
    return n_samples / SAMPLE_RATE


@dataclass(slots=True)
class RunningJob:
    """A request whose transcription has begun."""

    request: FileRequest
    recording: UploadedFile
    handle: FileJob
    services: Services

    async def collected(self, request: Request) -> Transcript:
        transcript = await cancel_on_disconnect(request, self.handle.collect())
        self.services.metrics.file_seconds.inc(transcript.duration)
        return transcript


async def cancel_on_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Raises: ApiError 499 when the client disconnects."""

    async def gone() -> None:
        while not await request.is_disconnected():
            await anyio.sleep(0.5)

    fault = ApiError("the client has gone", status=499, code="client_closed_request")
    return await cancel_when(gone, work, fault)


def with_rules(request: FileRequest, key: ApiKey | None) -> FileRequest:
    """Add the replacements of a key."""
    return replace(request, options=request.options.with_rules(None if key is None else key.replacements))


async def checked_request(
    request: Request, read: Callable[[], FileRequest], recording: UploadedFile | None
) -> tuple[FileRequest, UploadedFile, float]:
    """Read a request and decode its recording once; return both and the seconds of audio."""
    services = services_of(request)
    file_request = with_rules(await services.decoding.call(read), key_of(request))
    if recording is None:
        raise ApiError("file: expected a recording, got none", param="file", code="missing_parameter")
    services.registry.resolve(file_request.model)
    note_ignored(request, services.registry.ignored(file_request.model, file_request.ignored))
    checked = check_duration(recording, file_request.options, services.settings.limits.duration_s)
    audio_s = await cancel_on_disconnect(request, services.decoding.run(checked))
    services.key_limits.count_audio(key_of(request), audio_s)
    return file_request, recording, audio_s


@asynccontextmanager
async def running_job(
    request: Request,
    received: AbstractAsyncContextManager[tuple[Fields, UploadedFile | None]],
    read: Callable[[Fields], FileRequest],
    *,
    adapt: Callable[[FileRequest, UploadedFile], FileRequest] | None = None,
) -> AsyncIterator[RunningJob]:
    """Receive a recording, check the request, and begin to transcribe it, until the context ends.

    read, adapt: read the fields, and change the request by the recording, in a decoding thread.
    """
    services = services_of(request)
    async with AsyncExitStack() as stack:
        with services.upload():
            fields, upload = await stack.enter_async_context(received)
        stack.enter_context(services.recording())
        file_request, recording, _ = await checked_request(request, lambda: read(fields), upload)
        name = services.registry.resolve(file_request.model)
        if adapt is not None:
            adapted = services.decoding.call(partial(adapt, file_request, recording))
            file_request = await cancel_on_disconnect(request, adapted)
            recording.seek(0)
        async with services.registry.transcribing(name, recording.source, file_request) as handle:
            yield RunningJob(file_request, recording, handle, services)
