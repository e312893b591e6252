"""The model's thread: live sessions in rounds, recordings between them, and updates that come less often."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar, cast

import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.errors import OptionError
from sottovoce.formats.document import event_document
from sottovoce.options.live import LiveOptions
from sottovoce.runtime import batching
from sottovoce.runtime.batching import CallBatcher, Priority
from sottovoce.server.errors import ApiError
from sottovoce.server.scheduler import Scheduler, SessionHandle
from sottovoce.server.worker import Worker
from sottovoce.types import SAMPLE_RATE, Event
from tests.server.servers import SlowModel, make_worker

T = TypeVar("T")
TENTH = np.zeros(1600, np.float32)


@asynccontextmanager
async def opened(level: int = 0) -> AsyncIterator[tuple[SlowModel, Scheduler, SessionHandle]]:
    """A live session of a slow model. level: of the interval between updates."""
    model = SlowModel()
    scheduler = Scheduler(cast(Model, model))
    scheduler.worker.interval_controller._level = level
    try:
        yield model, scheduler, await scheduler.open(LiveOptions())
    finally:
        scheduler.close()
        scheduler.join(10)


@contextmanager
def working(n_engines: int = 1) -> Iterator[Worker]:
    model = make_worker(n_engines)
    yield model
    model.close()
    model.join(10)


def calling(model: Worker, work: Callable[[], T], priority: Priority = Priority.LIVE) -> Future[T]:
    """Submit work that the model does."""
    caller = model.runtime.caller()
    return model.submit(lambda: caller.run_on_host(work), priority, caller)


def failing(error: Exception) -> str:
    raise error


def test_work_ends_with_what_it_returns_or_raises() -> None:
    with working() as model:
        good, bad = calling(model, lambda: "a"), calling(model, lambda: failing(OptionError("mine")))
        other = model.submit(lambda: "c")
        assert (good.result(10), other.result(10)) == ("a", "c")
        with pytest.raises(OptionError, match="mine"):
            bad.result(10)
    with pytest.raises(ApiError):
        model.submit(lambda: "d")


@pytest.mark.parametrize("n_engines", [1, 2])
def test_a_recording_has_its_turn_however_much_live_work_there_is(
    n_engines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "PATIENCE_S", 0.2)
    is_over, n_live = threading.Event(), 0

    def live() -> None:
        nonlocal n_live
        while not is_over.is_set():
            caller.run_on_host(lambda: is_over.wait(0.01))
            n_live += 1

    with working(n_engines) as model:
        sessions = []
        for _ in range(3 * n_engines):
            caller = model.runtime.caller()
            sessions.append(threading.Thread(target=live))
            sessions[-1].start()
        while n_live < 3:
            is_over.wait(0.001)
        before = n_live
        assert calling(model, lambda: n_live, Priority.FILE).result(20) > before, "live work goes first"
        is_over.set()
        for one in sessions:
            one.join(10)


def test_work_under_way_at_the_end_is_told_so() -> None:
    is_there, is_free = threading.Event(), threading.Event()

    def held() -> None:
        is_there.set()
        is_free.wait(10)

    with working() as model:
        first = calling(model, held)
        assert is_there.wait(10)
        second = calling(model, lambda: None, Priority.FILE)
        while not model.runtime.waiting:
            is_free.wait(0.001)
        model.close()
        with pytest.raises(ApiError, match="shutting down"):
            second.result(10)
        is_free.set()
        first.result(10)


def test_a_fault_of_the_engine_itself_ends_what_is_under_way_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = CallBatcher.round
    faults = [AssertionError("of the engine")]

    def round_(engine: CallBatcher) -> Priority | None:
        if faults:
            raise faults.pop()
        return plain(engine)

    monkeypatch.setattr(CallBatcher, "round", round_)
    with working() as model:
        with pytest.raises(AssertionError, match="of the engine"):
            calling(model, lambda: "lost").result(10)
        assert calling(model, lambda: "kept").result(10) == "kept"


@pytest.mark.parametrize(("level", "calls"), [(0, [2.0, 4.0, 6.0, 7.0]), (2, [7.0])], ids=["idle", "load"])
def test_under_load_one_update_takes_all_that_came_meanwhile(level: int, calls: list[float]) -> None:
    async def run() -> list[float]:
        heard: list[float] = []
        async with opened(level) as (_, _, session):
            process = session._process

            def noted() -> list[Event]:
                events = process()
                heard.append(session.processed_s)
                return events

            session._process = noted  # type: ignore[method-assign]
            await session.push(np.tile(TENTH, 70))
        return heard

    assert asyncio.run(run()) == pytest.approx(calls)


def test_who_sends_much_faster_than_anybody_speaks_has_the_turn_of_recordings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    priorities = []
    submit = Worker.submit

    def noted(self: Worker, calls: Any, priority: Priority = Priority.LIVE, *more: Any) -> Any:
        priorities.append(priority)
        return submit(self, calls, priority, *more)

    monkeypatch.setattr(Worker, "submit", noted)

    async def run() -> None:
        async with opened() as (_, _, session):
            for _ in range(3):
                await session.push(np.tile(TENTH, 100))
            session._opened_s -= 20.0  # time passes
            await session.push(TENTH)

    asyncio.run(run())
    assert priorities[0] is Priority.LIVE
    assert priorities[-2] is Priority.FILE
    assert priorities[-1] is Priority.LIVE


def test_an_update_that_waits_takes_what_comes_meanwhile() -> None:
    async def run() -> tuple[float, int, list[float]]:
        async with opened(level=2) as (model, scheduler, session):
            is_free = threading.Event()
            worker = scheduler.worker
            n_threads = len(scheduler.worker.runtime.states) * worker.runtime.batching.sessions
            busy = [worker.submit(is_free.wait, Priority.LIVE) for _ in range(n_threads)]
            pushing = asyncio.create_task(session.push(np.tile(TENTH, 10)))
            await asyncio.sleep(0.05)
            await session.queue.put_audio(np.tile(TENTH, 30))
            is_free.set()
            told = await pushing
            for one in busy:
                one.result(10)
        return session.received_s, model.n_calls, [event.end for event in told]  # type: ignore[union-attr]

    assert asyncio.run(run()) == (4.0, 1, [4.0])


def test_who_sends_without_a_pause_gets_words_on_the_way() -> None:
    """There is more audio than an update takes; words come before all of it was processed."""

    async def run() -> tuple[list[float], int]:
        async with opened() as (_, _, session):
            await session.queue.put_audio(np.tile(TENTH, 60))
            told = await session.update()
            return [event.end for event in told], session.queue.n_ready  # type: ignore[union-attr]

    assert asyncio.run(run()) == ([2.0], 4 * SAMPLE_RATE)


def test_under_load_audio_is_held_until_an_update_is_due() -> None:
    async def run() -> tuple[list[int], list[str]]:
        calls = []
        async with opened() as (model, scheduler, session):
            await session.push(TENTH)
            calls.append(model.n_calls)
            scheduler.worker.interval_controller._level = 3
            for _ in range(9):
                assert await session.push(TENTH) == []
            calls.append(model.n_calls)
            told = await session.push(TENTH)
            calls.append(model.n_calls)
            assert await session.push(TENTH) == []
            assert session.received_s == pytest.approx(1.2)
            told += await session.flush()
            calls.append(model.n_calls)
        return calls, [str(event_document(event)["type"]) for event in told]

    calls, kinds = asyncio.run(run())
    assert calls == [1, 1, 2, 3]
    assert kinds == ["partial", "final"]
