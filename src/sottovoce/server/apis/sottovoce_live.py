"""`/v1/live`: the server's own live protocol over a WebSocket (docs/protocol.md)."""

from __future__ import annotations

import base64
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket

from sottovoce.errors import TranslationError
from sottovoce.formats.document import Json, event_document
from sottovoce.options.schema import changed
from sottovoce.options.transcribe import check_speaker_names
from sottovoce.server import fields
from sottovoce.server.api import Api, SocketRoute
from sottovoce.server.errors import ApiError, invalid_options, invalid_value, logged_api_error
from sottovoce.server.fields import LIVE_REQUEST, MODEL
from sottovoce.server.live import PcmReader, WebSocketConnection
from sottovoce.server.scheduler import SessionHandle
from sottovoce.server.services import Services, key_of, services_of
from sottovoce.server.settings import TranslationSettings
from sottovoce.streaming.options import LiveOptions
from sottovoce.text.languages import language_codes
from sottovoce.translation.chat import ChatTranslator
from sottovoce.translation.live_translator import LiveTranslation, LiveTranslator, mark_newest
from sottovoce.translation.whisper_translate import N_NEW_WORDS, TARGET
from sottovoce.types import SAMPLE_RATE, Event, Final, Floats, Partial

SUBPROTOCOL = "sottovoce"
MAX_NAME = 50
FIELDS = fields.fields_of("sottovoce", fields.LIVE)
KNOWN: fields.KnownFields = fields.known_fields(*FIELDS)
FIXED = tuple(option.key for option in (MODEL, *LIVE_REQUEST))
logger = logging.getLogger(__name__)
FINISH_TIMEOUT_S = 20.0
Sender = Callable[[dict[str, Json]], Awaitable[None]]
NOT_TRANSLATED = ApiError(
    "translation: the server that translates did not do so; what is said goes on",
    status=502,
    code="translation_failed",
)


def check_handshake(connection: HTTPConnection) -> None:
    services = services_of(connection)
    _, name = read_request(services, connection)
    with services.key_limits.session(key_of(connection)), services.session():
        services.check_capacity(name)


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """translate_to: "": no translation. sources: names of the channels; empty: one channel."""

    options: LiveOptions = field(default_factory=LiveOptions)
    model: str | None = None
    encoding: str = "s16le"
    sample_rate: int = SAMPLE_RATE
    translate_to: str = ""
    sources: tuple[str, ...] = ()

    def reader(self) -> PcmReader:
        """Raises: ApiError 400."""
        n_channels = len(self.sources) or 1
        return PcmReader(self.encoding, self.sample_rate, n_channels, keep_channels=bool(self.sources))


