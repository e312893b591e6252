"""Sessions are taken as long as the model will keep up with all of them, also those that begin together."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any, cast

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from sottovoce.api import Model
from sottovoce.runtime.update_interval import UpdateIntervalController
from sottovoce.server import scheduler as scheduling
from sottovoce.server.admission import IDLE_S, MAX_LOAD, MEASURED_S, LoadForecast, SessionLoad
from sottovoce.server.errors import ApiError
from sottovoce.server.scheduler import Scheduler, SessionHandle, voice_like_sound
from sottovoce.server.settings import Work
from tests.server.servers import ServerThread, SlowModel, make_worker, serving, wait_until

SECOND = bytes(2 * 16_000)


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
    assert cheap.load < forecast_load(0.2)


def forecast_load(cost: float) -> float:
    made = forecast(cost)
    made.enter()
    return made.load


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
    assert len(voice_like_sound(1.0)) == 16_000


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


async def joined(server: ServerThread, sockets: list[ClientConnection]) -> list[dict[str, Any]]:
    """What those are told who are refused; the others are among the sockets."""
    refused = []
    for opened in await asyncio.gather(
        *(connect(f"ws://{server.address}/v1/live") for _ in range(6)), return_exceptions=True
    ):
        if isinstance(opened, InvalidStatus):
            assert opened.response.status_code == 429
            error = json.loads(opened.response.body)["error"]
            refused.append({**error, "retry_after": int(opened.response.headers["retry-after"])})
        else:
            assert not isinstance(opened, BaseException)
            sockets.append(opened)
    return refused


def test_of_those_who_come_together_the_model_takes_what_it_can() -> None:
    async def run(server: ServerThread) -> None:
        sockets: list[ClientConnection] = []
        refused = await joined(server, sockets)
        assert (len(sockets), len(refused)) == (2, 4)
        for error in refused:
            assert error["code"] == "rate_limit_exceeded"
            assert 10 <= error["retry_after"] <= 20
            assert re.match("2 live sessions are as many as this model keeps up with", error["message"])
        await sockets.pop().close()
        await asyncio.to_thread(wait_until, lambda: server.services.n_sessions == 1)
        assert len(await joined(server, sockets)) == 5
        for socket in sockets:
            await socket.close()

    with serving(SlowModel(), work=Work(forecast=False, engines=1)) as server:
        server.services.registry.schedulers[0].forecast.set_cost(0.4)
        asyncio.run(run(server))


def test_a_forecast_that_was_not_made_refuses_nobody_whatever_sessions_cost() -> None:
    """As with `--no-forecast`."""
    made = LoadForecast(1, clock=Clock())
    for _ in range(20):
        speak(made.enter(), 3.0, 2 * MEASURED_S)
    assert made.load > MAX_LOAD
    made.check()


def test_time_that_an_engine_waits_for_the_processor_is_no_work_of_a_session() -> None:
    worked_s: list[float] = []
    worker = make_worker()
    try:
        caller = worker.runtime.caller(on_work=worked_s.append)
        worker.submit(lambda: caller.run_on_host(lambda: time.sleep(0.2)), caller=caller).result(30)
    finally:
        worker.close()
        worker.join(30)
    assert worked_s
    assert sum(worked_s) < 0.2
