"""`/v1/live`: a socket of the server's own protocol (docs/protocol.md), audio in and events out."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack

from starlette.websockets import WebSocket

from sottovoce.serving.exchange import DONE, Exchange, last_words, logged, require_sound
from sottovoce.serving.faults import UNAVAILABLE, ApiError, fault_of
from sottovoce.serving.gate import SUBPROTOCOL
from sottovoce.serving.interpreting import NOT_TRANSLATED, Interpreting, interpreting
from sottovoce.serving.pcm import PcmReader
from sottovoce.serving.protocol import (
    Close,
    Configure,
    Finalize,
    LiveWish,
    Voices,
    configured,
    read_message,
    read_voices,
    written_voices,
)
from sottovoce.serving.scheduler import Live
from sottovoce.serving.state import Services, services_of
from sottovoce.serving.told import Told
from sottovoce.types import Samples


async def live(socket: WebSocket) -> None:
    """One session, from the handshake to the close code."""
    await socket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in socket.scope["subprotocols"] else None)
    services = services_of(socket)
    async with last_words(socket, services), AsyncExitStack() as stack:
        talk = await opened(socket, services, stack)
        await talk.run()


async def opened(socket: WebSocket, services: Services, stack: AsyncExitStack) -> Talk:
    """Check what the address asks for, and begin.

    Raises: ApiError, OptionError, ModelNotFoundError.
    """
    wish = configured(LiveWish(), dict(socket.query_params.items()))
    stack.enter_context(services.session())
    name = services.shelf.name_of(wish.model)
    scheduler = await stack.enter_async_context(services.shelf.use(name))
    services.check_wait(scheduler)
    request_id: str = socket.scope["state"]["request_id"]
    interpreter = None
    if wish.translate_to:
        interpreter = interpreting(wish.translate_to, scheduler, services.settings.translation, request_id)
    session = await scheduler.open(wish.options)
    stack.callback(session.discard)
    talk = Talk(socket, services, session, wish, interpreter)
    await talk.send(
        {
            "type": "ready",
            "session": request_id,
            "model": name,
            "languages": list(wish.options.languages or scheduler.model.languages),
            "encoding": wish.encoding,
            "sample_rate": wish.sample_rate,
        }
    )
    return talk


class Talk(Exchange[Configure | Finalize | Voices]):
    """One client and its session; interpreter: what translates it."""

    def __init__(
        self,
        socket: WebSocket,
        services: Services,
        session: Live,
        wish: LiveWish,
        interpreter: Interpreting | None = None,
    ) -> None:
        super().__init__(socket, services)
        self._interpreter = interpreter
        self._session = session
        session.more = self.inbox.take_audio
        self._wish = wish
        self._reader = PcmReader(wish.encoding, wish.sample_rate)

    async def beside(self) -> None:
        if self._interpreter is not None:
            await self._interpreter.run(self.send)

    async def hear(self, samples: Samples) -> None:
        require_sound(samples)
        if self._interpreter is not None:
            self._interpreter.hear(samples, self._session.received_s)
        await super().hear(samples)

    async def on_binary(self, data: bytes) -> None:
        await self.hear(self._reader.read(data))

    async def on_text(self, text: str) -> None:
        """Act on a message; a wrong one leaves the session open."""
        try:
            message = read_message(text)
        except ApiError as error:
            await self.send({"type": "error", **error.body})
            return
        if isinstance(message, Close):
            await self.hear(self._reader.flush())
            await self.end(DONE)
        elif isinstance(message, Configure | Finalize | Voices):
            await self.inbox.put(message)

    async def on_audio(self, samples: Samples) -> None:
        await self._tell(await self._session.push(samples))
        self.count(self._session.received_s)

    async def on_word(self, word: Configure | Finalize | Voices) -> None:
        if isinstance(word, Configure):
            await self._unless_wrong(self._configure(word))
        elif isinstance(word, Voices):
            await self._unless_wrong(self._voices(word))
        else:
            await self._tell(await self._session.finalize())
            await self._say("finalized")

    async def on_ending(self) -> None:
        await self._tell(await self._session.close())
        if self._interpreter is not None and not await self._interpreter.finish():
            await self.send({"type": "error", **NOT_TRANSLATED.body})
        await self._say("closed")

    async def _unless_wrong(self, change: Awaitable[None]) -> None:
        """Change something under way; what is wrong leaves all as it was."""
        try:
            await change
        except Exception as error:
            fault = fault_of(error)
            if fault.status >= 500 and fault.code != UNAVAILABLE:
                raise
            await self.send({"type": "error", **logged(error, self.socket).body})

    async def _configure(self, message: Configure) -> None:
        wish = self._changed(message)
        told = await self._session.configure(wish.options)
        self._wish = wish
        await self._tell(told)
        await self._say("configured")

    async def _voices(self, message: Voices) -> None:
        known = await self._session.voices(read_voices(message.known))
        await self.send({"type": "voices", "voices": written_voices(known)})

    def _changed(self, message: Configure) -> LiveWish:
        """Raises: ApiError for what stands in the address for good."""
        wish = configured(self._wish, message.changes)
        for name in ("model", "encoding", "sample_rate", "translate_to"):
            if getattr(wish, name) != getattr(self._wish, name):
                said = f"{name}: expected in the address of the socket, got a change under way"
                raise ApiError(said, param=name, code="invalid_value")
        return wish

    async def _say(self, kind: str) -> None:
        await self.send({"type": kind, "received": round(self._session.received_s, 3)})

    async def _tell(self, told: Sequence[Told]) -> None:
        for one in told:
            await self.send(one.document)
        if self._interpreter is not None:
            self._interpreter.take(told)
