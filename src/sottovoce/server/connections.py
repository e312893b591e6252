"""Limits of connections: their number, their share of the event loop, and their end.

A `Connection` between the system's transport and uvicorn's protocol passes data on in small pieces, so that
many share the event loop, and limits framing without payload.
"""

from __future__ import annotations

import asyncio
import logging
import re
import select
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from starlette.status import WS_1008_POLICY_VIOLATION
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import InvalidState
from websockets.frames import DATA_OPCODES, Frame

from sottovoce.server.live import HAS_HUNG_UP
from sottovoce.server.settings import ServerLimits, ServerSettings

MAX_HEAD_BYTES = 64 * 1024
MAX_FRAMES_BYTES = 16 * 1024
"""2,700 empty frames."""
PAYLOAD_PER_FRAMING_BYTE = 8
"""Payload that pays for one byte of framing: chunks of 48 bytes pay for their own."""
FRAMING_BYTES_PER_S = 512
"""85 small messages a second."""
logger = logging.getLogger(__name__)
RECEIVE_BYTES = 64 * 1024
"""The system's receive buffer of a WebSocket; a ping waits behind all of it."""
PIECE_BYTES, FRAMES_PIECE_BYTES = 8 * 1024, 2048
"""Data that is parsed at once: at most 1,400 chunks or 340 frames, about 2 ms."""
TURN_BYTES, FRAMING_COST = 64 * 1024, 32
"""Most data of one turn of a connection, about 1 ms; a byte of framing counts as so many."""
TURN_S = 0.002
REST_RATIO = 3.0
FRAME_BYTES = 6
"""Of framing, for a masked frame with less than 126 bytes (RFC 6455, 5.2)."""
LINGER_S, LINGER_BYTES = 5.0, 64_000_000
"""Time that a connection with an unread request stays open while its client reads nothing of the answer, and
data dropped meanwhile. Closing at once would reset it, and lose the answer.
"""
HEAD_END = re.compile(rb"\r?\n\r?\n")
HEAD_BEGIN = re.compile(rb"[A-Z\r\n]")
"""Of a method, or an empty line before it; the parser refuses anything else, such as TLS, at once."""
UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:[^\r\n]*", re.IGNORECASE)
OTHER_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:(?![ \t]*websocket[ \t]*\r\n)[^\r\n]*", re.IGNORECASE)
"""The header of an upgrade to another protocol than WebSockets (Java's clients offer HTTP/2). Servers may
ignore it (RFC 9110, 7.8); httptools would end the request.
"""
NO_PROGRESS = "framing: expected at least 8 bytes of payload for each byte of framing"


class FramingDebt:
    """Bytes of framing not paid for by payload or time."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._n_bytes = 0.0
        self._noted_s = 0.0

    @property
    def is_too_large(self) -> bool:
        return self._n_bytes > self._most_bytes

    @property
    def is_small(self) -> bool:
        return self._n_bytes < self._most_bytes / 8

    def note(self, n_framing: int, n_payload: int, now_s: float) -> None:
        self._n_bytes = max(0.0, self._n_bytes - FRAMING_BYTES_PER_S * (now_s - self._noted_s))
        self._n_bytes = max(0.0, self._n_bytes + n_framing - n_payload / PAYLOAD_PER_FRAMING_BYTE)
        self._noted_s = now_s

    def clear(self) -> None:
        self._n_bytes = 0.0


class MeteredHttp(HttpToolsProtocol):
    """uvicorn's protocol of requests; counts their payload.

    An answer closes the connection if the body has not arrived by then.
    """

    transport: Connection
    is_in_message = False
    n_payload = 0
    _keeps_alive = False

    @property
    def is_unanswered(self) -> bool:
        """Whether a whole request awaits the end of its answer."""
        return not (self.is_in_message or self.cycle is None or self.cycle.response_complete)

    def on_message_begin(self) -> None:
        self.is_in_message = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.cycle is not None:
            self._keeps_alive, self.cycle.keep_alive = self.cycle.keep_alive, False

    def on_body(self, body: bytes) -> None:
        self.n_payload += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.is_in_message = False
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = self._keeps_alive
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.transport.answered()


class WebSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol of WebSockets; counts frames and their payload. It reads the next message when the
    last one was taken.
    """

    n_frames = n_payload = 0

    def handle_events(self) -> None:
        frames = [event for event in self.conn.events if isinstance(event, Frame)]
        self.n_frames += len(frames)
        self.n_payload += sum(len(frame.data) for frame in frames if frame.opcode in DATA_OPCODES)
        super().handle_events()

    def shutdown(self) -> None:
        """Close, also while the client's end of the connection is being awaited."""
        with suppress(InvalidState):
            super().shutdown()
        self.transport.close()


