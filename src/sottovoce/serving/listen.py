"""`/v1/listen`: Deepgram's API, audio over a socket or a recording in the body of a request.

What may be asked, `listen_wish` knows; what is told, `listen_items`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from sottovoce.formats.document import Json
from sottovoce.serving.client_json import read_json
from sottovoce.serving.exchange import DONE, Exchange, last_words, logged
from sottovoce.serving.faults import UNAVAILABLE, ApiError, logged_fault
from sottovoce.serving.fields import Fields, wrong
from sottovoce.serving.gate import LISTEN_SUBPROTOCOLS
from sottovoce.serving.listen_items import Results
from sottovoce.serving.listen_recording import recording_document
from sottovoce.serving.listen_wish import ListenWish, checked_terms, recording_wish, stream_wish
from sottovoce.serving.observed import deny, listen_error
from sottovoce.serving.pcm import PcmReader
from sottovoce.serving.protocol import list_of
from sottovoce.serving.requests import FileRequest, transcription_request
from sottovoce.serving.scheduler import Live
from sottovoce.serving.state import Services, services_of
from sottovoce.serving.transcriptions import begun_with, collected
from sottovoce.serving.uploads import received_body
from sottovoce.speakers.options import SpeakerOptions
from sottovoce.types import Samples


@dataclass(frozen=True, slots=True)
class Finalize:
    """Say now what was heard."""


@dataclass(frozen=True, slots=True)
class Configure:
    """Go on with these words likely to be said; None: as before."""

    terms: tuple[str, ...] | None


async def listen(socket: WebSocket) -> None:
    """One stream, from the handshake to the close code; what is wrong with the address refuses it."""
    services = services_of(socket)
    async with AsyncExitStack() as stack:
        try:
            wish = stream_wish(socket.query_params.multi_items(), services.shelf)
            stack.enter_context(services.session())
            scheduler = await stack.enter_async_context(services.shelf.use(wish.model or ""))
            services.check_wait(scheduler)
            session = await scheduler.open(wish.options)
        except Exception as error:
            await deny(socket, logged(error, socket))
            return
        stack.callback(session.discard)
        offered = socket.scope["subprotocols"]
        await socket.accept(subprotocol=offered[0] if offered and offered[0] in LISTEN_SUBPROTOCOLS else None)
        async with last_words(socket, services, listen_error):
            await ListenTalk(socket, services, session, wish).run()


class ListenTalk(Exchange[Finalize | Configure]):
    """One client and its stream."""

    def __init__(self, socket: WebSocket, services: Services, session: Live, wish: ListenWish) -> None:
        super().__init__(socket, services)
        self._session = session
        session.more = self.inbox.take_audio
        self._wish = wish
        self._reader = PcmReader(wish.encoding, wish.sample_rate)
        self._request_id: str = socket.scope["state"]["request_id"]
        self._results = Results(wish, self._request_id, wish.model or "")

    async def on_binary(self, data: bytes) -> None:
        """Take audio; none at all ends the stream, as older clients do."""
        if data:
            self._results.hear(data)
            await self.hear(self._reader.read(data))
        else:
            await self._close()

    async def on_text(self, text: str) -> None:
        """Act on a message; a wrong one leaves the stream open."""
        try:
            message = message_of(text)
            kind = message.get("type")
            if kind == "CloseStream":
                await self._close()
            elif kind == "Finalize":
                await self.inbox.put(Finalize())
            elif kind == "Configure":
                await self._take_configure(message)
            elif kind != "KeepAlive":
                raise wrong("type", "Finalize, KeepAlive, CloseStream or Configure", f"'{str(kind)[:50]}'")
        except ApiError as error:
            await self.send({**listen_error(error), "variant": "SchemaError", "message": text[:200]})

    async def on_audio(self, samples: Samples) -> None:
        told = await self._session.push(samples)
        await self._send_all(self._results.tell(told, self._session.received_s))
        self.count(self._session.received_s)

    async def on_word(self, word: Finalize | Configure) -> None:
        if isinstance(word, Configure):
            await self._configure(word)
        else:
            told = await self._session.finalize()
            await self._send_all(self._results.finalized(told, self._session.received_s))

    async def on_ending(self) -> None:
        told = await self._session.close()
        await self._send_all(self._results.ended(told, self._session.received_s))

    async def _close(self) -> None:
        await self.hear(self._reader.flush())
        await self.end(DONE)

    async def _take_configure(self, message: dict[str, object]) -> None:
        try:
            await self.inbox.put(Configure(configured_terms(message)))
        except ApiError as fault:
            await self.send(configure_failure(fault, message.get("keyterms"), self._request_id))

    async def _configure(self, word: Configure) -> None:
        answer: dict[str, Json] = {"type": "ConfigureSuccess", "request_id": self._request_id}
        if word.terms is not None:
            wish = replace(self._wish, terms=word.terms)
            try:
                told = await self._session.configure(wish.options)
            except Exception as error:
                fault = logged(error, self.socket)
                if fault.status >= 500 and fault.code != UNAVAILABLE:
                    raise
                await self.send(configure_failure(fault, None, self._request_id))
                return
            self._wish = wish
            await self._send_all(self._results.tell(told, self._session.received_s))
            answer["keyterms"] = list(word.terms)
        await self.send(answer)

    async def _send_all(self, documents: Iterable[dict[str, Json]]) -> None:
        for document in documents:
            await self.send(document)


async def listen_recording(request: Request) -> Response:
    """The answer to one recording."""
    services = services_of(request)
    try:
        wish = recording_wish(request.query_params.multi_items(), services.shelf)
        async with AsyncExitStack() as stack:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == "application/json":
                message = "url: recordings are not fetched from elsewhere: send the audio as the body"
                raise ApiError(message, param="url", code="unsupported_value")
            raw = (wish.encoding, wish.sample_rate) if wish.is_raw else None
            with services.upload():
                received = received_body(request, services.settings.limits, raw)
                recording = await stack.enter_async_context(received)
            stack.enter_context(services.recording())
            wanted = with_speakers(transcription_request(Fields(form_fields(wish))), wish)
            opened = await begun_with(services, wanted, recording, stack)
            transcript = await collected(request, opened.job)
            opened.note(transcript)
    except ClientDisconnect:
        raise
    except Exception as error:
        fault = logged_fault(error, request.state.request_id)
        body = {"err_code": fault.code, "err_msg": fault.message, "request_id": request.state.request_id}
        return JSONResponse(body, status_code=fault.status, headers=dict(fault.headers))
    return JSONResponse(recording_document(transcript, wish, request.state.request_id, recording.sha256))


def form_fields(wish: ListenWish) -> list[tuple[str, str]]:
    """The wish as fields of OpenAI's form, which the rest of the server knows."""
    fields = [("response_format", "verbose_json"), ("timestamp_granularities[]", "word")]
    fields += [("model", wish.model or "")]
    fields += [("languages[]", language) for language in wish.languages]
    return fields + [("keywords[]", term) for term in wish.terms]


