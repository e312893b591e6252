"""`/v1/audio/transcriptions` and `/v1/audio/translations`: recordings in, text out, whole or streamed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from sottovoce.formats.document import Json, json_text
from sottovoce.options.requests import TRANSLATION_FORMATS
from sottovoce.server import api
from sottovoce.server.errors import shutting_down, to_api_error
from sottovoce.server.fields import Fields
from sottovoce.server.openai_format import (
    SUPPORTED,
    TEXT_TYPES,
    Deltas,
    FileRequest,
    delta_event,
    done_event,
    json_answer,
    streamed_segment,
    text_answer,
    transcription_request,
    translation_request,
)
from sottovoce.server.services import run_until_first
from sottovoce.server.uploads import RunningJob, begin_job, received_form
from sottovoce.types import Transcript

logger = logging.getLogger(__name__)

KEEPALIVE_S = 15.0


async def transcriptions(request: Request) -> Response:
    return await respond(request, transcription_request)


async def translations(request: Request) -> Response:
    return await respond(request, translation_request)


async def respond(request: Request, read: Callable[[Fields], FileRequest]) -> Response:
    async with AsyncExitStack() as stack:
        job = await begin_job(request, stack, received_form(request), read)
        if job.request.stream:
            job.resources = stack.pop_all()
            return EventStream(job)
        transcript = await job.collected(request)
    if job.request.response_format in TEXT_TYPES:
        return text_response(transcript, job.request)
    return JSONResponse(json_answer(transcript, job.request))


def text_response(transcript: Transcript, request: FileRequest) -> Response:
    kind = TEXT_TYPES[request.response_format]
    return Response(text_answer(transcript, request), headers={"content-type": kind})


class EventStream(Response):
    """Server-sent events of one job, which ends with the stream."""

    media_type = "text/event-stream"

    def __init__(self, job: RunningJob) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._job = job
        self._one_at_a_time = anyio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def until_disconnected() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await run_until_first(
                partial(self._send_events, send),
                partial(self._send_keepalives, send),
                partial(self._end_when_aborted, send),
                until_disconnected,
            )
        finally:
            with anyio.CancelScope(shield=True):
                await self._job.resources.aclose()

    async def _send_events(self, send: Send) -> None:
        async for event in events(self._job):
            await self._send(send, f"data: {json_text(event)}\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, text: str) -> None:
        with anyio.fail_after(self._job.services.settings.limits.send_s):
            async with self._one_at_a_time:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def _send_keepalives(self, send: Send) -> None:
        while True:
            await anyio.sleep(KEEPALIVE_S)
            await self._send(send, ": still working\n\n")

    async def _end_when_aborted(self, send: Send) -> None:
        await self._job.services.aborted.wait()
        await self._send(send, f"data: {json_text(shutting_down().body)}\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def events(job: RunningJob) -> AsyncIterator[dict[str, Json]]:
    """Yield text deltas and the final event; an error is the last event."""
    deltas = Deltas()
    try:
        async for segment in job.handle:
            delta = deltas.add(segment)
            if delta:
                yield delta_event(delta, segment, job.request)
            if job.request.response_format in ("verbose_json", "diarized_json"):
                yield streamed_segment(segment, job.request)
        transcript = await job.handle.collect()
    except Exception as error:
        fault = to_api_error(error)
        if fault.status >= 500:
            logger.exception("transcription failed")
        yield fault.body
        return
    job.count(transcript)
    yield done_event(transcript, job.request, job.handle.n_prompt_tokens)


TRANSLATION_FIELDS = api.form_schemas("openai", SUPPORTED["translate"])
TRANSLATION_FIELDS["response_format"] = {"type": "string", "enum": [*TRANSLATION_FORMATS]}
API = api.Api(
    routes=(
        api.http_route(
            "POST",
            "/v1/audio/transcriptions",
            transcriptions,
            "Text in the language that is spoken, as OpenAI's API",
            api.answers({**api.TRANSCRIPT, "text/event-stream": api.STRING}),
            body=api.form(api.form_schemas("openai")),
        ),
        api.http_route(
            "POST",
            "/v1/audio/translations",
            translations,
            "Text in English, as OpenAI's API",
            api.answers(api.TRANSCRIPT),
            body=api.form(TRANSLATION_FIELDS),
        ),
    ),
)
