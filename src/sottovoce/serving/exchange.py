"""One socket while it is open: what comes goes into an inbox, is worked off in order, what follows is sent.

Four tasks: one reads, one works, one does what goes on beside that, one waits for the server to go down. None
of them runs the model. What the
messages are, the protocols know (`live`, `realtime`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import anyio
import numpy as np
from starlette.websockets import WebSocket, WebSocketDisconnect

from sottovoce.formats.document import Json, json_text
from sottovoce.serving.faults import ApiError, logged_fault
from sottovoce.serving.inbox import Inbox
from sottovoce.serving.observed import close_with, own_error
from sottovoce.serving.state import Services
from sottovoce.types import SAMPLE_RATE, Samples

W = TypeVar("W")

DONE, GOING_DOWN = 1000, 1012


class GoneError(Exception):
    """The client is not there any more."""


class Ending(int):
    """The last word in an inbox: the code to close with."""


class Exchange(ABC, Generic[W]):
    """A client and what it says; the words of its protocol are `W`."""

    def __init__(self, socket: WebSocket, services: Services) -> None:
        self.socket = socket
        self.services = services
        self.limits = services.settings.limits
        self.inbox: Inbox[W | Ending] = Inbox(round(self.limits.pending_s * SAMPLE_RATE))
        self._has_ended = False
        self._counted_s = 0.0

    @abstractmethod
    async def on_binary(self, data: bytes) -> None:
        """A binary message came."""

    @abstractmethod
    async def on_text(self, text: str) -> None:
        """A text message came."""

    @abstractmethod
    async def on_audio(self, samples: Samples) -> None:
        """It is the turn of audio."""

    @abstractmethod
    async def on_word(self, word: W) -> None:
        """It is the turn of a word."""

    @abstractmethod
    async def on_ending(self) -> None:
        """Nothing more comes: say the rest."""

    async def beside(self) -> None:
        """What goes on beside the work, until that ends; nothing, unless a protocol says so."""

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
            tasks.start_soon(until_failed, self.beside)
            await until_failed(self._work)
            tasks.cancel_scope.cancel()
        if failed:
            raise failed[0]

    async def send(self, document: dict[str, Json]) -> None:
        """Send one message.

        Raises: ApiError where the client does not take it in time; GoneError.
        """
        with anyio.move_on_after(self.limits.send_s) as waiting:
            try:
                await self.socket.send_text(json_text(document))
            except (WebSocketDisconnect, RuntimeError) as error:
                raise GoneError from error
        if waiting.cancelled_caught:
            message = f"client: expected to take what it is sent within {self.limits.send_s:g} s"
            raise ApiError(message, code="slow_reader")

    async def hear(self, samples: Samples) -> None:
        """Put audio into the inbox; returns when there is room for more.

        Raises: ApiError for what is not a sound.
        """
        require_sound(samples)
        await self.inbox.put_audio(samples)

    async def end(self, code: int) -> None:
        """Work off what came, and close with the code; nothing more is read."""
        if not self._has_ended:
            self._has_ended = True
            await self.inbox.put(Ending(code))

    def count(self, received_s: float) -> None:
        """Note audio that was worked on: the seconds of the session so far.

        Raises: ApiError where the session is too long.
        """
        self.services.metrics.live_seconds.add(received_s - self._counted_s)
        self._counted_s = received_s
        if received_s > self.limits.session_s:
            message = f"session: expected at most {self.limits.session_s:g} s of audio"
            raise ApiError(message, code="session_too_long")

    async def _listen(self) -> None:
        while not self._has_ended:
            message = await self._received()
            data, text = message.get("bytes"), message.get("text")
            if isinstance(data, bytes):
                await self.on_binary(data)
            elif isinstance(text, str):
                await self.on_text(text)

    async def _received(self) -> dict[str, object]:
        """Raises: GoneError; ApiError after a silence that is too long."""
        with anyio.move_on_after(self.limits.idle_s) as waiting:
            message = await self.socket.receive()
        if waiting.cancelled_caught:
            said = f"session: expected a message within {self.limits.idle_s:g} s"
            raise ApiError(said, code="idle_timeout")
        if message["type"] == "websocket.disconnect":
            raise GoneError
        return dict(message)

    async def _leave(self) -> None:
        await self.services.until_leaving()
        await self.end(GOING_DOWN)

    async def _work(self) -> None:
        while True:
            item = await self.inbox.take()
            if isinstance(item, np.ndarray):
                await self.on_audio(item)
            elif isinstance(item, Ending):
                await self.on_ending()
                reason = "the server is shutting down" if item == GOING_DOWN else ""
                await self.socket.close(int(item), reason)
                return
            else:
                await self.on_word(item)


def require_sound(samples: Samples) -> None:
    """Raises: ApiError for samples that are not finite."""
    if not np.isfinite(samples).all():
        raise ApiError("audio: expected finite samples, got NaN or infinity", code="invalid_audio")


def logged(error: Exception, socket: WebSocket) -> ApiError:
    """What the client is told of an error, whose cause goes into the log where it is not the client's."""
    return logged_fault(error, socket.scope["state"]["request_id"], "session failed")


@asynccontextmanager
async def last_words(
    socket: WebSocket, services: Services, shape: Callable[[ApiError], dict[str, Json]] = own_error
) -> AsyncIterator[None]:
    """Let an error in here be the last thing that the client hears, where it still listens.

    shape: of the message that tells it.
    """
    try:
        yield
    except (GoneError, WebSocketDisconnect):
        return
    except Exception as error:
        fault = logged(error, socket)
        with anyio.move_on_after(services.settings.limits.send_s):
            try:
                await close_with(socket, fault, shape)
            except (WebSocketDisconnect, RuntimeError):
                return
