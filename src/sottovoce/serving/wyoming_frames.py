"""Events of the Wyoming protocol (Home Assistant) as bytes: a line of JSON, more JSON, audio.

Read by ourselves rather than by the `wyoming` package, whose reader takes any length that a client claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from sottovoce.formats.document import Json, json_text
from sottovoce.serving.client_json import read_json
from sottovoce.serving.faults import ApiError
from sottovoce.serving.fields import wrong

MOST_LINE = 64 * 1024
"""Bytes of the first line."""
MOST_DATA = 256 * 1024
"""Bytes of JSON behind it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event. data: what it says. payload: audio."""

    kind: str
    data: Mapping[str, object] = field(default_factory=dict)
    payload: bytes = b""


async def read_frame(reader: asyncio.StreamReader, most_payload: int) -> Frame | None:
    """The next event; None at the end of the stream.

    reader: its limit is that of a line. most_payload: bytes of audio.
    Raises: ApiError for what is no event, or too large a one; nothing can be read after it.
    """
    try:
        line = await reader.readline()
    except ValueError:
        raise wrong("event", f"a line of at most {MOST_LINE} bytes", "more") from None
    if not line:
        return None
    header = object_of("event", line)
    kind = header.get("type")
    if not isinstance(kind, str):
        raise wrong("type", "a text", f"'{str(kind)[:50]}'")
    n_data = length_of("data_length", header.get("data_length"), MOST_DATA)
    n_payload = length_of("payload_length", header.get("payload_length"), most_payload)
    try:
        more = await reader.readexactly(n_data)
        payload = await reader.readexactly(n_payload)
    except asyncio.IncompleteReadError:
        return None
    data = header.get("data") or {}
    if not isinstance(data, dict):
        raise wrong("data", "an object", f"'{str(data)[:50]}'")
    return Frame(kind, {**data, **(object_of("data", more) if more else {})}, payload)


def frame_bytes(kind: str, data: Mapping[str, Json]) -> bytes:
    """An event as it is sent."""
    more = json_text(dict(data)).encode() if data else b""
    header: dict[str, Json] = {"type": kind, "version": "1.8.0"}
    if more:
        header["data_length"] = len(more)
    return json_text(header).encode() + b"\n" + more


def object_of(name: str, text: bytes) -> dict[str, object]:
    """Raises: ApiError for what is no JSON object."""
    found = read_json(text)
    if not isinstance(found, dict):
        raise ApiError(f"{name}: expected a JSON object", code="invalid_message")
    return found


def length_of(name: str, value: object, most: int) -> int:
    """How much follows. Raises: ApiError for what is no length, or too much."""
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise wrong(name, f"0 to {most} bytes", f"'{str(value)[:50]}'")
    return value
