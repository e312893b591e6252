"""What goes between the server and a process of a model, over a pair of sockets that nobody else has.

Messages are pickled, each behind its length: both ends are this program.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from dataclasses import dataclass, field
from typing import Any

from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.scheduling.engine_thread import EngineState
from sottovoce.types import Event

LENGTH = struct.Struct("!Q")
STATE_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a process: its model is there, or why not. n_bytes: of its weights."""

    languages: tuple[str, ...] = ()
    n_bytes: int = 0
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class ProcessCall:
    """Something that is answered. number: of the answer. item: a session or a recording; 0: the model."""

    number: int
    item: int
    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for the answer to a call any more."""

    number: int


@dataclass(frozen=True, slots=True)
class OneWayMessage:
    """Something that is not answered, about a session or a recording."""

    item: int
    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """To a call: a value, or what the client is told instead."""

    number: int
    value: Any = None
    fault: ApiError | None = None


@dataclass(frozen=True, slots=True)
class SessionProgress:
    """What a session has said; n_waiting: samples of it here that no update has heard."""

    events: list[Event]
    n_waiting: int


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What a process is at, several times a second. See `ModelWork` and `LoadForecast`.

    n_open: live sessions. cost: the part of its engines' time that one more would take. live_work: seconds
    waited and worked of what was done since the last state.
    """

    engines: tuple[EngineState, ...] = ()
    n_waiting: int = 0
    live_wait_s: float = 0.0
    n_open: int = 0
    part: float = 0.0
    cost: float = 0.0
    trouble: str | None = None
    live_work: tuple[tuple[float, float], ...] = field(default=())


def packed(message: object) -> bytes:
    """Return a message as bytes behind its length."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


async def received(reader: asyncio.StreamReader) -> Any:
    """Return the next message. Raises: EOFError where the other end has gone."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, OSError) as error:
        raise EOFError from error
