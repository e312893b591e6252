"""`/v1/live`: the server's own live protocol (docs/protocol.md), audio in and events out over a WebSocket."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from sottovoce.errors import OptionError
from sottovoce.formats.document import Json, event_document
from sottovoce.options.live import LiveOptions
from sottovoce.options.live_requests import LIVE_REQUEST, MODEL
from sottovoce.options.schema import changed
from sottovoce.serving.access.gate import SUBPROTOCOL
from sottovoce.serving.live.connection import WebSocketConnection, require_finite
from sottovoce.serving.live.session_translator import NOT_TRANSLATED, SessionTranslator, session_translator
from sottovoce.serving.parsing.client_values import read_typed_message, shown
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.fields import wrong
from sottovoce.serving.parsing.forms import fields_of
from sottovoce.serving.parsing.ignored import Known, leaves, named, note_ignored, unknown_fields
from sottovoce.serving.parsing.live_fields import LIVE, read_field
from sottovoce.serving.parsing.pcm import PcmReader
from sottovoce.serving.services import Services, key_of, services_of
from sottovoce.speakers.base import Floats
from sottovoce.types import SAMPLE_RATE, Event, Samples

MAX_NAME = 50
"""Characters of a speaker's name."""
FIELDS = fields_of("sottovoce", LIVE)
"""What can be configured, by name."""
KNOWN: Known = leaves(*FIELDS)
FIXED = tuple(option.key for option in (MODEL, *LIVE_REQUEST))
"""Fields that stand in the address for good."""


async def live_refusal(request: Request) -> Response:
    """Say over HTTP why a socket at this address is refused: a page cannot see that of its socket.

    Raises: ApiError with that; 426 where it would be taken.
    """
    services = services_of(request)
    _, name = requested(services, request)
    with services.key_limits.session(key_of(request)), services.session():
        services.check_room(name)
    raise ApiError("/v1/live: expected a WebSocket", status=426, code="upgrade_required")


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What a client asks of its session: how to listen, what its audio looks like, and into which language
    what is said is translated ("": none)."""

    options: LiveOptions = field(default_factory=LiveOptions)
    model: str | None = None
    encoding: str = "s16le"
    sample_rate: int = SAMPLE_RATE
    translate_to: str = ""


async def live(socket: WebSocket) -> None:
    """Serve one session, from the handshake to the close code."""
    await SottovoceConnection(socket).serve()


class SottovoceConnection(WebSocketConnection):
    """A client of the server's own protocol."""

    def __init__(self, socket: WebSocket) -> None:
        super().__init__(socket)
        self._request = SessionRequest()
        self._reader = PcmReader()
        self._translator: SessionTranslator | None = None
        self._reported: tuple[float, float] = (0.0, 0.0)

    async def begin(self) -> None:
        """Open what the address asks for; what is wrong refuses the handshake.

        Raises: ApiError, OptionError, ModelNotFoundError.
        """
        request, model = requested(self.services, self.socket)
        ignored = self.services.registry.ignored(request.model, unknown_fields(query_of(self.socket), KNOWN))
        note_ignored(self.socket, ignored)
        self._request, self._reader = request, PcmReader(request.encoding, request.sample_rate)
        self.take_place()
        scheduler = await self.open(model, request.options)
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
                **ignored_field(ignored),
            }
        )

    async def background(self) -> None:
        """Translate what is said."""
        if self._translator is not None:
            await self._translator.run(self.send)

    async def report(self) -> None:
        """Say how much audio came and how much of it waits, where that has changed."""
        behind_s = round(self.behind_s, 3)
        state = (round(self.received_s + self.queue.n_samples / SAMPLE_RATE, 3), behind_s)
        if self.is_open and state != self._reported:
            self._reported = state
            await self.send({"type": "status", "received": state[0], "behind_s": behind_s})

    async def queue_audio(self, samples: Samples) -> None:
        """Queue audio (n,) for the session, and give it to what translates it."""
        require_finite(samples)
        if self._translator is not None:
            self._translator.add_audio(samples, self.received_s)
        await super().queue_audio(samples)

    async def on_message(self, message: bytes | str) -> None:
        """Take audio, or a command; a wrong one leaves the session open."""
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
        """Yield events as documents; once they are sent, they may be translated."""
        for event in events:
            yield {**event_document(event), "utterance": event.utterance}
        if self._translator is not None:
            self._translator.take(events)

    async def on_close(self) -> None:
        """Say the rest, with its translation."""
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
        request = configured(self._request, changes)
        for name in FIXED:
            if getattr(request, name) != getattr(self._request, name):
                message = f"{name}: expected in the address of the socket, got a change under way"
                raise ApiError(message, param=name, code="invalid_value")
        events = await self.session.configure(request.options)
        self._request = request
        await self.emit(events)
        await self._confirm("configured", unknown_fields(changes, KNOWN))

    async def _exchange_voices(self, given: Mapping[str, object]) -> None:
        voices = await self.session.voices(decoded_voices(given))
        await self.send({"type": "voices", "voices": encoded_voices(voices)})

    async def _confirm(self, kind: str, ignored: Sequence[str] = ()) -> None:
        await self.send({"type": kind, "received": round(self.received_s, 3), **ignored_field(ignored)})


