"""uvicorn's protocols of HTTP and WebSockets, with limits for connections that ask for nothing.

A connection has a place from its beginning to its end, and a time within which it must have said what it
wants. Knows no requests: what is in them, the app limits.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from sottovoce.serving.live.transport import HAS_HUNG_UP
from sottovoce.serving.settings import ServerLimits, ServerSettings

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 64 * 1024
"""That the system holds of a socket that is not read: a ping stands behind all of it, and is to be answered
before its client gives up."""
LOG_EVERY_S = 60.0
"""How often the log says that the system takes no more connections."""
RESERVED_FILES = 96
"""Of those that the process may open: models, temporary files, logs."""


class ConnectionGate:
    """Counts connections, all and by address. trusted: proxies, which stand for many clients."""

    def __init__(
        self, most: int, most_an_address: int, trusted: Callable[[str], bool], on_refused: Callable[[], None]
    ) -> None:
        self._most = most
        self._most_an_address = most_an_address
        self._trusted = trusted
        self._on_refused = on_refused
        self._counts: Counter[str] = Counter()

    @property
    def n_connections(self) -> int:
        """Connections that have a place."""
        return self._counts.total()

    def enter(self, address: str) -> bool:
        """Take a place; False where there is none."""
        is_crowd = self._counts[address] >= self._most_an_address and not self._trusted(address)
        if is_crowd or self.n_connections >= self._most:
            self._on_refused()
            return False
        self._counts[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Give up a place."""
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]


def make_gate(settings: ServerSettings, on_refused: Callable[[], None]) -> ConnectionGate:
    """Make the gate of a server, within what the system lets it open."""
    most = min(settings.limits.most_connections, max(1, file_limit() - RESERVED_FILES))
    an_address = settings.limits.connections_per_address or max(1, most // 2)
    return ConnectionGate(most, an_address, settings.access.is_proxy, on_refused)


def file_limit() -> int:
    """Return how many files and sockets this process may have open."""
    try:
        import resource
    except ImportError:  # Windows, where sockets are no files
        return 8192
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1_000_000 if soft == resource.RLIM_INFINITY else soft


def address_of(transport: asyncio.Transport) -> str:
    """Return the address of a connection's client; "": it has none."""
    where = get_remote_addr(transport)
    return where[0] if where else ""


def http_protocol(gate: ConnectionGate, limits: ServerLimits) -> type[asyncio.Protocol]:
    """Make the protocol of requests, of one server."""

    class GatedHttp(H11Protocol):
        _address: str | None = None
        _deadline: asyncio.TimerHandle | None = None
        _awaited: str | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            address = address_of(transport)
            if not gate.enter(address):
                transport.abort()
                return
            self._address = address
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_watching()
            if self._address is not None:
                gate.leave(self._address)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def _watch(self) -> None:
            """Await a head, or the rest of a body that nobody reads any more; at most so long."""
            is_head = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
            is_rest = self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
            is_here = self.transport.get_protocol() is self and not self.transport.is_closing()
            awaited = None if not is_here else "head" if is_head else "rest" if is_rest else None
            if awaited != self._awaited:
                self._stop_watching()
                self._awaited = awaited
                if awaited is not None:
                    seconds = limits.head_s if is_head else limits.upload_s
                    self._deadline = self.loop.call_later(seconds, self.transport.abort)

        def _stop_watching(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return GatedHttp


def websocket_protocol(gate: ConnectionGate) -> type[asyncio.Protocol]:
    """Make the protocol of WebSockets, of one server, which take over their connection's place."""

    class GatedWebSocket(WebSocketsSansIOProtocol):
        _received_s = 0.0

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            where = transport.get_extra_info("socket")
            self.app_state = {**self.app_state, HAS_HUNG_UP: self._has_hung_up}
            if where is not None:
                with suppress(OSError):
                    where.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)

        def connection_lost(self, exc: Exception | None) -> None:
            gate.leave(self.client[0] if self.client else "")
            super().connection_lost(exc)

        def _has_hung_up(self) -> bool:
            return self.disconnected or has_hung_up(self.transport.get_extra_info("socket"))

        async def send(self, message: Any) -> None:
            """Send; a handshake that was refused is complete: uvicorn reports a fault of ours else."""
            await super().send(message)
            if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
                self.handshake_complete = True

        def data_received(self, data: bytes) -> None:
            self._received_s = self.loop.time()
            super().data_received(data)

        def keepalive_timeout(self) -> None:
            """End a connection that is dead: not one whose answer stands behind audio that waits here."""
            if (self.read_paused or self._received_s > self.ping_sent_at) and self.ping_timeout is not None:
                self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
                self.ping_sent_at = self.loop.time()
            else:
                super().keepalive_timeout()

        def send_receive_event_to_app(self) -> None:
            """Hand on a message; one that is no UTF-8 ends the connection, without a fault of ours."""
            if self.curr_msg_data_type == "text":
                try:
                    self.frames = [b"".join(self.frames)]
                    self.frames[0].decode()
                except UnicodeDecodeError:
                    self.frames = []
                    self.conn.send_close(1007)
                    self.handle_parser_exception()
                    return
            super().send_receive_event_to_app()

    return GatedWebSocket


def has_hung_up(where: socket.socket | None) -> bool:
    """Return whether the other end of a socket has ended it, also while nothing is read of it.

    False where the system does not tell (Windows).
    """
    if where is None or where.fileno() < 0 or sys.platform == "win32":
        return False
    ended = select.POLLRDHUP if sys.platform == "linux" else select.POLLHUP
    poll = select.poll()
    poll.register(where.fileno(), ended)
    return bool(poll.poll(0))


class QuietLoop:
    """Handles what an event loop reports: that no connection can be taken is said once a while."""

    def __init__(self) -> None:
        self._logged_s = -LOG_EVERY_S

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "socket.accept()" not in str(context.get("message")):
            loop.default_exception_handler(context)
        elif loop.time() - self._logged_s >= LOG_EVERY_S:
            self._logged_s = loop.time()
            logger.error("the system takes no more connections", extra={"cause": str(context["exception"])})
