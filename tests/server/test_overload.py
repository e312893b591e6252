"""A model that falls behind after all: the newest sessions make room for the others."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from sottovoce.server import admission
from sottovoce.server.admission import OVERLOAD_S, LoadShedder, WatchedSession
from sottovoce.server.settings import ServerLimits, Work
from tests.server.servers import SlowModel, serving

SECOND = bytes(2 * 16_000)


class Waiting:
    """A session whose audio was not processed since it began.

    model: shared with others. received_s: None: only the audio that waits. more_s: of audio that waits in the
    connection.
    """

    def __init__(
        self, model: object, behind_s: float = 9.0, received_s: float | None = None, more_s: float = 0.0
    ) -> None:
        self.model = model
        self.behind_s = behind_s + more_s
        self.processed_s = 0.0 if received_s is None else received_s - behind_s

    def watch(self, shedder: LoadShedder, shed: Callable[[], None]) -> AbstractContextManager[None]:
        """Begin at second 0."""
        session = WatchedSession(self.model, 0.0, lambda: self.processed_s, lambda: self.behind_s, shed)
        return shedder.watch(session)


def watched(*sessions: Waiting, seconds: float, every_s: float = 1.0) -> list[int]:
    """Who is sent away within so long, by its number; somebody who is leaves."""
    now, sent = 0.0, list[int]()
    shedder = LoadShedder(3.0, lambda: now)
    held = {}
    for number, one in enumerate(sessions):
        held[number] = one.watch(shedder, partial(sent.append, number))
        held[number].__enter__()
    while now <= seconds:
        n_before = len(sent)
        shedder.check()
        for number in sent[n_before:]:
            held[number].__exit__(None, None, None)
        now += every_s
    return sent


LATE_S = 2.0
"""When sessions that began at 0 are late for the first time."""


def test_the_newest_goes_first_and_one_alone_stays() -> None:
    model = object()
    assert watched(*(Waiting(model) for _ in range(3)), seconds=LATE_S + OVERLOAD_S - 1) == []
    assert watched(*(Waiting(model) for _ in range(3)), seconds=LATE_S + OVERLOAD_S) == [2]
    assert watched(*(Waiting(model) for _ in range(3)), seconds=60.0) == [2, 1]


def test_what_waits_in_the_connection_counts() -> None:
    model = object()
    assert watched(*(Waiting(model, 1.0, more_s=2.0) for _ in range(2)), seconds=60.0) == [1]
    assert watched(*(Waiting(model, 1.0) for _ in range(2)), seconds=60.0) == []


def test_who_does_not_wait_is_no_burden_and_other_places_are_others() -> None:
    model = object()
    assert watched(Waiting(model), Waiting(model), Waiting(model, behind_s=0.0), seconds=60.0) == [1]
    assert watched(Waiting(model), Waiting(object()), seconds=60.0) == []
    assert watched(*(Waiting(model, 0.4) for _ in range(3)), Waiting(model), seconds=60.0) == []


def test_who_sends_ahead_of_the_time_is_not_late() -> None:
    """Two floods beside one who speaks: much waits, and more was worked on than time has passed."""
    model = object()
    floods = [Waiting(model, 9.0, received_s=100.0) for _ in range(2)]
    assert watched(Waiting(model, 0.4), *floods, seconds=60.0) == []


async def heard(socket: ClientConnection) -> tuple[int | None, list[dict[str, Any]]]:
    messages = []
    try:
        while True:
            messages.append(json.loads(await asyncio.wait_for(socket.recv(), 20)))
    except ConnectionClosed:
        return socket.close_code, messages


@pytest.mark.parametrize("forecast", [True, False])
def test_a_session_that_makes_room_is_told_when_to_come_again(
    monkeypatch: pytest.MonkeyPatch, forecast: bool
) -> None:
    monkeypatch.setattr(admission, "OVERLOAD_S", 0.0)
    is_slow = False

    async def run() -> list[tuple[int | None, list[dict[str, Any]]]]:
        nonlocal is_slow
        address = f"ws://{server.address}/v1/live"
        async with connect(address) as first, connect(address) as newer:
            for socket in (first, newer):
                assert json.loads(await socket.recv())["type"] == "ready"
            is_slow = True
            for message in (*(SECOND[:9_600],) * 10, '{"type": "close"}'):
                for socket in (first, newer):
                    with suppress(ConnectionClosed):
                        await socket.send(message)
                await asyncio.sleep(0.3)
            is_slow = False
            return [await heard(first), await heard(newer)]

    model = SlowModel(lambda: time.sleep(1.0 if is_slow else 0.0))
    with serving(model, limits=ServerLimits(wait_s=0.4), work=Work(forecast=forecast, engines=1)) as server:
        (first_code, _), (newer_code, messages) = asyncio.run(run())
    assert first_code == 1000
    assert newer_code == (1013 if forecast else 1000)
    if forecast:
        assert messages[-1]["error"]["code"] == "rate_limit_exceeded"
        assert 10 <= messages[-1]["error"]["retry_after"] <= 20


def test_nobody_goes_where_the_event_loop_itself_is_late() -> None:
    """As under a flood of handshakes that are refused: a look that should come every second comes later."""
    model = object()
    late = [Waiting(model) for _ in range(3)]
    assert watched(*late, seconds=60.0, every_s=1.0) == [2, 1]
    assert watched(*late, seconds=60.0, every_s=1.1) == []


def test_nobody_goes_while_sessions_catch_up_with_what_held_up_the_event_loop() -> None:
    now_s, sent = 0.0, list[float]()
    shedder, model = LoadShedder(3.0, lambda: now_s), object()
    late = [Waiting(model, 4.0, received_s=0.0) for _ in range(2)]
    with ExitStack() as stack:
        for one in late:
            stack.enter_context(one.watch(shedder, lambda: sent.append(now_s)))
        shedder.check()
        now_s = 10.0
        while now_s <= 17.0:
            shedder.check()
            now_s += 1.0
    assert sent == [10.0 + 4.0 + OVERLOAD_S], "as they are as late as before by then"