def with_speakers(wanted: FileRequest, wish: ListenWish) -> FileRequest:
    """The request, with the telling apart of speakers where that is asked for."""
    if not wish.has_speakers:
        return wanted
    options = replace(wanted.wish.options, speakers=SpeakerOptions())
    return replace(wanted, wish=replace(wanted.wish, options=options))


def message_of(text: str) -> dict[str, object]:
    """Raises: ApiError 400 for what is no object."""
    message = read_json(text)
    if not isinstance(message, dict):
        raise ApiError("message: expected a JSON object with a type", code="invalid_message")
    return message


def configured_terms(message: dict[str, object]) -> tuple[str, ...] | None:
    """The terms of a Configure. Raises: ApiError 400."""
    given = message.get("keyterms")
    if message.get("features"):
        raise ApiError("features: not done here", param="features", code="unsupported_value")
    return None if given is None else checked_terms(list_of("keyterms", given))


def configure_failure(fault: ApiError, keyterms: object, request_id: str) -> dict[str, Json]:
    """The answer to a Configure that cannot be taken; keyterms: those that it asks for."""
    is_list = isinstance(keyterms, list) and all(isinstance(term, str) for term in keyterms)
    is_too_much = is_list and fault.param in ("keyterm", "keyterms")
    return {
        "type": "ConfigureFailure",
        "request_id": request_id,
        "code": "CONFIGURE_KEYTERM_LIMIT_EXCEEDED" if is_too_much else "CONFIGURE_INTERNAL_ERROR",
        "description": fault.message,
    }
