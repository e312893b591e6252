"""The transport of one live client, a WebSocket, and how an error is sent over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from sottovoce.formats.document import Json, json_text
from sottovoce.serving.api import error_answer
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.settings import ServerLimits

M = TypeVar("M", covariant=True)

REFUSED = 1008
"""Close code for what no other try will change."""
FAILED = 1011
TRY_AGAIN = 1013
MAX_REASON_BYTES = 120
"""Of a close reason: a control frame has 125 in all."""

HAS_HUNG_UP = "has_hung_up"
"""In the state of a socket's scope: a function that returns whether the client has gone."""


class GoneError(Exception):
    """The client has disconnected."""


class Transport(Protocol[M]):
    """The messages of one client, of type M. request_id: names the connection in the log."""

    request_id: str

    async def receive(self) -> M | None:
        """Return the next message; None at the end of input, after which the client may still read.

        Raises: GoneError; ApiError after too long a silence, and for an invalid message.
        """
        ...

    def has_gone(self) -> bool:
        """Return whether the client is known to have disconnected, also while its input is not read."""
        ...

    async def send(self, document: dict[str, Json]) -> None:
        """Send one message.

        Raises: GoneError; ApiError if the client does not read.
        """
        ...

    async def close(self, code: int, reason: str = "") -> None:
        """Close the connection, with a code of WebSockets if the transport has any. Raises: GoneError."""
        ...

    async def fail(self, fault: ApiError, document: dict[str, Json]) -> None:
        """Close the connection after an error; document: the last message. Raises: GoneError."""
        ...


class WebSocketTransport:
    """A WebSocket, as a `Transport` of binary and text messages."""

    def __init__(self, socket: WebSocket, limits: ServerLimits) -> None:
        self.request_id: str = socket.scope["state"]["request_id"]
        self._socket = socket
        self._limits = limits
        self._has_hung_up: Callable[[], bool] = socket.scope["state"].get(HAS_HUNG_UP, bool)

    async def accept(self, subprotocol: str | None) -> None:
        """Accept the handshake, with the subprotocol if the client offers it. Raises: GoneError."""
        offered = self._socket.scope["subprotocols"]
        try:
            await self._socket.accept(subprotocol=subprotocol if subprotocol in offered else None)
        except OSError as error:
            raise GoneError from error

    async def receive(self) -> bytes | str | None:
        with anyio.move_on_after(self._limits.idle_s):
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                raise GoneError
            data: bytes | None = message.get("bytes")
            text: str = message.get("text") or ""
            return text if data is None else data
        text = f"session: expected a message within {self._limits.idle_s:g} s"
        raise ApiError(text, code="idle_timeout")

    def has_gone(self) -> bool:
        """See `Transport`; False where the HTTP server does not report it."""
        return self._has_hung_up()

    async def send(self, document: dict[str, Json]) -> None:
        await self.send_text(json_text(document))

    async def send_text(self, text: str) -> None:
        """Send a text within `ServerLimits.send_s`. Raises: GoneError, ApiError."""
        with anyio.move_on_after(self._limits.send_s):
            try:
                await self._socket.send_text(text)
            except (WebSocketDisconnect, RuntimeError) as error:
                raise GoneError from error
            return
        message = f"client: expected to take what it is sent within {self._limits.send_s:g} s"
        raise ApiError(message, code="slow_reader")

    async def close(self, code: int, reason: str = "") -> None:
        try:
            await self._socket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise GoneError from error

    async def fail(self, fault: ApiError, document: dict[str, Json]) -> None:
        """See `Transport`; an open handshake is refused with a status of HTTP.

        Raises: GoneError.
        """
        try:
            if self._socket.application_state == WebSocketState.CONNECTING:
                await deny(self._socket, fault)
            else:
                await self._socket.send_text(json_text(document))
                code = TRY_AGAIN if fault.retry_s is not None else FAILED if fault.status >= 500 else REFUSED
                reason = fault.message.encode()[:MAX_REASON_BYTES].decode("utf-8", "ignore")
                await self._socket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError, OSError) as error:
            raise GoneError from error


async def deny(socket: WebSocket, fault: ApiError) -> None:
    await socket.send_denial_response(error_answer(socket, fault))


def own_error(fault: ApiError) -> dict[str, Json]:
    """Render an error of the live protocol, which is OpenAI's with the time to retry after."""
    again: dict[str, Json] = {} if fault.retry_s is None else {"retry_after": fault.retry_after}
    return {"type": "error", "error": {**fault.details, **again}}
