"""Sessions are accepted up to the number that the model keeps up with, measured when it is loaded."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection

from sottovoce.api import Model
from sottovoce.runtime.calls import RunOnHost
from sottovoce.server import scheduler
from sottovoce.server.errors import ApiError
from sottovoce.server.scheduler import Scheduler
from sottovoce.server.settings import Work
from sottovoce.streaming.options import LiveOptions
from tests.server.conversation import connected, received, say
from tests.server.servers import SECOND, ServerThread, SlowModel, serving, wait_until, working

UPDATE_S = 0.1
"""Work for half a second of audio: 0.2 s a second, and 1.75 times as much for speech. Two have room."""


@contextmanager
def measured(work: Callable[[], None] = lambda: time.sleep(UPDATE_S)) -> Iterator[ServerThread]:
    with serving(SlowModel(work), work=Work(engines=1)) as server:
        yield server


def join(server: ServerThread, sockets: list[ClientConnection], n_clients: int = 6) -> list[dict[str, Any]]:
    """Connect clients at once: add sockets of those that are accepted, and return errors of the others."""
    errors = []

    def connect(_: int) -> None:
        try:
            sockets.append(connected(server))
        except InvalidStatus as fault:
            answer = fault.response
            assert answer.status_code == 429
            error = json.loads(answer.body)["error"]
            errors.append({**error, "retry_after": int(answer.headers["retry-after"])})

    with ThreadPoolExecutor(n_clients) as clients:
        list(clients.map(connect, range(n_clients)))
    return errors


def test_clients_that_come_together_are_accepted_up_to_the_measured_number() -> None:
    with measured() as server, ExitStack() as stack:
        sockets: list[ClientConnection] = []
        errors = join(server, sockets)
        assert (len(sockets), len(errors)) == (2, 4)
        for error in errors:
            assert error["code"] == "rate_limit_exceeded"
            assert 10 <= error["retry_after"] <= 20
            assert re.match("2 live sessions are as many as this model keeps up with", error["message"])
        assert 'sottovoce_most_sessions{model="nano"} 2.0' in httpx.get(f"{server.url}/metrics").text
        sockets.pop().close()
        wait_until(lambda: server.services.n_sessions == 1)
        assert len(join(server, sockets)) == 5
        for socket in sockets:
            stack.enter_context(socket)


def test_a_session_without_audio_has_no_place_and_one_that_is_processed_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "IDLE_S", 0.5)
    is_slow = False
    with measured(lambda: time.sleep(2.0 if is_slow else UPDATE_S)) as server, ExitStack() as stack:
        idle: list[ClientConnection] = []
        assert len(join(server, idle)) == 4
        time.sleep(0.6)
        active: list[ClientConnection] = []
        assert len(join(server, active)) == 4
        is_slow = True
        for socket in active:
            say(socket, SECOND)
        time.sleep(1.0)
        assert len(join(server, [])) == 6
        for socket in (*idle, *active):
            stack.enter_context(socket)


class FollowingModel(SlowModel):
    """A model that tells languages apart."""

    can_detect_languages = True


@pytest.mark.parametrize(
    ("most", "kinds", "accepted"),
    [
        (4, "ggggg", "gggg"),
        (4, "fffff", "fff"),
        (4, "fgofg", "fgo"),  # "off" follows nothing
        (4, "ssg", "sg"),  # two sources that follow are 2.67 sessions, and no four
        (44, 34 * "f", 33 * "f"),
        (1, "ff", "f"),
        (1, "gf", "g"),
    ],
)
def test_sessions_that_follow_languages_take_the_places_that_they_cost(
    most: int, kinds: str, accepted: str
) -> None:
    options = {
        "g": LiveOptions(("en",)),
        "f": LiveOptions(("en", "de")),
        "o": LiveOptions(("en", "de"), switching="off"),
        "s": LiveOptions(),
    }

    async def run() -> str:
        running = Scheduler(FollowingModel(), Work(engines=1, forecast=False))  # type: ignore[arg-type]
        running.most_sessions = most
        opened = ""
        try:
            for kind in kinds:
                with suppress(ApiError):
                    await running.open(options[kind], sources=("A", "B") if kind == "s" else ())
                    opened += kind
            return opened
        finally:
            running.close()
            await asyncio.to_thread(running.join, 10.0)

    assert asyncio.run(run()) == accepted


def test_one_session_is_accepted_whatever_it_costs() -> None:
    with measured(lambda: time.sleep(0.6)) as server, connected(server) as first:
        assert received(first)["type"] == "ready"
        assert len(join(server, [])) == 6


def test_a_measurement_that_fails_refuses_nobody() -> None:
    def fail() -> None:
        raise RuntimeError("no room for it")

    with measured(fail) as server, ExitStack() as stack:
        sockets: list[ClientConnection] = []
        assert join(server, sockets) == []
        for socket in sockets:
            stack.enter_context(socket)


def test_the_measurement_of_a_model_ends_with_a_number(nano: Model) -> None:
    async def run() -> int | None:
        running = Scheduler(nano, Work(engines=2, threads=2))
        try:
            await running.calibrate()
            assert running.n_active == 0
            return running.most_sessions
        finally:
            running.close()
            await asyncio.to_thread(running.join, 10.0)

    assert (asyncio.run(run()) or 0) >= 1


def test_time_that_an_engine_waits_for_the_processor_is_no_work_of_a_session() -> None:
    worked_s: list[float] = []
    with working() as worker:
        caller = worker.runtime.caller(on_work=worked_s.append)
        worker.submit(lambda: caller.run(RunOnHost(lambda: time.sleep(0.2))), caller=caller).result(30)
    assert worked_s
    assert sum(worked_s) < 0.2
