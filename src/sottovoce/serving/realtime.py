"""`/v1/realtime`: OpenAI's realtime API for transcription, in the shape that is generally available.

Errors of a message leave the session open. Which fields a session has, `realtime_wish` knows; what is told
of a turn, `realtime_items`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from starlette.websockets import WebSocket

from sottovoce.formats.document import Json
from sottovoce.serving.client_json import read_json
from sottovoce.serving.exchange import Exchange, last_words, logged
from sottovoce.serving.faults import UNAVAILABLE, ApiError, fault_of
from sottovoce.serving.fields import wrong
from sottovoce.serving.gate import given_keys
from sottovoce.serving.pcm import PcmReader
from sottovoce.serving.realtime_items import Items
from sottovoce.serving.realtime_wish import DIARIZING, ENCODINGS, RealtimeWish, updated
from sottovoce.serving.scheduler import Live
from sottovoce.serving.state import Services, services_of
from sottovoce.types import Samples

SUBPROTOCOL = "realtime"
MESSAGES = (
    "session.update",
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "input_audio_buffer.clear",
)
"""What a client may say."""


@dataclass(frozen=True, slots=True)
class Update:
    """The session is to be like this from here on; what it does not name stays."""

    session: object
    event_id: object


@dataclass(frozen=True, slots=True)
class Commit:
    """A turn ends here."""

    event_id: object


@dataclass(frozen=True, slots=True)
class Clear:
    """What was said of this turn is to be forgotten."""


async def realtime(socket: WebSocket) -> None:
    """One session, from the handshake to the close code."""
    await socket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in socket.scope["subprotocols"] else None)
    services = services_of(socket)
    async with last_words(socket, services), AsyncExitStack() as stack:
        wish = asked(socket, services)
        stack.enter_context(services.session())
        await RealtimeTalk(socket, services, wish, stack).converse()


def asked(socket: WebSocket, services: Services) -> RealtimeWish:
    """What the address and the client's secret say of the session.

    Raises: ApiError.
    """
    query = dict(socket.query_params.items())
    intent = query.pop("intent", "transcription")
    if intent != "transcription":
        raise wrong("intent", "'transcription'", f"'{intent[:50]}'")
    model = query.pop("model", None)
    if query:
        raise wrong(next(iter(query))[:50], "intent or model", "an unknown parameter")
    keys = given_keys(socket.headers.get("authorization", ""), socket.scope["subprotocols"])
    wish = services.secrets.wish_of(keys) or RealtimeWish()
    if model is None:
        return wish
    return replace(named(wish, model, services), has_speakers=model == DIARIZING)


def named(wish: RealtimeWish, model: str | None, services: Services) -> RealtimeWish:
    """The wish with the model that a name means. Raises: ApiError 404."""
    return replace(wish, model=services.shelf.name_of(model))


class RealtimeTalk(Exchange[Update | Commit | Clear]):
    """One client, its session and its turns."""

    def __init__(
        self, socket: WebSocket, services: Services, wish: RealtimeWish, stack: AsyncExitStack
    ) -> None:
        super().__init__(socket, services)
        self._stack = stack
        self._read = self._wish = named(wish, wish.model, services)
        self._reader = reader_of(self._read)
        self._items = Items()
        self._session: Live | None = None
        self._turn_began_s = 0.0
        self._follow(self._wish)

    async def converse(self) -> None:
        """Say what the session is like, and go on until it ends."""
        await self.send(self._items.event("session.created", session=self._document))
        await self.run()

    @property
    def _document(self) -> dict[str, Json]:
        return {"id": self.socket.scope["state"]["request_id"], **self._wish.document}

    @property
    def _received_s(self) -> float:
        return self._session.received_s if self._session else 0.0

    async def on_binary(self, data: bytes) -> None:
        fault = ApiError("message: expected JSON, with audio in base64, got binary", code="invalid_message")
        await self.send(self._items.fault(fault))

    async def on_text(self, text: str) -> None:
        event_id: object = None
        try:
            message = message_of(text)
            event_id = message.pop("event_id", None)
            await self._understand(message, event_id)
        except ApiError as error:
            if error.code == "invalid_audio":
                raise
            await self.send(self._items.fault(error, event_id))

    async def on_audio(self, samples: Samples) -> None:
        try:
            session = await self._opened(self._wish)
            began_s = session.received_s
            told = await session.push(samples)
        except ApiError:
            raise
        except Exception as error:
            await self._failed(error)
            return
        if not self._items.finds_turns:
            self._items.begin(began_s)
        await self._send_all(self._items.tell(told))
        self.count(session.received_s)
        await self._time_out(session.received_s)

    async def on_word(self, word: Update | Commit | Clear) -> None:
        if isinstance(word, Update):
            await self._update(word)
        elif isinstance(word, Commit):
            await self._commit(word)
        else:
            if self._session is not None:
                self._session.discard()
            await self.send(self._items.clear(self._received_s))

    async def on_ending(self) -> None:
        if self._session is not None:
            await self._send_all(self._items.tell(await self._session.close()))

    async def _understand(self, message: dict[str, object], event_id: object) -> None:
        """Act on a message that has a type. Raises: ApiError for one that cannot be acted on."""
        kind = message.pop("type")
        if kind == "session.update":
            session = message.get("session")
            wish = self._updated(self._read, session)
            self._read, self._reader = wish, self._reader_for(wish)
            await self.inbox.put(Update(session, event_id))
        elif kind == "input_audio_buffer.append":
            await self.hear(self._reader.read(audio_of(message.get("audio"))))
        elif kind == "input_audio_buffer.commit":
            await self.hear(self._reader.flush())
            self._reader = reader_of(self._read)
            await self.inbox.put(Commit(event_id))
        elif kind == "input_audio_buffer.clear":
            await self.inbox.put(Clear())
        else:
            raise wrong("type", f"one of {', '.join(MESSAGES)}", f"'{str(kind)[:80]}'")

    def _updated(self, wish: RealtimeWish, session: object) -> RealtimeWish:
        """Raises: ApiError for what cannot be."""
        wish = updated(wish, session)
        return named(wish, wish.model, self.services)

    def _reader_for(self, wish: RealtimeWish) -> PcmReader:
        return self._reader if wish.audio_format == self._read.audio_format else reader_of(wish)

    async def _update(self, update: Update) -> None:
        """Go on with another wish; one that the model cannot fulfil leaves the session as it was."""
        try:
            wish = self._updated(self._wish, update.session)
            await self._change(wish)
        except Exception as error:
            fault = fault_of(error)
            if fault.status >= 500 and fault.code != UNAVAILABLE:
                raise
            await self.send(self._items.fault(logged(error, self.socket), update.event_id))
            return
        self._follow(wish)
        await self.send(self._items.event("session.updated", session=self._document))

    async def _change(self, wish: RealtimeWish) -> None:
        """Raises: ApiError, OptionError."""
        before = self._wish
        if self._session is None:
            await self._opened(wish)
        elif wish.model != before.model:
            said = f"session: expected the model '{before.model}' to the end, got '{wish.model}'"
            raise ApiError(said, param="session.audio.input.transcription.model", code="invalid_value")
        elif wish.options != before.options:
            await self._send_all(self._items.tell(await self._session.configure(wish.options)))

    async def _commit(self, commit: Commit) -> None:
        """End a turn where the client says."""
        session = self._session
        if session is None or session.received_s <= self._turn_began_s:
            fault = ApiError(
                "input_audio_buffer.commit: expected audio before it", code="input_audio_buffer_commit_empty"
            )
            await self.send(self._items.fault(fault, commit.event_id))
            return
        try:
            told = await session.begin_anew()
        except Exception as error:
            await self._failed(error)
            return
        self._turn_began_s = session.received_s
        await self._send_all(self._items.tell(told))
        if self._items.is_open:
            await self._send_all(self._items.commit(session.received_s))

    async def _failed(self, error: Exception) -> None:
        """A turn without its text; the next one may have one."""
        fault = logged(error, self.socket)
        if self._session is not None:
            self._session.discard()
        await self.send(self._items.fail(fault, self._received_s))

    async def _time_out(self, received_s: float) -> None:
        turns = self._wish.turns
        limit_s = turns.idle_timeout_s if turns else None
        if limit_s and not self._items.is_open and received_s - self._items.quiet_since_s >= limit_s:
            await self._send_all(self._items.time_out(received_s))

    async def _opened(self, wish: RealtimeWish) -> Live:
        """The session, made where there is none yet. Raises: ApiError, OptionError."""
        if self._session is None:
            assert wish.model is not None
            scheduler = await self._stack.enter_async_context(self.services.shelf.use(wish.model))
            self.services.check_wait(scheduler)
            self._session = await scheduler.open(wish.options)
            self._session.more = self.inbox.take_audio
            self._stack.callback(self._session.discard)
        return self._session

    def _follow(self, wish: RealtimeWish) -> None:
        self._wish = wish
        self._items.finds_turns = wish.turns is not None
        self._items.logprobs = wish.logprobs
        self._items.has_speakers = wish.has_speakers

    async def _send_all(self, events: Iterable[dict[str, Json]]) -> None:
        for event in events:
            await self.send(event)


def reader_of(wish: RealtimeWish) -> PcmReader:
    """What reads the audio of a session."""
    return PcmReader(*ENCODINGS[wish.audio_format])


def message_of(text: str) -> dict[str, object]:
    """A message with a type. Raises: ApiError 400."""
    message = read_json(text)
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ApiError("message: expected a JSON object with a type", code="invalid_message")
    return message


def audio_of(given: object) -> bytes:
    """Audio from base64. Raises: ApiError 400."""
    try:
        return base64.b64decode(given if isinstance(given, str) else "?", validate=True)
    except ValueError:
        raise wrong("audio", "base64", "something else") from None
