"""One recording of a request, by whatever API it came: received, checked, transcribed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

import anyio
from starlette.requests import Request

from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.fields import Fields
from sottovoce.serving.parsing.ignored import note_ignored
from sottovoce.serving.recordings.decode_pool import Slices
from sottovoce.serving.recordings.requests import FileRequest
from sottovoce.serving.recordings.uploaded_file import UploadedFile
from sottovoce.serving.recordings.uploads import check_duration, require_file
from sottovoce.serving.scheduling.scheduler import FileJob
from sottovoce.serving.services import Services, key_of, services_of, unless
from sottovoce.types import Transcript

T = TypeVar("T")

LOOK_EVERY_S = 0.5
"""How often is looked whether the client is still there."""


@dataclass(slots=True)
class RunningJob:
    """A request with its job begun. resources: what it needs until it is answered."""

    request: FileRequest
    recording: UploadedFile
    handle: FileJob
    services: Services
    resources: AsyncExitStack

    def count(self, transcript: Transcript) -> None:
        """Count what was done."""
        self.services.metrics.file_seconds.inc(transcript.duration)

    async def collected(self, request: Request) -> Transcript:
        """Return the whole transcript; ends early when the client has gone.

        Raises: ApiError 499 then, which nobody reads.
        """
        transcript = await while_there(request, self.handle.collect())
        self.count(transcript)
        return transcript


async def while_there(request: Request, work: Awaitable[T]) -> T:
    """Return what is awaited; its waiting is cancelled when the client has gone.

    Raises: ApiError 499 then, which nobody reads.
    """

    async def gone() -> None:
        while not await request.is_disconnected():
            await anyio.sleep(LOOK_EVERY_S)

    fault = ApiError("the client has gone", status=499, code="client_closed_request")
    return await unless(gone, work, fault)


async def begin_job(
    request: Request,
    stack: AsyncExitStack,
    received: AbstractAsyncContextManager[tuple[Fields, UploadedFile | None]],
    read: Callable[[Fields], FileRequest],
    *,
    adapt: Callable[[FileRequest, UploadedFile], Slices[FileRequest]] | None = None,
) -> RunningJob:
    """Receive a recording, check all of the request, and begin with it; the stack ends it.

    read: the request from the fields of its form, called where recordings of known speakers in it may be
    decoded. adapt: changes the request to suit the recording,
    where that is decoded.
    Raises: ApiError, and the errors of the library.
    """
    services = services_of(request)
    with services.upload():
        fields, upload = await stack.enter_async_context(received)
    stack.enter_context(services.recording())
    file_request = await services.decoding.call(lambda: read(fields))
    recording = require_file(upload)
    name = services.registry.resolve(file_request.model)
    note_ignored(request, services.registry.ignored(file_request.model, file_request.ignored))
    checked = check_duration(recording, services.settings.limits.duration_s)
    audio_s = await while_there(request, services.decoding.run(checked))
    services.key_limits.count_audio(key_of(request), audio_s)
    if adapt is not None:
        file_request = await while_there(request, services.decoding.run(adapt(file_request, recording)))
        recording.seek(0)
    begun = services.registry.transcribing(name, recording.source, file_request.transcription)
    handle = await stack.enter_async_context(begun)
    return RunningJob(file_request, recording, handle, services, stack)
