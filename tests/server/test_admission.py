"""Sessions are taken as long as the model keeps up with all; if it falls behind, the newest make room."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from typing import Any, cast

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from sottovoce.api import Model
from sottovoce.runtime.update_interval import UpdateIntervalController
from sottovoce.server import admission
from sottovoce.server import scheduler as scheduling
from sottovoce.server.admission import (
    IDLE_S,
    MAX_LOAD,
    MEASURED_S,
    OVERLOAD_S,
    LoadForecast,
    LoadShedder,
    SessionLoad,
    WatchedSession,
)
from sottovoce.server.errors import ApiError
from sottovoce.server.scheduler import Scheduler, SessionHandle, voice_like_sound
from sottovoce.server.settings import ServerLimits, Work
from tests.server.conversation import connected, received, rest, say
from tests.server.servers import SECOND, ServerThread, SlowModel, serving, wait_until, working


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def forecast(usual: float, n_engines: int = 1, clock: Clock | None = None) -> LoadForecast:
    made = LoadForecast(n_engines, clock=clock or Clock())
    made.set_cost(usual)
    return made


def n_taken(made: LoadForecast, most: int = 100) -> int:
    """Sessions until one is refused."""
    n = 0
    while n < most and made.has_capacity:
        made.enter()
        n += 1
    if n < most:
        with pytest.raises(ApiError) as refused:
            made.enter()
        assert refused.value.status == 429
        assert 10 <= refused.value.retry_after <= 20
    return n


def speak(load: SessionLoad, cost: float, seconds: float, interval_s: float = 0.5) -> None:
    load.add_work(cost * seconds)
    load.add_audio(seconds, interval_s)


def test_sessions_have_room_by_what_they_cost_and_engines_add_up() -> None:
    one, two = n_taken(forecast(0.3)), n_taken(forecast(0.3, n_engines=2))
    assert 0 < one < two
    assert one * 0.3 <= MAX_LOAD < (one + 1) * 0.3


def test_one_alone_is_taken_whatever_it_costs_and_all_where_nothing_is_known() -> None:
    assert n_taken(forecast(50.0)) == 1
    assert n_taken(forecast(0.0)) == 100


def test_who_leaves_makes_room() -> None:
    made = forecast(0.4)
    loads = [made.enter(), made.enter()]
    with pytest.raises(ApiError):
        made.enter()
    made.leave(loads[0])
    made.leave(loads[0])
    assert made.enter()
    with pytest.raises(ApiError):
        made.enter()


def test_what_is_measured_counts_more_than_the_forecast() -> None:
    dear, cheap = forecast(0.2), forecast(0.2)
    speak(dear.enter(), 1.1, MEASURED_S)
    speak(cheap.enter(), 0.1, 20 * MEASURED_S)
    assert not dear.has_capacity
    assert n_taken(dear) == 0
    unmeasured = forecast(0.2)
    unmeasured.enter()
    assert cheap.load < unmeasured.load


def test_work_at_a_longer_interval_counts_as_what_it_is_at_the_shortest() -> None:
    slow, fast = forecast(0.1), forecast(0.1)
    speak(fast.enter(), 0.4, MEASURED_S)
    speak(slow.enter(), 0.2, MEASURED_S, interval_s=2.0)
    assert slow.load == pytest.approx(fast.load)


def test_a_silent_session_keeps_half_of_its_place() -> None:
    made = forecast(0.4)
    load = made.enter()
    for _ in range(50):
        speak(load, 0.0, MEASURED_S)
    assert load.cost == pytest.approx(0.2)
    assert made.typical_cost == 0.4


def test_a_machine_that_gets_busy_takes_fewer() -> None:
    made = forecast(0.2)
    load = made.enter()
    for _ in range(20):
        speak(load, 0.6, MEASURED_S)
    assert made.typical_cost == pytest.approx(0.6, rel=0.1)


def test_a_machine_that_stood_still_takes_as_many_afterwards() -> None:
    """Whether those who are here speak, or are silent, for twenty minutes."""
    for cost in (0.2, 0.01):
        made = forecast(0.2)
        load = made.enter()
        before = made.load
        speak(load, 500.0, MEASURED_S)
        assert 0.2 < made.typical_cost <= 0.4, "one measurement is no proof"
        for _ in range(10):
            speak(load, 500.0, MEASURED_S)
        assert made.typical_cost > 0.8
        assert not made.has_capacity
        for _ in range(300):
            speak(load, cost, MEASURED_S)
        assert made.typical_cost == pytest.approx(0.2)
        assert made.load <= before * 1.001
        assert n_taken(made) >= 3


def test_who_sends_no_audio_keeps_no_place_and_has_it_again() -> None:
    clock = Clock()
    made = forecast(0.25, clock=clock)
    loads = [made.enter() for _ in range(3)]
    assert not made.has_capacity
    clock.now_s += IDLE_S + 0.1
    assert made.load < 0.1
    assert made.has_capacity
    for load in loads:
        speak(load, 0.4, 1.0)
    assert not made.has_capacity


def test_one_alone_is_taken_though_another_line_is_not_known_to_be_dead() -> None:
    clock = Clock()
    made = forecast(50.0, clock=clock)
    made.enter()
    assert not made.has_capacity
    clock.now_s += IDLE_S + 0.1
    assert n_taken(made) == 1


def test_whose_work_is_under_way_is_not_idle() -> None:
    """However long it takes: on a slow machine others would be taken into its place."""
    clock = Clock()
    made = forecast(50.0, clock=clock)
    made.enter().is_processing = True
    clock.now_s += 10 * IDLE_S
    assert not made.has_capacity


def calibrated(model: Model, work: Work) -> LoadForecast:
    """The forecast of a model after its measurement."""

    async def run() -> LoadForecast:
        scheduler = Scheduler(model, work)
        try:
            await scheduler.calibrate()
            return scheduler.forecast
        finally:
            scheduler.close()
            await asyncio.to_thread(scheduler.join, 10.0)

    return asyncio.run(run())


def test_a_voice_costs_about_what_a_second_of_work_takes(nano: Model) -> None:
    found = calibrated(nano, Work(engines=2, threads=2))
    assert 0.01 < found.typical_cost < 10.0
    assert round(1000 * found.load) == 0, "the sessions of the measurement have gone"
    assert len(voice_like_sound()) == 4 * 16_000


@pytest.mark.parametrize("reported", ["stretched", "slow", "failing"])
def test_a_measurement_ends_no_server(nano: Model, monkeypatch: pytest.MonkeyPatch, reported: str) -> None:
    """Whose updates are far apart, which hears nothing in time, or which fails: then all are taken."""
    if reported == "stretched":
        monkeypatch.setattr(UpdateIntervalController, "interval_s", 2.0)
    if reported == "failing":
        monkeypatch.setattr(scheduling, "calibrate", broken)
    else:
        monkeypatch.setattr(scheduling, "CALIBRATION_TIMEOUT_S", 0.0)
    assert (calibrated(nano, Work(engines=1)).typical_cost > 0.0) is (reported != "failing")


async def broken(scheduler: Scheduler, n_engines: int) -> float:
    raise RuntimeError("no room for it")


def test_what_hears_nothing_costs_nothing_that_is_known() -> None:
    class Deaf:
        load = forecast(0.0).enter()

        async def push(self, sound: object) -> None:
            pass

    assert asyncio.run(scheduling.measure_cost(cast("SessionHandle", Deaf()), voice_like_sound())) == 0.0


def joined(server: ServerThread, sockets: list[ClientConnection]) -> list[dict[str, Any]]:
    """What those of six are told who are refused; the others are among the sockets."""
    refused = []

    def join(_: int) -> None:
        try:
            sockets.append(connected(server))
        except InvalidStatus as fault:
            answer = fault.response
            assert answer.status_code == 429
            error = json.loads(answer.body)["error"]
            refused.append({**error, "retry_after": int(answer.headers["retry-after"])})

    with ThreadPoolExecutor(6) as clients:
        list(clients.map(join, range(6)))
    return refused


def test_of_those_who_come_together_the_model_takes_what_it_can() -> None:
    with serving(SlowModel(), work=Work(forecast=False, engines=1)) as server, ExitStack() as stack:
        server.services.registry.schedulers[0].forecast.set_cost(0.4)
        sockets: list[ClientConnection] = []
        refused = joined(server, sockets)
        assert (len(sockets), len(refused)) == (2, 4)
        for error in refused:
            assert error["code"] == "rate_limit_exceeded"
            assert 10 <= error["retry_after"] <= 20
            assert re.match("2 live sessions are as many as this model keeps up with", error["message"])
        sockets.pop().close()
        wait_until(lambda: server.services.n_sessions == 1)
        assert len(joined(server, sockets)) == 5
        for socket in sockets:
            stack.enter_context(socket)


def test_a_forecast_that_was_not_made_refuses_nobody_whatever_sessions_cost() -> None:
    """As with `--no-forecast`."""
    made = LoadForecast(1, clock=Clock())
    for _ in range(20):
        speak(made.enter(), 3.0, 2 * MEASURED_S)
    assert made.load > MAX_LOAD
    made.check()


def test_time_that_an_engine_waits_for_the_processor_is_no_work_of_a_session() -> None:
    worked_s: list[float] = []
    with working() as worker:
        caller = worker.runtime.caller(on_work=worked_s.append)
        worker.submit(lambda: caller.run_on_host(lambda: time.sleep(0.2)), caller=caller).result(30)
    assert worked_s
    assert sum(worked_s) < 0.2


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


@pytest.mark.parametrize("forecast", [True, False])
def test_a_session_that_makes_room_is_told_when_to_come_again(
    monkeypatch: pytest.MonkeyPatch, forecast: bool
) -> None:
    monkeypatch.setattr(admission, "OVERLOAD_S", 0.0)
    is_slow = False
    model, work = SlowModel(lambda: time.sleep(1.0 if is_slow else 0.0)), Work(forecast=forecast, engines=1)
    with (
        serving(model, limits=ServerLimits(wait_s=0.4), work=work) as server,
        connected(server) as first,
        connected(server) as newer,
    ):
        for socket in (first, newer):
            assert received(socket)["type"] == "ready"
        is_slow = True
        for message in (*(SECOND[:9_600],) * 10, '{"type": "close"}'):
            for socket in (first, newer):
                with suppress(ConnectionClosed):
                    say(socket, message)
            time.sleep(0.3)
        is_slow = False
        rest(first)
        messages = rest(newer)
    assert first.close_code == 1000
    assert newer.close_code == (1013 if forecast else 1000)
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