def ignored_field(names: Sequence[str]) -> dict[str, Json]:
    """Name fields without effect in a message, where there are any."""
    return {"ignored": [*named(names)]} if names else {}


def query_of(connection: HTTPConnection) -> dict[str, object]:
    """Return the fields of the address of a socket."""
    return dict(connection.query_params.items())


def read_message(text: str) -> tuple[str, Mapping[str, object]]:
    """Read a text message; returns its type and its other fields, of `voices` the vectors by name.

    Raises: ApiError 400 for what is no message.
    """
    message = read_typed_message(text, "a JSON object with a type, or audio as binary")
    kind = str(message.pop("type"))
    if kind == "configure":
        return kind, message
    if kind == "voices":
        return kind, require_voices(message.get("voices", {}))
    if kind not in ("finalize", "keepalive", "close"):
        raise wrong("type", "configure, finalize, voices, keepalive or close", f"'{kind[:50]}'")
    return kind, message


def require_voices(value: object) -> Mapping[str, object]:
    """Return texts by name; what is in them is looked at by `decoded_voices`. Raises: ApiError 400."""
    if not isinstance(value, dict) or not all(isinstance(voice, str) for voice in value.values()):
        raise wrong("voices", "an object of voices in base64 by name", shown(value))
    for name in value:
        if not (0 < len(name) <= MAX_NAME and name.isprintable()):
            raise wrong("voices", f"names of 1 to {MAX_NAME} printable characters", shown(name))
    return value


def decoded_voices(voices: Mapping[str, object]) -> dict[str, Floats]:
    """Return vectors (size,) float32 by name, from base64.

    Raises: ApiError 400 for what is not base64 of whole numbers of four bytes.
    """
    try:
        return {
            name: np.frombuffer(base64.b64decode(str(voice), validate=True), "<f4").astype(np.float32)
            for name, voice in voices.items()
        }
    except ValueError as error:
        raise wrong("voices", "32-bit floats in base64", "something else") from error


def encoded_voices(voices: Mapping[str, Floats]) -> dict[str, Json]:
    """Return vectors (size,) by name in base64."""
    return {
        name: base64.b64encode(vector.astype("<f4").tobytes()).decode() for name, vector in voices.items()
    }


def requested(services: Services, connection: HTTPConnection) -> tuple[SessionRequest, str]:
    """Read the address of a socket: what is asked of the session, and the name of its model.

    Raises: ApiError 400, 404.
    """
    request = configured(SessionRequest(), query_of(connection))
    name = services.registry.resolve(request.model)
    supported = services.registry.languages(name)
    for language in request.options.languages:
        if language not in supported and services.registry.is_loaded(name):
            raise wrong("languages", f"what this model knows: {', '.join(supported)}", f"'{language}'")
    return request, name


def configured(request: SessionRequest, changes: Mapping[str, object]) -> SessionRequest:
    """Return the request with what a client changed, from a message or the address of the socket.

    Fields that are not known have no effect.
    Raises: ApiError 400 naming the field.
    """
    values = {
        FIELDS[name][0].key: read_field(name, value, *FIELDS[name])
        for name, value in changes.items()
        if name in FIELDS
    }
    own: dict[str, Any] = {name: values.pop(name) for name in FIXED if name in values}
    request = replace(request, options=changed(request.options, values), **own)
    if request.translate_to and request.options.decoding.task == "translate":
        raise wrong("translate_to", "the task transcribe", "translate")
    try:
        PcmReader(request.encoding, request.sample_rate)
    except OptionError as error:
        name = str(error).partition(":")[0]
        raise ApiError(str(error), param=name, code="invalid_value") from error
    return request