class ConnectionGate:
    """Counts connections, in all and by address. trusted: whether an address is a proxy, without its own
    limit.
    """

    def __init__(
        self, most: int, max_per_address: int, trusted: Callable[[str], bool], on_refused: Callable[[], None]
    ) -> None:
        self._most = most
        self._max_per_address = max_per_address
        self._trusted = trusted
        self._on_refused = on_refused
        self._counts: Counter[str] = Counter()
        self.connections: set[Connection] = set()

    @property
    def n_connections(self) -> int:
        return self._counts.total()

    def enter(self, address: str) -> bool:
        is_crowd = self._counts[address] >= self._max_per_address and not self._trusted(address)
        if is_crowd or self.n_connections >= self._most:
            self._on_refused()
            return False
        self._counts[address] += 1
        return True

    def leave(self, address: str) -> None:
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]


def make_gate(settings: ServerSettings, on_refused: Callable[[], None]) -> ConnectionGate:
    # 96: files and sockets that are no connections of clients.
    most = min(settings.limits.most_connections, max(1, file_limit() - 96))
    an_address = settings.limits.connections_per_address or max(1, most // 2)
    return ConnectionGate(most, an_address, settings.access.is_proxy, on_refused)


def file_limit() -> int:
    try:
        import resource
    except ImportError:  # Windows, where sockets are no files
        return 8192
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1_000_000 if soft == resource.RLIM_INFINITY else soft


class Turns:
    """Shares the event loop among connections with more data than one turn parses."""

    def __init__(self) -> None:
        self._waiting: deque[Connection] = deque()
        self._handle: asyncio.Handle | None = None
        self._rests_until_s = 0.0

    def add(self, connection: Connection) -> None:
        if connection not in self._waiting:
            self._waiting.append(connection)
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_at(self._rests_until_s, self._run)

    def remove(self, connection: Connection) -> None:
        with suppress(ValueError):
            self._waiting.remove(connection)

    def _run(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while self._waiting and loop.time() - began_s < TURN_S:
            connection = self._waiting.popleft()
            try:
                is_more = connection.take_turn()
            except Exception:  # as asyncio does: only this connection ends
                logger.exception("a connection failed")
                connection.abort()
                continue
            if is_more:
                self._waiting.append(connection)
        self._handle = loop.call_soon(self._rest, began_s)  # behind the tasks that handle what was parsed

    def _rest(self, began_s: float) -> None:
        loop = asyncio.get_running_loop()
        ended_s = loop.time()
        self._rests_until_s = ended_s + REST_RATIO * (ended_s - began_s)
        self._handle = loop.call_at(self._rests_until_s, self._run) if self._waiting else None


class Connection(asyncio.Protocol, asyncio.Transport):
    """One connection. dead_s: time without data, pongs included, before a WebSocket is closed."""

    http: MeteredHttp
    _transport: asyncio.Transport

    def __init__(self, gate: ConnectionGate, limits: ServerLimits, turns: Turns, dead_s: float) -> None:
        super().__init__()
        self._gate = gate
        self._limits = limits
        self._turns = turns
        self._dead_s = dead_s
        self._loop = asyncio.get_running_loop()
        self._address: str | None = None
        self._data = bytearray()
        self._n_searched = 0
        """Leading bytes of the data without the end of a head."""
        self._sockets: WebSocket | None = None
        self._debt = FramingDebt(MAX_HEAD_BYTES)
        self._has_written = False
        self._is_paused = False
        self._is_closing = False
        self._is_lost = False
        self._n_dropped = 0
        self._received_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _inner(self) -> asyncio.Protocol:
        return self._sockets or self.http

    # The protocol of the system's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address, _ = get_remote_addr(self._transport) or ("", 0)
        if not self._gate.enter(address):
            self._transport.abort()
            return
        self._address = address
        self._gate.connections.add(self)
        # asyncio does this for sockets that name their protocol, which accepted ones do not. Without it the
        # second write of an answer waits for the client's delayed acknowledgement, 40 ms.
        self._set_option(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._end_after(self._limits.head_s)
        self._inner.connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._data.clear()
        self._turns.remove(self)
        self._stop_timer()
        if self._address is not None:
            self._gate.connections.discard(self)
            self._gate.leave(self._address)
            self._report_lost(exc)

    def _report_lost(self, exc: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            self._n_dropped += len(data)
            if self._n_dropped > LINGER_BYTES:
                self._transport.abort()
            return
        self._received_s = self._loop.time()
        self._data += data
        self._watch_head()
        if len(self._data) > PIECE_BYTES or not self._debt.is_small or self.take_turn():
            self._transport.pause_reading()
            self._turns.add(self)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    # The transport of uvicorn's protocol

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._transport.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._inner

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._sockets = cast(WebSocket, protocol)
        if not self.is_closing():
            self._has_written = False
            self._debt = FramingDebt(MAX_FRAMES_BYTES)
            self._end_when_dead()
            self._set_option(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def pause_reading(self) -> None:
        self._is_paused = True
        if not self.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        self._continue()

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        """Write, or drop data of a closing connection, which asyncio would log or refuse."""
        if not self.is_closing():
            self._transport.write(data)
        if not self._has_written:
            self._has_written = True
            self._received_s = self._loop.time()  # no client answers pings before its handshake is answered
            self._continue()

    def close(self) -> None:
        """Close; the rest of an incomplete request is dropped unread."""
        if self.http.is_in_message or self._data:
            self._linger()
        elif not self._is_closing:
            self._is_closing = True
            self._transport.close()
            self._end_when_stuck(self._limits.send_s)

    def abort(self) -> None:
        self._is_closing = True
        self._transport.abort()

    def answered(self) -> None:
        self._has_written = False
        self._watch_head()
        self._continue()

    def has_hung_up(self) -> bool:
        return self.is_closing() or has_hung_up(self._transport.get_extra_info("socket"))

    # Turns

    def take_turn(self) -> bool:
        """Pass on the data of one turn; return whether there is more."""
        n_left, n_bytes = TURN_BYTES, self._n_next()
        while n_left > 0 and n_bytes:
            piece = bytes(self._data[:n_bytes])
            del self._data[:n_bytes]
            forward = self._forward_request if self._sockets is None else self._forward_frames
            n_left -= max(n_bytes, FRAMING_COST * forward(piece))
            n_bytes = self._n_next(takes_several=self._sockets is not None)
        is_more = self._n_next() > 0
        if self.is_closing():
            return False
        if is_more or self._is_paused or (self._is_unanswered and self._data):
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
        return is_more

    def _continue(self) -> None:
        if not (self._is_paused or self.is_closing()):
            self._turns.add(self) if self._data else self._transport.resume_reading()

    @property
    def _is_unanswered(self) -> bool:
        return self.http.is_unanswered if self._sockets is None else not self._has_written

    def _n_next(self, *, takes_several: bool = False) -> int:
        """takes_several: further messages, though the first one has not been taken."""
        is_paused = self._is_paused and not takes_several
        if not self._data or is_paused or self._is_unanswered or self.is_closing():
            return 0
        if self._sockets is not None:
            return min(FRAMES_PIECE_BYTES, len(self._data))
        if self.http.is_in_message:
            return min(PIECE_BYTES, len(self._data))
        head = HEAD_END.search(self._data, max(0, self._n_searched - 3), MAX_HEAD_BYTES)
        self._n_searched = len(self._data)
        if head is not None:
            self._n_searched = 0
            return head.end()
        if not HEAD_BEGIN.match(self._data):
            return min(PIECE_BYTES, len(self._data))
        if len(self._data) > MAX_HEAD_BYTES:
            self._refuse("431 Request Header Fields Too Large", "head: expected at most 64 kB")
        return 0

    def _forward_request(self, piece: bytes) -> int:
        """Return the number of bytes of framing."""
        http, n_payload = self.http, self.http.n_payload
        if not http.is_in_message:
            if piece.startswith(b"CONNECT "):
                self._refuse("405 Method Not Allowed", "expected a request, got a tunnel")
                return 0
            piece = (OTHER_UPGRADE if piece.lstrip().startswith(b"GET ") else UPGRADE).sub(b"", piece)
        http.data_received(piece)
        if self._sockets is not None or self.is_closing():
            return 0
        if http.is_in_message or http.is_unanswered:
            self._stop_timer()
        n_payload = http.n_payload - n_payload
        n_framing = len(piece) - n_payload
        self._debt.note(n_framing, n_payload, self._received_s)
        if not http.is_in_message:
            self._debt.clear()
        elif self._debt.is_too_large:
            self._refuse("400 Bad Request", NO_PROGRESS)
        return n_framing

    def _forward_frames(self, piece: bytes) -> int:
        assert self._sockets is not None
        before = self._sockets.n_frames, self._sockets.n_payload
        self._sockets.data_received(piece)
        n_frames, n_payload = self._sockets.n_frames - before[0], self._sockets.n_payload - before[1]
        self._debt.note(FRAME_BYTES * n_frames, n_payload, self._received_s)
        if self._debt.is_too_large:
            self._refuse("", NO_PROGRESS)
        return FRAME_BYTES * n_frames

    def _set_option(self, level: int, name: int, value: int) -> None:
        if (where := self._transport.get_extra_info("socket")) is not None:
            with suppress(OSError):
                where.setsockopt(level, name, value)

    # Ends

    def _refuse(self, status: str, reason: str) -> None:
        logger.warning("a connection was closed", extra={"cause": reason, "client": self._address})
        text = reason.encode()
        if self._sockets is not None:
            self.write(b"\x88" + bytes([2 + len(text)]) + WS_1008_POLICY_VIOLATION.to_bytes(2, "big") + text)
        elif not self._has_written:
            head = f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: text/plain\r\n"
            self.write(f"{head}content-length: {len(text)}\r\n\r\n{reason}".encode())
        self._linger()
        self._report_lost(None)  # a session gives up its place now, not when the client has read why

    def _linger(self) -> None:
        """Drop further data until the client closes or `LINGER_S` is over."""
        if self.is_closing():
            return
        self._is_closing = True
        self._data.clear()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()
        self._end_when_stuck(LINGER_S)

    def _watch_head(self) -> None:
        is_awaited = self._sockets is None and not (self.http.is_in_message or self._is_unanswered)
        if is_awaited and self._data and self._timer is None:
            self._end_after(self._limits.head_s)

    def _end_when_dead(self) -> None:
        if self._is_paused or self._data or self._is_unanswered:
            self._received_s = self._loop.time()
        left_s = self._received_s + self._dead_s - self._loop.time()
        if left_s <= 0:
            self.abort()
        elif not self.is_closing():
            self._stop_timer()
            self._timer = self._loop.call_later(left_s, self._end_when_dead)

    def _end_when_stuck(self, seconds: float, n_before: int | None = None) -> None:
        n_unsent = self._transport.get_write_buffer_size()
        if n_unsent == n_before:
            self.abort()
        else:
            self._stop_timer()
            self._timer = self._loop.call_later(seconds, self._end_when_stuck, seconds, n_unsent)

    def _end_after(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, self.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def make_connections(
    gate: ConnectionGate, limits: ServerLimits, dead_s: float
) -> Callable[..., asyncio.Protocol]:
    turns = Turns()

    def make(
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> asyncio.Protocol:
        connection = Connection(gate, limits, turns, dead_s)
        state = {**app_state, HAS_HUNG_UP: connection.has_hung_up}
        connection.http = MeteredHttp(config, server_state, state, _loop)
        return connection

    return make


def has_hung_up(where: socket.socket | None) -> bool:
    """Return whether the other end has closed; False where the system does not tell (Windows)."""
    if where is None or where.fileno() < 0 or sys.platform == "win32":
        return False
    ended = select.POLLRDHUP if sys.platform == "linux" else select.POLLHUP
    poll = select.poll()
    poll.register(where.fileno(), ended)
    return bool(poll.poll(0))
