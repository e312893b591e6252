"""`/v1/realtime`: OpenAI's realtime API for transcription, in the shape that is generally available.

Errors of a message leave the session open. Which fields a session has, `openai_realtime_config` knows; what
is told of a turn, `openai_realtime_items`.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from sottovoce.formats.document import Json
from sottovoce.serving.access.gate import given_keys
from sottovoce.serving.apis.openai_realtime_config import (
    DIARIZING,
    ENCODINGS,
    RealtimeSessionConfig,
    unknown_session_fields,
    updated,
)
from sottovoce.serving.apis.openai_realtime_items import RealtimeItems
from sottovoce.serving.live.connection import WebSocketConnection, off_loop
from sottovoce.serving.parsing.client_json import read_json
from sottovoce.serving.parsing.client_values import (
    read_json_number,
    read_object,
    require_typed,
)
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.fields import wrong
from sottovoce.serving.parsing.ignored import Known, named, note_ignored, unknown_fields
from sottovoce.serving.parsing.pcm import PcmReader
from sottovoce.serving.scheduling.model_registry import ModelRegistry
from sottovoce.serving.services import key_of, services_of
from sottovoce.types import Event, Samples

SUBPROTOCOL = "realtime"
MESSAGES = (
    "session.update",
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "input_audio_buffer.clear",
    "conversation.item.retrieve",
    "conversation.item.delete",
)
"""What a client may say; each but audio has an answer."""
LEAST_COMMIT_S, ROUNDING_S = 0.1, 0.002
"""Audio that a turn has at least where its client ends it, as with OpenAI; what resampling may take of it."""
STATUS, LATE_S = "sottovoce.status", 3.0
"""The one event that OpenAI's API does not have, and how late a session is before it comes."""
DEFAULT_SECRET_S, MIN_SECRET_S, MAX_SECRET_S = 600.0, 10.0, 7200.0
"""That a client's secret is good for."""
MAX_BODY_BYTES = 64_000


async def realtime(socket: WebSocket) -> None:
    """Serve one session, from the handshake to the close code."""
    await RealtimeConnection(socket).serve()


