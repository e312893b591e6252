"""A model that falls behind after all: the newest sessions make room for the others."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import Any, cast

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from sottovoce.serving.scheduling import overload
from sottovoce.serving.scheduling.model_work import LiveWork
from sottovoce.serving.scheduling.overload import LASTS_S, OverloadWatch
from sottovoce.serving.settings import ServerLimits, Work
from tests.serving.servers import SlowModel, serving

SECOND = bytes(2 * 16_000)


class Waiting:
    """A session that waits. place: shared with others."""

    def __init__(self, place: object, live_wait_s: float = 9.0, behind_s: float = 9.0) -> None:
        self.place = place
        self.live_wait_s = live_wait_s
        self.behind_s = behind_s


def watched(*sessions: Waiting, seconds: float) -> list[int]:
    """Who is sent away within so long, by its number; somebody who is leaves."""
    now, sent = 0.0, list[int]()
    watch = OverloadWatch(3.0, lambda: now)
    held = {}
    for number, one in enumerate(sessions):
        held[number] = watch.placed(cast(LiveWork, one), lambda number=number: sent.append(number))  # type: ignore[misc]
        held[number].__enter__()
    while now <= seconds:
        n_before = len(sent)
        watch.look()
        for number in sent[n_before:]:
            held[number].__exit__(None, None, None)
        now += 1.0
    return sent


def test_the_newest_goes_first_and_one_alone_stays() -> None:
    place = object()
    assert watched(*(Waiting(place) for _ in range(3)), seconds=LASTS_S - 1) == []
    assert watched(*(Waiting(place) for _ in range(3)), seconds=LASTS_S) == [2]
    assert watched(*(Waiting(place) for _ in range(3)), seconds=60.0) == [2, 1]


def test_who_does_not_wait_is_no_burden_and_other_places_are_others() -> None:
    place = object()
    assert watched(Waiting(place), Waiting(place), Waiting(place, behind_s=0.0), seconds=60.0) == [1]
    assert watched(Waiting(place), Waiting(object()), seconds=60.0) == []
    assert watched(Waiting(place, 2.0), Waiting(place, 2.0), seconds=60.0) == []


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
    monkeypatch.setattr(overload, "LASTS_S", 0.0)
    is_slow = False

    async def run() -> list[tuple[int | None, list[dict[str, Any]]]]:
        nonlocal is_slow
        address = f"ws://{server.address}/v1/live"
        async with connect(address) as first, connect(address) as newer:
            for socket in (first, newer):
                assert json.loads(await socket.recv())["type"] == "ready"
            is_slow = True
            for message in (*(SECOND,) * 5, '{"type": "close"}'):
                for socket in (first, newer):
                    with suppress(ConnectionClosed):
                        await socket.send(message)
                await asyncio.sleep(0.3)
            is_slow = False
            return [await heard(first), await heard(newer)]

    model = SlowModel(lambda: time.sleep(0.5 if is_slow else 0.0))
    with serving(model, limits=ServerLimits(wait_s=0.2), work=Work(forecast=forecast, engines=1)) as server:
        (first_code, _), (newer_code, messages) = asyncio.run(run())
    assert first_code == 1000
    assert newer_code == (1013 if forecast else 1000)
    if forecast:
        assert messages[-1]["error"]["code"] == "rate_limit_exceeded"
        assert 10 <= messages[-1]["error"]["retry_after"] <= 20