class SottovoceConnection(WebSocketConnection):
    def __init__(self, socket: WebSocket) -> None:
        super().__init__(socket)
        self._request = SessionRequest()
        self._reader = PcmReader()
        self._translator: SessionTranslator | None = None
        self._reported: tuple[float, float] = (0.0, 0.0)

    async def begin(self) -> None:
        request, model = read_request(self.services, self.socket)
        ignored = self.services.registry.ignored(
            request.model, fields.unknown_fields(fields.query_of(self.socket), KNOWN)
        )
        fields.note_ignored(self.socket, ignored)
        self._request, self._reader = request, request.reader()
        self.acquire_slot(len(request.sources) or 1)
        scheduler = await self.open(model, request.options, request.sources)
        if request.translate_to:
            settings, request_id = self.services.settings.translation, self.transport.request_id
            self._translator = session_translator(
                request.translate_to, self.session, scheduler.languages, settings, request_id
            )
        await self.websocket.accept(SUBPROTOCOL)
        await self.send(
            {
                "type": "ready",
                "session": self.transport.request_id,
                "model": model,
                "languages": list(request.options.languages or scheduler.languages),
                "encoding": request.encoding,
                "sample_rate": request.sample_rate,
                **({"sources": list(request.sources)} if request.sources else {}),
                **ignored_field(ignored),
            }
        )

    async def background(self) -> None:
        if self._translator is not None:
            await self._translator.run(self.send)

    async def report(self) -> None:
        behind_s = round(self.behind_s, 3)
        state = (round(self.queue.n_received / SAMPLE_RATE, 3), behind_s)
        if self.is_open and state != self._reported:
            self._reported = state
            await self.send({"type": "status", "received": state[0], "behind_s": behind_s})

    async def on_message(self, message: bytes | str) -> None:
        if isinstance(message, bytes):
            await self.queue_bytes(self._reader, message)
            return
        try:
            kind, given = read_message(message)
        except ApiError as fault:
            await self.send(self.error_document(fault))
            return
        if kind == "close":
            await self.queue_audio(self._reader.flush())
            await self.request_close()
        elif kind == "finalize":
            await self.queue.put(partial(self._finalize, tuple(given)))
        elif kind in ("configure", "voices"):
            change = self._configure if kind == "configure" else self._exchange_voices
            await self.queue.put(partial(self._change, change, given))

    def render(self, events: Sequence[Event]) -> Iterator[dict[str, Json]]:
        for event in events:
            yield {**event_document(event), "utterance": event.utterance}
        if self._translator is not None:
            self._translator.take(events)

    async def on_close(self) -> None:
        await super().on_close()
        if self._translator is not None and not await self._translator.finish():
            await self.send(self.error_document(NOT_TRANSLATED))
        await self._confirm("closed")

    async def _change(
        self, change: Callable[[Mapping[str, object]], Awaitable[None]], given: Mapping[str, object]
    ) -> None:
        if (fault := await self.attempt(change(given))) is not None:
            await self.send(self.error_document(fault))

    async def _finalize(self, ignored: Sequence[str]) -> None:
        await self.emit(await self.session.finalize())
        await self._confirm("finalized", ignored)

    async def _configure(self, changes: Mapping[str, object]) -> None:
        request = with_changes(self._request, changes)
        for name in FIXED:
            if getattr(request, name) != getattr(self._request, name):
                message = f"{name}: expected in the address of the socket, got a change under way"
                raise ApiError(message, param=name, code="invalid_value")
        events = await self.session.configure(request.options)
        self._request = request
        await self.emit(events)
        await self._confirm("configured", fields.unknown_fields(changes, KNOWN))

    async def _exchange_voices(self, given: Mapping[str, object]) -> None:
        voices = await self.session.voices(decoded_voices(given))
        encoded = {
            name: base64.b64encode(voice.astype("<f4").tobytes()).decode() for name, voice in voices.items()
        }
        await self.send({"type": "voices", "voices": {**encoded}})

    async def _confirm(self, kind: str, ignored: Sequence[str] = ()) -> None:
        await self.send({"type": kind, "received": round(self.received_s, 3), **ignored_field(ignored)})


def ignored_field(names: Sequence[str]) -> dict[str, Json]:
    return {"ignored": [*fields.printable_names(names)]} if names else {}


def read_message(text: str) -> tuple[str, Mapping[str, object]]:
    """Read the type and other fields of a text message, of `voices` the vectors by name."""
    message = fields.read_typed_message(text, "a JSON object with a type, or audio as binary")
    kind = str(message.pop("type"))
    if kind == "configure":
        return kind, message
    if kind == "voices":
        return kind, require_voices(message.get("voices", {}))
    if kind not in ("finalize", "keepalive", "close"):
        raise invalid_value("type", "configure, finalize, voices, keepalive or close", fields.quoted(kind))
    return kind, message


def require_voices(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict) or not all(isinstance(voice, str) for voice in value.values()):
        raise invalid_value("voices", "an object of voices in base64 by name", fields.quoted(value))
    for name in value:
        if not (0 < len(name) <= MAX_NAME and name.isprintable()):
            raise invalid_value(
                "voices", f"names of 1 to {MAX_NAME} printable characters", fields.quoted(name)
            )
    return value


def decoded_voices(voices: Mapping[str, object]) -> dict[str, Floats]:
    """Return vectors (D,) float32 by name, from base64."""
    try:
        return {
            name: np.frombuffer(base64.b64decode(str(voice), validate=True), "<f4").astype(np.float32)
            for name, voice in voices.items()
        }
    except ValueError as error:
        raise invalid_value("voices", "32-bit floats in base64", "something else") from error