class RealtimeConnection(WebSocketConnection):
    """A client of OpenAI's realtime API, with its turns; the session begins with the first audio."""

    def __init__(self, socket: WebSocket) -> None:
        super().__init__(socket)
        self._config = RealtimeSessionConfig()
        self._config_read = self._config
        """With updates that were read and wait in the queue."""
        self._reader = reader_of(self._config)
        self._items = RealtimeItems()

    async def begin(self) -> None:
        """Take a place, and say what the session is like; what is wrong refuses the handshake.

        Raises: ApiError.
        """
        config = self._requested()
        self._config_read = resolved(config, self.services.registry)
        self.take_place()
        self.services.check_room(self._config_read.model or "")
        await self.websocket.accept(SUBPROTOCOL)
        self._reader = reader_of(config)
        self._follow(self._config_read)
        await self.send(self._items.event("session.created", session=self._document))

    async def on_message(self, message: bytes | str) -> None:
        """Act on a message; a wrong one leaves the session open. Raises: ApiError for audio that is none."""
        event_id: object = None
        try:
            if isinstance(message, bytes):
                text = "message: expected JSON, with audio in base64, got binary"
                raise ApiError(text, code="invalid_message")
            found = await off_loop(len(message), partial(read_json, message))
            event_id = found.get("event_id") if isinstance(found, dict) else None
            await self._act_on(require_typed(found, "a JSON object with a type"), event_id)
        except ApiError as fault:
            if fault.code == "invalid_audio":
                raise
            await self.send(self._items.fault(fault, event_id))

    def error_document(self, fault: ApiError) -> dict[str, Json]:
        """Render the fault that ends a session."""
        return self._items.fault(fault)

    def render(self, events: Sequence[Event]) -> Iterator[dict[str, Json]]:
        """Yield what is told of turns, and beyond OpenAI's API how late that is."""
        for document in self._items.render(events):
            yield {**document, "behind_s": round(self.behind_s, 3)}

    async def report(self) -> None:
        """Say so where events come late: an event beyond OpenAI's API, as no other one may come."""
        if (behind_s := self.behind_s) > LATE_S:
            await self.send(self._items.event(STATUS, behind_s=round(behind_s, 3)))

    async def on_audio(self, samples: Samples) -> None:
        """Work on samples (n,); where that fails, the turn fails and the next one may not."""
        try:
            await self._open(self._config)
            began_s = self.received_s
            events = await self.session.push(samples)
        except ApiError:
            raise
        except Exception as error:
            await self._fail_turn(error)
            return
        if not self._items.finds_turns:
            self._items.begin(began_s)
        await self.emit(events)
        self.count()
        await self._time_out()

    async def on_close(self) -> None:
        """Say the rest, where there is a session."""
        if self.is_open:
            await super().on_close()

    def _requested(self) -> RealtimeSessionConfig:
        """Read what the address and the client's secret say of the session. Raises: ApiError."""
        query = dict(self.socket.query_params.items())
        intent = query.pop("intent", "transcription")
        if intent != "transcription":
            raise wrong("intent", "'transcription'", f"'{intent[:50]}'")
        model = query.pop("model", None)
        if "call_id" in query:
            raise ApiError("call_id: not done here", param="call_id", code="unsupported_value")
        note_ignored(self.socket, self.services.registry.ignored(model, tuple(query)))
        keys = given_keys(self.socket.headers.get("authorization", ""), self.socket.scope["subprotocols"])
        session = self.services.secrets.session_of(keys)
        config = RealtimeSessionConfig() if session is None else updated(RealtimeSessionConfig(), session)
        if model is None:
            return config
        config = replace(config, model=model, has_speakers=model == DIARIZING)
        return resolved(config, self.services.registry)

    @property
    def _document(self) -> dict[str, Json]:
        return {"id": self.transport.request_id, **self._config.document}

    async def _act_on(self, message: dict[str, object], event_id: object) -> None:
        """Act on a message that has a type. Raises: ApiError for one that cannot be acted on."""
        kind = message.pop("type")
        if kind == "session.update":
            session = message.get("session")
            config = self._updated(self._config_read, session)
            if config.audio_format != self._config_read.audio_format:
                self._reader = reader_of(config)
            self._config_read = config
            await self.queue.put(partial(self._update, session, event_id))
        elif kind == "input_audio_buffer.append":
            given = message.get("audio")
            size = len(given) if isinstance(given, str) else 0
            await self.queue_bytes(self._reader, await off_loop(size, partial(audio_of, given)))
        elif kind == "input_audio_buffer.commit":
            await self.queue_audio(self._reader.flush())
            self._reader = reader_of(self._config_read)
            await self.queue.put(partial(self._commit, event_id))
        elif kind == "input_audio_buffer.clear":
            self._reader = reader_of(self._config_read)
            await self.queue.put(self._clear)
        elif kind in ("conversation.item.retrieve", "conversation.item.delete"):
            answer = self._items.delete if kind.endswith("delete") else self._items.retrieve
            await self.queue.put(partial(self._answer, partial(answer, message.get("item_id")), event_id))
        else:
            raise wrong("type", f"one of {', '.join(MESSAGES)}", f"'{str(kind)[:80]}'")

    def _updated(self, config: RealtimeSessionConfig, session: object) -> RealtimeSessionConfig:
        """Raises: ApiError for what cannot be."""
        return resolved(updated(config, session), self.services.registry)

    async def _update(self, session: object, event_id: object) -> None:
        """Go on with what a client wants; what the model cannot do leaves the session as it was."""
        if (fault := await self.attempt(self._configure(session))) is not None:
            await self.send(self._items.fault(fault, event_id))

    async def _configure(self, session: object) -> None:
        """Raises: ApiError, OptionError."""
        config, before = self._updated(self._config, session), self._config
        if not self.is_open:
            await self._open(config)
        elif config.model != before.model:
            message = f"session: expected the model '{before.model}' to the end, got '{config.model}'"
            raise ApiError(message, param="session.audio.input.transcription.model", code="invalid_value")
        elif config.options != before.options:
            await self.emit(await self.session.configure(config.options))
        self._follow(config)
        ignored: list[Json] = [*named(unknown_session_fields(session))]
        more: dict[str, Json] = {"ignored_parameters": ignored} if ignored else {}
        await self.send(self._items.event("session.updated", session=self._document, **more))

    async def _commit(self, event_id: object) -> None:
        """End the turn where the client says; one without words where nothing was said since the last one."""
        start_s = self._items.buffer_start_s
        if (buffer_s := self.received_s - start_s) < LEAST_COMMIT_S - ROUNDING_S:
            least_ms, got_ms = round(1000 * LEAST_COMMIT_S), round(1000 * max(0.0, buffer_s))
            text = (
                f"input_audio_buffer.commit: expected audio before it, {least_ms} ms or more, got {got_ms} ms"
            )
            fault = ApiError(text, code="input_audio_buffer_commit_empty")
            await self.send(self._items.fault(fault, event_id))
            return
        try:
            events = await self.session.flush_and_reset()
        except Exception as error:
            await self._fail_turn(error)
            return
        await self.emit(events)
        if self._items.is_open or self._items.buffer_start_s == start_s:
            await self.send(*self._items.commit(self.received_s))
        self._items.buffer_start_s = self.received_s

    async def _clear(self) -> None:
        """Forget what was said of this turn."""
        if self.is_open:
            self.session.discard()
        await self.send(self._items.clear(self.received_s))

    async def _answer(self, make: Callable[[], dict[str, Json]], event_id: object) -> None:
        """Send what answers a message about an item, or why there is nothing to answer."""
        try:
            document = make()
        except ApiError as fault:
            document = self._items.fault(fault, event_id)
        await self.send(document)

    async def _fail_turn(self, error: Exception) -> None:
        """End a turn without its text; the next one may have one."""
        fault = self.logged(error)
        if self.is_open:
            self.session.discard()
        await self.send(*self._items.fail(fault, self.received_s))

    async def _time_out(self) -> None:
        """End an empty turn where nobody has spoken for too long."""
        turns = self._config.turns
        limit_s = turns.idle_timeout_s if turns else None
        if limit_s and not self._items.is_open and self.received_s - self._items.buffer_start_s >= limit_s:
            await self.send(*self._items.time_out(self.received_s))

    async def _open(self, config: RealtimeSessionConfig) -> None:
        """Open the session where there is none yet. Raises: ApiError, OptionError."""
        if not self.is_open:
            assert config.model is not None
            await self.open(config.model, config.options)

    def _follow(self, config: RealtimeSessionConfig) -> None:
        self._config = config
        self._items.finds_turns = config.turns is not None
        self._items.logprobs = config.logprobs
        self._items.has_speakers = config.has_speakers


