"""`/v1/audio/transcriptions` and `/v1/audio/translations`: recordings in, text out, whole or in pieces."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from sottovoce.formats.document import Json, json_text
from sottovoce.serving.answers import (
    TEXT_TYPES,
    Deltas,
    delta_event,
    done_event,
    json_answer,
    speaker_segment,
    text_answer,
)
from sottovoce.serving.faults import ApiError, fault_of
from sottovoce.serving.fields import Fields
from sottovoce.serving.requests import FileRequest, transcription_request, translation_request
from sottovoce.serving.scheduler import FileJob, Scheduler
from sottovoce.serving.state import Services, services_of
from sottovoce.serving.uploads import UploadedFile, check_duration, received_form, require_file
from sottovoce.types import Transcript

logger = logging.getLogger(__name__)

SIGN_OF_LIFE_S = 15.0
"""Between two pieces of a stream, so that proxies do not take it for dead."""
LOOK_EVERY_S = 0.5
"""How often is looked whether the client is still there."""
MOST_PROMPT_TOKENS = 223


@dataclass(slots=True)
class _Opened:
    """A request with its job begun; the stack holds what it needs until it is answered."""

    request: FileRequest
    job: FileJob
    scheduler: Scheduler
    services: Services
    stack: AsyncExitStack

    @property
    def n_prompt_tokens(self) -> int:
        """Of the prompt, as far as the model sees it."""
        prompt = self.request.wish.options.initial_prompt
        tokens = self.scheduler.model.tokenizer.encode(" " + prompt.strip()) if prompt else []
        return min(len(tokens), MOST_PROMPT_TOKENS)

    def note(self, transcript: Transcript) -> None:
        """Count what was done."""
        self.services.metrics.file_seconds.add(transcript.duration)


async def transcriptions(request: Request) -> Response:
    """Text in the language that is spoken."""
    return await answered(request, transcription_request)


async def translations(request: Request) -> Response:
    """Text in English."""
    return await answered(request, translation_request)


async def answered(request: Request, read: Callable[[Fields], FileRequest]) -> Response:
    """The answer to one form.

    Raises: ApiError, and the errors of the library.
    """
    async with AsyncExitStack() as stack:
        opened = await begun(request, read, stack)
        if opened.request.stream:
            opened.stack = stack.pop_all()
            return EventStream(opened)
        transcript = await collected(request, opened.job)
        opened.note(transcript)
    if opened.request.response_format in TEXT_TYPES:
        kind = TEXT_TYPES[opened.request.response_format]
        return Response(text_answer(transcript, opened.request), headers={"content-type": kind})
    return JSONResponse(json_answer(transcript, opened.request))


async def begun(request: Request, read: Callable[[Fields], FileRequest], stack: AsyncExitStack) -> _Opened:
    """Take the form, check all of it, and begin."""
    services = services_of(request)
    with services.upload():
        form = received_form(request, services.settings.limits)
        fields, upload = await stack.enter_async_context(form)
    stack.enter_context(services.recording())
    wanted = read(fields)
    return await begun_with(services, wanted, require_file(upload), stack)


async def begun_with(
    services: Services,
    wanted: FileRequest,
    recording: UploadedFile,
    stack: AsyncExitStack,
    *,
    fitted: Callable[[FileRequest, UploadedFile], FileRequest] | None = None,
) -> _Opened:
    """Look at a recording, and begin with it; the stack ends it.

    fitted: the request as it suits the recording, asked in a thread that may wait.
    """
    name = services.shelf.name_of(wanted.model)
    await anyio.to_thread.run_sync(check_duration, recording, services.settings.limits.duration_s)
    if fitted is not None:
        wanted = await anyio.to_thread.run_sync(fitted, wanted, recording)
        recording.seek(0)
    scheduler = await stack.enter_async_context(services.shelf.use(name))
    job = await scheduler.transcribe(recording.source, wanted.wish)
    stack.callback(job.close)
    return _Opened(wanted, job, scheduler, services, stack)


async def collected(request: Request, job: FileJob) -> Transcript:
    """The whole transcript; ends early when the client has gone.

    Raises: ApiError 499 then, which nobody reads.
    """
    found: list[Transcript] = []

    async def collect() -> None:
        found.append(await job.collect())
        tasks.cancel_scope.cancel()

    async def look() -> None:
        while not await request.is_disconnected():
            await anyio.sleep(LOOK_EVERY_S)
        tasks.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collect)
            tasks.start_soon(look)
    except BaseException as error:  # a group's; one alone says what it is about
        raise alone(error) from None
    if not found:
        raise ApiError("the client has gone", status=499, code="client_closed_request")
    return found[0]


class EventStream(Response):
    """Server-sent events of one job, which ends with the stream, however that ends."""

    media_type = "text/event-stream"

    def __init__(self, opened: _Opened) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._opened = opened
        self._one_at_a_time = anyio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._until_gone, receive, tasks.cancel_scope)
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                tasks.start_soon(self._signs_of_life, send)
                async for event in events(self._opened):
                    await self._send(send, f"data: {json_text(event)}\n\n")
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._opened.stack.aclose()

    async def _send(self, send: Send, text: str) -> None:
        """Raises: TimeoutError when the client does not take it."""
        with anyio.fail_after(self._opened.services.settings.limits.send_s):
            async with self._one_at_a_time:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def _signs_of_life(self, send: Send) -> None:
        while True:
            await anyio.sleep(SIGN_OF_LIFE_S)
            await self._send(send, ": still working\n\n")

    async def _until_gone(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()


async def events(opened: _Opened) -> AsyncIterator[dict[str, Json]]:
    """Deltas as segments are found, and the end; an error is the last event."""
    deltas = Deltas()
    try:
        async for segment in opened.job:
            delta = deltas.add(segment)
            if delta:
                yield delta_event(delta, segment, opened.request)
            if opened.request.response_format == "diarized_json":
                yield speaker_segment(segment)
        transcript = await opened.job.collect()
    except Exception as error:
        fault = fault_of(error)
        if fault.status >= 500:
            logger.exception("transcription failed")
        yield fault.body
        return
    opened.note(transcript)
    yield done_event(transcript, opened.request, opened.n_prompt_tokens)


def alone(error: BaseException) -> BaseException:
    """The one error of a group of tasks, or the group."""
    while (inner := getattr(error, "exceptions", None)) is not None and len(inner) == 1:
        error = inner[0]
    return error
