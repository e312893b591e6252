"""`/v1/listen`: Deepgram's API, audio over a socket or a recording in the body of a request.

What may be asked, `deepgram_params` knows; what is told, `deepgram_results`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from sottovoce.audio.live_container import LiveContainer
from sottovoce.formats.document import Json
from sottovoce.options.live import LiveOptions
from sottovoce.options.speakers import SpeakerOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.serving.access.gate import LISTEN_SUBPROTOCOLS
from sottovoce.serving.apis.deepgram_params import (
    DeepgramParams,
    checked_terms,
    recording_params,
    stream_params,
)
from sottovoce.serving.apis.deepgram_results import DeepgramResults, recording_document
from sottovoce.serving.live.connection import WebSocketConnection
from sottovoce.serving.live.transport import error_answer
from sottovoce.serving.parsing.client_json import read_json
from sottovoce.serving.parsing.client_values import read_list
from sottovoce.serving.parsing.faults import ApiError, logged_fault
from sottovoce.serving.parsing.fields import wrong
from sottovoce.serving.parsing.ignored import note_ignored
from sottovoce.serving.parsing.pcm import PcmReader
from sottovoce.serving.recordings.file_jobs import begin_job
from sottovoce.serving.recordings.requests import FileRequest
from sottovoce.serving.recordings.uploads import received_body
from sottovoce.serving.scheduling.scheduler import TranscriptionRequest
from sottovoce.serving.services import services_of
from sottovoce.types import Event


async def listen(socket: WebSocket) -> None:
    """Serve one stream, from the handshake to the close code."""
    await DeepgramConnection(socket).serve()


class DeepgramSocket(WebSocketConnection):
    """A client that sends audio as Deepgram's do: raw, or in a container, to its end."""

    def __init__(self, socket: WebSocket) -> None:
        super().__init__(socket)
        self._reader = PcmReader()
        self._container: LiveContainer | None = None

    async def open_stream(self, model: str, options: LiveOptions, audio: PcmReader | None) -> None:
        """Open the session, then the socket. audio: reads it where it is raw; None: it is in a container.

        Raises: ApiError, OptionError, ModelNotFoundError.
        """
        if audio is not None:
            self._reader = audio
        else:
            self._container = LiveContainer()
            self._held.callback(self._container.close)
        self.take_place()
        await self.open(model, options)
        first = next(iter(self.socket.scope["subprotocols"]), None)
        await self.websocket.accept(first if first in LISTEN_SUBPROTOCOLS else None)

    async def queue_stream(self, data: bytes) -> None:
        """Decode and queue audio. Raises: AudioError, ApiError for what is none."""
        if self._container is not None:
            await self.queue_container(self._container, data)
        else:
            await self.queue_bytes(self._reader, data)

    async def close_stream(self) -> None:
        """Work off what came, and close. Raises: as `queue_stream`."""
        if self._container is not None:
            await self.queue_container(self._container, b"")
        else:
            await self.queue_audio(self._reader.flush())
        await self.request_close()


