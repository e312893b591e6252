"""`/v1/live`: a socket of the server's own protocol (docs/protocol.md), audio in and events out.

Three tasks a session: one reads the socket into an inbox, one works it off and sends what follows, one waits
for the server to go down. None of them runs the model.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import anyio
import numpy as np
from starlette.websockets import WebSocket, WebSocketDisconnect

from sottovoce.formats.document import Json, json_text
from sottovoce.serving.faults import ApiError, fault_of
from sottovoce.serving.gate import SUBPROTOCOL
from sottovoce.serving.inbox import Inbox
from sottovoce.serving.observed import close_with
from sottovoce.serving.pcm import PcmReader
from sottovoce.serving.protocol import Close, Configure, Finalize, LiveWish, configured, read_message
from sottovoce.serving.scheduler import Live
from sottovoce.serving.state import Services, services_of
from sottovoce.serving.told import Told
from sottovoce.types import SAMPLE_RATE, Samples

logger = logging.getLogger(__name__)

DONE, GOING_DOWN = 1000, 1012


class GoneError(Exception):
    """The client is not there any more."""


async def live(socket: WebSocket) -> None:
    """One session, from the handshake to the close code."""
    await socket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in socket.scope["subprotocols"] else None)
    services = services_of(socket)
    try:
        async with AsyncExitStack() as stack:
            talk = await opened(socket, services, stack)
            await talk.run()
    except (GoneError, WebSocketDisconnect):
        return
    except Exception as error:
        fault = fault_of(error)
        if fault.status >= 500 and not isinstance(error, ApiError):
            request_id = socket.scope["state"]["request_id"]
            logger.error("session failed", exc_info=error, extra={"request_id": request_id})
        await last_words(socket, fault, services.settings.limits.send_s)


async def opened(socket: WebSocket, services: Services, stack: AsyncExitStack) -> Talk:
    """Check what the address asks for, and begin.

    Raises: ApiError, OptionError, ModelNotFoundError.
    """
    wish = configured(LiveWish(), dict(socket.query_params.items()))
    stack.enter_context(services.session())
    name = services.shelf.name_of(wish.model)
    scheduler = await stack.enter_async_context(services.shelf.use(name))
    services.check_wait(scheduler)
    session = await scheduler.open(wish.options)
    stack.callback(session.discard)
    talk = Talk(socket, services, session, wish)
    await talk.send(
        {
            "type": "ready",
            "session": socket.scope["state"]["request_id"],
            "model": name,
            "languages": list(wish.options.languages or scheduler.model.languages),
            "encoding": wish.encoding,
            "sample_rate": wish.sample_rate,
        }
    )
    return talk


class Talk:
    """One client and its session."""

    def __init__(self, socket: WebSocket, services: Services, session: Live, wish: LiveWish) -> None:
        self._socket = socket
        self._services = services
        self._limits = services.settings.limits
        self._session = session
        self._wish = wish
        self._reader = PcmReader(wish.encoding, wish.sample_rate)
        self._inbox: Inbox[Configure | Finalize | int] = Inbox(round(self._limits.pending_s * SAMPLE_RATE))
        self._has_ended = False

    async def run(self) -> None:
        """Until the client closes, goes, or is asked to.

        Raises: GoneError; ApiError where it broke the rules.
        """
        failed: list[Exception] = []
        async with anyio.create_task_group() as tasks:

            async def until_failed(work: Callable[[], Awaitable[None]]) -> None:
                try:
                    await work()
                except Exception as error:
                    failed.append(error)
                    tasks.cancel_scope.cancel()

            tasks.start_soon(until_failed, self._listen)
            tasks.start_soon(until_failed, self._leave)
            await until_failed(self._work)
            tasks.cancel_scope.cancel()
        if failed:
            raise failed[0]

    async def send(self, document: dict[str, Json]) -> None:
        """Send one message.

        Raises: ApiError where the client does not take it in time; GoneError.
        """
        with anyio.move_on_after(self._limits.send_s) as waiting:
            try:
                await self._socket.send_text(json_text(document))
            except (WebSocketDisconnect, RuntimeError) as error:
                raise GoneError from error
        if waiting.cancelled_caught:
            message = f"client: expected to take what it is sent within {self._limits.send_s:g} s"
            raise ApiError(message, code="slow_reader")

    async def _listen(self) -> None:
        """Read the socket until the client says that nothing more comes."""
        while not self._has_ended:
            message = await self._received()
            data, text = message.get("bytes"), message.get("text")
            if isinstance(data, bytes):
                await self._inbox.put_audio(self._checked(self._reader.read(data)))
            elif isinstance(text, str):
                await self._understand(text)

    async def _received(self) -> dict[str, object]:
        """Raises: GoneError; ApiError after a silence that is too long."""
        with anyio.move_on_after(self._limits.idle_s) as waiting:
            message = await self._socket.receive()
        if waiting.cancelled_caught:
            said = f"session: expected audio or 'keepalive' within {self._limits.idle_s:g} s"
            raise ApiError(said, code="idle_timeout")
        if message["type"] == "websocket.disconnect":
            raise GoneError
        return dict(message)

    async def _understand(self, text: str) -> None:
        """Act on a text message; a wrong one leaves the session open."""
        try:
            message = read_message(text)
        except ApiError as error:
            await self.send({"type": "error", **error.body})
            return
        if isinstance(message, Close):
            await self._end(DONE)
        elif isinstance(message, Configure | Finalize):
            self._inbox.put(message)

    def _checked(self, samples: Samples) -> Samples:
        """Raises: ApiError for what is not a sound."""
        if not np.isfinite(samples).all():
            raise ApiError("audio: expected finite samples, got NaN or infinity", code="invalid_audio")
        return samples

    async def _leave(self) -> None:
        await self._services.until_leaving()
        await self._end(GOING_DOWN)

    async def _end(self, code: int) -> None:
        """Work off what came, say the rest, and close with the code."""
        if not self._has_ended:
            self._has_ended = True
            await self._inbox.put_audio(self._reader.flush())
            self._inbox.put(code)

    async def _work(self) -> None:
        """Work off the inbox in its order."""
        while True:
            item = await self._inbox.take()
            if isinstance(item, np.ndarray):
                await self._hear(item)
            elif isinstance(item, Configure):
                await self._configure(item)
            elif isinstance(item, Finalize):
                await self._tell(await self._session.finalize())
                await self.send({"type": "finalized", "received": round(self._session.received_s, 3)})
            else:
                await self._close(item)
                return

    async def _hear(self, samples: Samples) -> None:
        self._services.metrics.live_seconds.add(len(samples) / SAMPLE_RATE)
        await self._tell(await self._session.push(samples))
        if self._session.received_s > self._limits.session_s:
            message = f"session: expected at most {self._limits.session_s:g} s of audio"
            raise ApiError(message, code="session_too_long")

    async def _configure(self, message: Configure) -> None:
        """Change what can be changed under way; what is wrong leaves all as it was."""
        try:
            wish = configured(self._wish, message.changes)
            kept = ("model", "encoding", "sample_rate")
            changed = [name for name in kept if getattr(wish, name) != getattr(self._wish, name)]
            if changed:
                said = f"{changed[0]}: expected in the address of the socket, got a change under way"
                raise ApiError(said, param=changed[0], code="invalid_value")
            told = await self._session.configure(wish.options)
        except Exception as error:
            fault = fault_of(error)
            if fault.status >= 500:
                raise
            await self.send({"type": "error", **fault.body})
            return
        self._wish = wish
        await self._tell(told)
        await self.send({"type": "configured", "received": round(self._session.received_s, 3)})

    async def _close(self, code: int) -> None:
        """Say the rest and close."""
        await self._tell(await self._session.close())
        await self.send({"type": "closed", "received": round(self._session.received_s, 3)})
        reason = "the server is shutting down" if code == GOING_DOWN else ""
        await self._socket.close(code, reason)

    async def _tell(self, told: Sequence[Told]) -> None:
        for one in told:
            await self.send(one.document)


async def last_words(socket: WebSocket, fault: ApiError, within_s: float) -> None:
    """Say on a socket that may be gone or stalled why it ends."""
    with anyio.move_on_after(within_s):
        try:
            await close_with(socket, fault)
        except (WebSocketDisconnect, RuntimeError):
            return
