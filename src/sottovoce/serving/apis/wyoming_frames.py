"""Events of the Wyoming protocol (Home Assistant) over TCP: a line of JSON, more JSON, audio.

Read by ourselves rather than by the `wyoming` package, whose reader takes any length that a client claims.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import anyio

from sottovoce.formats.document import Json, json_text
from sottovoce.serving.parsing.client_json import read_json
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.fields import wrong
from sottovoce.serving.settings import ServerLimits

MAX_LINE = 64 * 1024
"""Bytes of the first line."""
MAX_DATA = 256 * 1024
"""Bytes of JSON behind it."""
MAX_UNREAD = 1024 * 1024
"""Bytes that a client may leave unread: it may well read only when it has said all."""
LINGER_S = 1.0


@dataclass(frozen=True, slots=True)
class Frame:
    """One event. data: what it says. payload: audio."""

    kind: str
    data: Mapping[str, object] = field(default_factory=dict)
    payload: bytes = b""


async def read_frame(reader: asyncio.StreamReader, max_payload: int) -> Frame | None:
    """Read the next event; None at the end of the stream.

    reader: its limit is that of a line. max_payload: bytes of audio.
    Raises: ApiError for what is no event, or too large a one; nothing can be read after it.
    """
    try:
        line = await reader.readline()
    except ValueError:
        raise wrong("event", f"a line of at most {MAX_LINE} bytes", "more") from None
    if not line:
        return None
    header = object_of("event", line)
    kind = header.get("type")
    if not isinstance(kind, str):
        raise wrong("type", "a text", f"'{str(kind)[:50]}'")
    n_data = length_of("data_length", header.get("data_length"), MAX_DATA)
    n_payload = length_of("payload_length", header.get("payload_length"), max_payload)
    try:
        more = await reader.readexactly(n_data)
        payload = await reader.readexactly(n_payload)
    except asyncio.IncompleteReadError:
        return None
    data = header.get("data") or {}
    if not isinstance(data, dict):
        raise wrong("data", "an object", f"'{str(data)[:50]}'")
    return Frame(kind, {**data, **(object_of("data", more) if more else {})}, payload)


def frame_bytes(document: Mapping[str, Json]) -> bytes:
    """Write an event; document: its `type`, and its data."""
    data = {name: value for name, value in document.items() if name != "type"}
    more = json_text(data).encode() if data else b""
    header: dict[str, Json] = {"type": document["type"], "version": "1.8.0"}
    if more:
        header["data_length"] = len(more)
    return json_text(header).encode() + b"\n" + more


class FrameTransport:
    """A TCP connection, as a `Transport` of frames; a client may leave unread some of what it is sent.

    address: of the client. heard_at_s: by the clock, when its last frame was there, or it connected.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: ServerLimits
    ) -> None:
        self.request_id = f"req_{uuid.uuid4().hex}"
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._longest_s = min(limits.head_s, limits.idle_s)
        """Until the next frame: the first one comes with the connection."""
        peer = writer.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self.heard_at_s = time.monotonic()

    async def receive(self) -> Frame | None:
        """See `Transport`; None where the client has gone or says no more. Raises: ApiError."""
        with anyio.move_on_after(self._longest_s):
            try:
                frame = await read_frame(self._reader, self._limits.message_kb * 1024)
            except OSError:
                return None
            self._longest_s, self.heard_at_s = self._limits.idle_s, time.monotonic()
            return frame
        message = f"client: expected something within {self._longest_s:g} s"
        raise ApiError(message, code="idle_timeout")

    def has_gone(self) -> bool:
        """See `Transport`; False: who says no more may still read."""
        return False

    async def send(self, document: dict[str, Json]) -> None:
        """See `Transport`; document: an event's type and data. Raises: ApiError."""
        self._writer.write(frame_bytes(document))
        if self._writer.transport.get_write_buffer_size() > MAX_UNREAD:
            raise ApiError("client: expected to take what it is sent", code="slow_reader")

    async def close(self, code: int = 0, reason: str = "") -> None:
        """Close the connection; one whose client does not take what it was sent is cut.

        What it still says is read for a moment: closing before that would take back what it was sent.
        """
        if self._writer.is_closing():
            return
        with anyio.move_on_after(LINGER_S), suppress(OSError):
            self._writer.write_eof()
            while await self._reader.read(MAX_LINE):
                pass
        self._writer.close()
        with anyio.move_on_after(self._limits.send_s, shield=True) as waiting, suppress(OSError):
            await self._writer.wait_closed()
        if waiting.cancelled_caught:
            self._writer.transport.abort()

    def drop(self, document: dict[str, Json]) -> None:
        """Close the connection at once, with a last event where the client takes it; its reading ends."""
        self._writer.write(frame_bytes(document))
        if self._writer.transport.get_write_buffer_size():
            self._writer.transport.abort()
        else:
            self._writer.close()

    async def fail(self, fault: ApiError, document: dict[str, Json]) -> None:
        """See `Transport`."""
        self._writer.write(frame_bytes(document))
        await self.close()


def object_of(name: str, text: bytes) -> dict[str, object]:
    """Read an object of JSON. Raises: ApiError."""
    found = read_json(text)
    if not isinstance(found, dict):
        raise ApiError(f"{name}: expected a JSON object", code="invalid_message")
    return found


def length_of(name: str, value: object, limit: int) -> int:
    """Read how much follows. Raises: ApiError for what is no length, or too much."""
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise wrong(name, f"0 to {limit} bytes", f"'{str(value)[:50]}'")
    return value