class DeepgramConnection(DeepgramSocket):
    """A client of Deepgram's streams."""

    def __init__(self, socket: WebSocket) -> None:
        super().__init__(socket)
        self._params = DeepgramParams()
        self._results = DeepgramResults(self._params, self.transport.request_id)

    async def begin(self) -> None:
        """Open what the address asks for; what is wrong with it refuses the handshake.

        Raises: ApiError, OptionError, ModelNotFoundError.
        """
        params = stream_params(self.socket.query_params.multi_items(), self.services.registry)
        self._params = params
        self._results = DeepgramResults(params, self.transport.request_id)
        note_ignored(self.socket, params.ignored)
        audio = PcmReader(params.encoding, params.sample_rate) if params.is_raw else None
        await self.open_stream(params.model or "", params.options, audio)

    async def on_message(self, message: bytes | str) -> None:
        """Take audio, or a command; a wrong one leaves the stream open."""
        if isinstance(message, str):
            await self._take_text(message)
        elif message:
            self._results.add_bytes(message)
            await self.queue_stream(message)
        else:  # older clients end the stream so
            await self.close_stream()

    def render(self, events: Sequence[Event]) -> Iterator[dict[str, Json]]:
        """Yield the results that follow from events."""
        self._results.behind_s = round(self.behind_s, 3)
        return self._results.render(events, self.received_s)

    def error_document(self, fault: ApiError) -> dict[str, Json]:
        """Render a fault as Deepgram does."""
        return {"type": "Error", "variant": fault.code or fault.kind, "description": fault.message}

    async def on_close(self) -> None:
        """Say the rest, and what there is to say of the whole."""
        events = await self.session.close()
        await self.send(*self._results.ended(events, self.received_s))

    async def _take_text(self, text: str) -> None:
        try:
            message = read_json(text)
            if not isinstance(message, dict):
                raise ApiError("message: expected a JSON object with a type", code="invalid_message")
            kind = message.get("type")
            if kind == "CloseStream":
                await self.close_stream()
            elif kind == "Finalize":
                await self.queue.put(self._finalize)
            elif kind == "Configure":
                await self._take_configure(message)
            elif kind != "KeepAlive":
                raise wrong("type", "Finalize, KeepAlive, CloseStream or Configure", f"'{str(kind)[:50]}'")
        except ApiError as fault:
            document = self.error_document(fault)
            await self.send({**document, "variant": "SchemaError", "message": text[:200]})

    async def _finalize(self) -> None:
        events = await self.session.finalize()
        await self.send(*self._results.finalized(events, self.received_s))

    async def _take_configure(self, message: dict[str, object]) -> None:
        try:
            terms = configured_terms(message)
        except ApiError as fault:
            await self.send(self._configure_failure(fault, message.get("keyterms")))
        else:
            await self.queue.put(partial(self._configure, terms))

    async def _configure(self, terms: tuple[str, ...] | None) -> None:
        """Go on with other words likely to be said; None: with those of before."""
        answer: dict[str, Json] = {"type": "ConfigureSuccess", "request_id": self.transport.request_id}
        if terms is not None:
            if (fault := await self.attempt(self._change_terms(terms))) is not None:
                await self.send(self._configure_failure(fault, None))
                return
            answer["keyterms"] = list(terms)
        await self.send(answer)

    async def _change_terms(self, terms: tuple[str, ...]) -> None:
        params = replace(self._params, terms=terms)
        events = await self.session.configure(params.options)
        self._params = params
        await self.emit(events)

    def _configure_failure(self, fault: ApiError, keyterms: object) -> dict[str, Json]:
        """Answer a Configure that cannot be taken; keyterms: those that it asks for."""
        is_list = isinstance(keyterms, list) and all(isinstance(term, str) for term in keyterms)
        is_too_much = is_list and fault.param in ("keyterm", "keyterms")
        return {
            "type": "ConfigureFailure",
            "request_id": self.transport.request_id,
            "code": "CONFIGURE_KEYTERM_LIMIT_EXCEEDED" if is_too_much else "CONFIGURE_INTERNAL_ERROR",
            "description": fault.message,
        }


async def listen_recording(request: Request) -> Response:
    """Answer one recording, the body of a request; an ApiError is an answer too."""
    try:
        params = recording_params(request.query_params.multi_items(), services_of(request).registry)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            message = "url: recordings are not fetched from elsewhere: send the audio as the body"
            raise ApiError(message, param="url", code="unsupported_value")
        received = received_body(request, (params.encoding, params.sample_rate) if params.is_raw else None)
        async with AsyncExitStack() as stack:
            job = await begin_job(request, stack, received, lambda _: file_request_of(params))
            transcript = await job.collected(request)
    except ClientDisconnect:
        raise
    except Exception as error:
        return error_answer(request, logged_fault(error, request.state.request_id))
    return JSONResponse(
        recording_document(transcript, params, request.state.request_id, job.recording.sha256)
    )


def file_request_of(params: DeepgramParams) -> FileRequest:
    """Return the request of a recording, as the rest of the server takes it."""
    options = TranscribeOptions(
        word_timestamps=True, speakers=SpeakerOptions() if params.has_speakers else None
    )
    transcription = TranscriptionRequest(options, languages=params.languages, phrases=params.terms)
    model = params.model
    return FileRequest(
        "transcribe", model, "verbose_json", transcription, words=True, segments=False, ignored=params.ignored
    )


def configured_terms(message: dict[str, object]) -> tuple[str, ...] | None:
    """Read the terms of a Configure; None: it has none. Raises: ApiError 400."""
    given = message.get("keyterms")
    if message.get("features"):
        raise ApiError("features: not done here", param="features", code="unsupported_value")
    return None if given is None else checked_terms(read_list("keyterms", given))