def read_request(services: Services, connection: HTTPConnection) -> tuple[SessionRequest, str]:
    """Read an address: the request, and the name of its model."""
    request = with_changes(SessionRequest(), fields.query_of(connection))
    name = services.registry.resolve(request.model)
    supported = services.registry.languages(name)
    for language in request.options.languages:
        if language not in supported and services.registry.is_loaded(name):
            raise invalid_value(
                "languages", f"what this model knows: {', '.join(supported)}", f"'{language}'"
            )
    return request, name


def with_changes(request: SessionRequest, changes: Mapping[str, object]) -> SessionRequest:
    values = {
        FIELDS[name][0].key: fields.read_field(name, value, *FIELDS[name])
        for name, value in changes.items()
        if name in FIELDS
    }
    fixed: dict[str, Any] = {name: values.pop(name) for name in FIXED if name in values}
    request = replace(request, options=changed(request.options, values), **fixed)
    if request.translate_to and request.options.stream.task == "translate":
        raise invalid_value("translate_to", "the task transcribe", "translate")
    with invalid_options("sources"):
        check_speaker_names(request.sources, None)
    request.reader()
    return request


def target_languages(languages: Sequence[str], translation: TranslationSettings | None) -> tuple[str, ...]:
    """Return the languages of live translations. languages: of the model."""
    if translation is not None:
        return language_codes()
    return (TARGET,) if len(languages) > 1 else ()


def session_translator(
    target: str,
    session: SessionHandle,
    languages: Sequence[str],
    translation: TranslationSettings | None,
    request_id: str,
) -> SessionTranslator:
    codes = target_languages(languages, translation)
    if target not in codes:
        expected = "English, by a model of several languages" if not codes else f"one of {', '.join(codes)}"
        raise invalid_value("translate_to", expected, f"'{target}'")
    if translation is not None:
        translator = ChatTranslator(translation.chat, target, translation.glossary)
        return SessionTranslator(LiveTranslator(translator, filters=session.text_filters), request_id)
    live = LiveTranslator(session.translator(), N_NEW_WORDS, session.text_filters)
    return SessionTranslator(live, request_id)


class SessionTranslator:
    """Translations of one session."""

    def __init__(self, translator: LiveTranslator, request_id: str) -> None:
        self._translator = translator
        self._request_id = request_id
        self._waiting: list[Event] = []
        self._came = anyio.Event()
        self._is_done = anyio.Event()
        self._is_done.set()
        self._one_thread = anyio.CapacityLimiter(1)

    def take(self, events: Sequence[Event]) -> None:
        if any(isinstance(event, Partial | Final) for event in events):
            self._waiting += events
            self._is_done = anyio.Event()
            self._came.set()

    async def run(self, send: Sender) -> None:
        while True:
            await self._came.wait()
            self._came = anyio.Event()
            events, self._waiting = self._waiting, []
            for event, is_newest in mark_newest(events):
                for document in await self._translations(event, is_newest=is_newest):
                    await send(document)
            if not self._waiting:
                self._is_done.set()

    async def finish(self) -> bool:
        """Wait up to `FINISH_TIMEOUT_S`; return whether all translations are done."""
        with anyio.move_on_after(FINISH_TIMEOUT_S):
            await self._is_done.wait()
        return self._is_done.is_set()

    async def _translations(self, event: Event, *, is_newest: bool) -> list[dict[str, Json]]:
        def work() -> list[LiveTranslation]:
            return list(self._translator.take(event, is_newest=is_newest))

        try:
            lines = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._one_thread)
        except Exception as error:
            return [{"type": "error", **self._fault(error).body}]
        return [line.document for line in lines]

    def _fault(self, error: Exception) -> ApiError:
        """The address and answer of the translating server are not shown to clients."""
        if not isinstance(error, TranslationError):
            return logged_api_error(error, self._request_id, "translation failed")
        where = str(error).partition(" ")[0].rstrip(":")  # what follows may quote what was said
        logger.warning("translation failed", extra={"request_id": self._request_id, "server": where})
        return NOT_TRANSLATED


API = Api(
    routes=(SocketRoute("/v1/live", SottovoceConnection.at, check=check_handshake),),
    key_prefixes=("sottovoce-key.",),
)