def resolved(config: RealtimeSessionConfig, registry: ModelRegistry) -> RealtimeSessionConfig:
    """Replace the name of the model, which may be an alias or None, by the model's own.

    Raises: ApiError 404.
    """
    return replace(config, model=registry.resolve(config.model))


def reader_of(config: RealtimeSessionConfig) -> PcmReader:
    """Return what reads the audio of a session."""
    return PcmReader(*ENCODINGS[config.audio_format])


def audio_of(given: object) -> bytes:
    """Decode audio from base64. Raises: ApiError 400."""
    try:
        return base64.b64decode(given if isinstance(given, str) else "?", validate=True)
    except ValueError:
        raise wrong("audio", "base64", "something else") from None


async def client_secrets(request: Request) -> Response:
    """Answer `POST /v1/realtime/client_secrets` with a secret for a page, and the session that it opens.

    Raises: ApiError 400, 413.
    """
    services, key = services_of(request), key_of(request)
    given = await json_body(request)
    known: Known = {"expires_after": {"anchor": {}, "seconds": {}}, "session": {}}
    note_ignored(request, (*unknown_fields(given, known), *unknown_session_fields(given.get("session"))))
    expires = read_object("expires_after", given.get("expires_after"), optional=True)
    if expires.get("anchor", "created_at") != "created_at":
        raise wrong("expires_after.anchor", "'created_at'", f"'{str(expires['anchor'])[:50]}'")
    seconds = read_json_number(
        "expires_after.seconds", expires.get("seconds", DEFAULT_SECRET_S), MIN_SECRET_S, MAX_SECRET_S
    )
    session = given.get("session")
    config = updated(RealtimeSessionConfig(), {"type": "transcription"} if session is None else session)
    if config.model is not None:
        services.registry.resolve(config.model)
    value, expires_at = services.secrets.make(config.document, seconds, key.name if key else "")
    about = {"id": f"sess_{secrets.token_hex(8)}", "object": "realtime.transcription_session"}
    document = {**about, **config.document, "expires_at": expires_at}
    return JSONResponse({"value": value, "expires_at": expires_at, "session": document})


async def json_body(request: Request) -> Mapping[str, object]:
    """Read the object that a request brings. Raises: ApiError 400, 413."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            message = f"body: expected at most {MAX_BODY_BYTES} bytes"
            raise ApiError(message, status=413, code="body_too_large")
    return read_object("body", read_json(body or b"{}"))
