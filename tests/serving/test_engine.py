"""The model's thread: live sessions in rounds, recordings between them, and updates that come less often."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.engine.batching import BatchingExecutor
from sottovoce.engine.calls import CallGenerator, IncrementalEncodeCall, Priority, Task
from sottovoce.errors import OptionError
from sottovoce.formats.document import event_document
from sottovoce.options.live import LiveOptions
from sottovoce.serving.live.connection import InputQueue
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.scheduling import worker as room
from sottovoce.serving.scheduling.scheduler import Scheduler
from sottovoce.serving.scheduling.session_handle import SessionHandle
from sottovoce.serving.scheduling.worker import Worker
from sottovoce.types import SAMPLE_RATE, Samples
from tests.backends.fake import FakeBackend, Script
from tests.serving.servers import SlowModel

TENTH = np.zeros(1600, np.float32)


@asynccontextmanager
async def opened(level: int = 0) -> AsyncIterator[tuple[SlowModel, Scheduler, SessionHandle]]:
    """A live session of a slow model. level: of the interval between updates."""
    model = SlowModel()
    scheduler = Scheduler(cast(Model, model))
    scheduler._worker.interval_controller._level = level
    try:
        yield model, scheduler, await scheduler.open(LiveOptions())
    finally:
        scheduler.close()
        scheduler.join(10)


@contextmanager
def working(*engines: object) -> Iterator[Worker]:
    model = Worker(engines=[cast(BatchingExecutor, engine) for engine in engines])
    yield model
    model.close()
    model.join(10)


def executor() -> BatchingExecutor:
    return BatchingExecutor(FakeBackend(Script()))


def steps(said: str, error: Exception | None = None) -> CallGenerator[str]:
    yield from ()
    if error is not None:
        raise error
    return said


def test_steps_end_with_what_they_return_or_raise() -> None:
    with working(executor()) as model:
        good, bad = model.submit(steps("a")), model.submit(steps("b", OptionError("mine")))
        other = model.submit(steps("c"))
        assert (good.result(10), other.result(10)) == ("a", "c")
        with pytest.raises(OptionError, match="mine"):
            bad.result(10)
    with pytest.raises(ApiError):
        model.submit(steps("d"))


def asking(said: str) -> CallGenerator[str]:
    yield IncrementalEncodeCall([])
    return said


class Endless:
    """An engine whose tasks go on until they are let go."""

    def __init__(self) -> None:
        self.n_rounds = 0
        self.is_free = threading.Event()
        self.tasks: list[object] = []

    def begin(
        self, steps: CallGenerator[str], deadline_s: float, on_end: object, priority: Priority
    ) -> object:
        task = Task(steps, deadline_s, on_end, priority)  # type: ignore[arg-type]
        self.tasks.append(task)
        return task

    def advance(self) -> None:
        pass

    def round(self) -> Priority:
        self.n_rounds += 1
        self.is_free.wait(0.01)
        if self.is_free.is_set():
            for task in self.tasks:
                task.begin()  # type: ignore[attr-defined]
            self.tasks = []
        return Priority.LIVE


def test_a_recording_has_its_turn_however_much_live_work_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PATIENCE_S", 0.2)
    engine = Endless()
    with working(engine) as model:
        live = model.submit(steps("live"))
        recording = model.submit(lambda: engine.n_rounds, Priority.FILE)
        assert recording.result(20) > 0, "live work goes first"
        assert not live.done()
        engine.is_free.set()
        assert live.result(20) == "live"


class Full(Endless):
    """An engine that takes one live update at a time, so that others wait in the queue."""

    has_room = False
    has_file_room = True


def test_a_recording_behind_live_work_that_waits_has_its_turn_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates that no thread has room for stand before it in the queue, and always will."""
    monkeypatch.setattr(room, "PATIENCE_S", 0.2)
    engines = [Full(), Full()]
    with working(*engines) as model:
        live = [model.submit(steps("live")) for _ in range(6)]
        recording = model.submit(lambda: sum(engine.n_rounds for engine in engines), Priority.FILE)
        assert recording.result(20) > 0, "live work goes first"
        assert model.n_waiting >= 4
        assert not any(one.done() for one in live)
        for engine in engines:
            engine.is_free.set()
        assert [one.result(20) for one in live] == ["live"] * 6


def test_steps_under_way_at_the_end_are_told_so() -> None:
    engine = Endless()
    with working(engine) as model:
        live = model.submit(steps("live"))
        while not engine.n_rounds:
            pass
        model.close()
        with pytest.raises(ApiError, match="shutting down"):
            live.result(10)


def test_a_fault_of_the_engine_itself_ends_what_is_under_way_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = BatchingExecutor.round
    faults = [AssertionError("of the engine")]

    def round_(engine: BatchingExecutor) -> Priority | None:
        if faults:
            raise faults.pop()
        return plain(engine)

    monkeypatch.setattr(BatchingExecutor, "round", round_)
    with working(executor()) as model:
        with pytest.raises(AssertionError, match="of the engine"):
            model.submit(asking("lost")).result(10)
        assert model.submit(steps("kept")).result(10) == "kept"


@pytest.mark.parametrize(("level", "calls"), [(0, [2.0, 4.0, 6.0, 7.0]), (1, [7.0])], ids=["idle", "load"])
def test_under_load_one_update_takes_all_that_came_meanwhile(level: int, calls: list[float]) -> None:
    async def run() -> list[float]:
        heard: list[float] = []
        async with opened(level) as (_, _, session):
            plain = session._held_audio.take

            def take(most: int) -> Samples:
                taken = plain(most)
                heard.append((heard[-1] if heard else 0.0) + len(taken) / SAMPLE_RATE)
                return taken

            session._held_audio.take = take  # type: ignore[method-assign]
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
        async with opened(level=1) as (model, scheduler, session):
            inbox: InputQueue[str] = InputQueue(SAMPLE_RATE * 60)
            session.poll_newer_audio = inbox.take_audio
            is_free = threading.Event()
            busy = [scheduler._worker.submit(is_free.wait, Priority.LIVE) for _ in scheduler.engines]
            pushing = asyncio.create_task(session.push(np.tile(TENTH, 10)))
            await asyncio.sleep(0.05)
            await inbox.put_audio(np.tile(TENTH, 30))
            is_free.set()
            told = await pushing
            for one in busy:
                one.result(10)
        return session.received_s, model.n_calls, [event.end for event in told]  # type: ignore[union-attr]

    assert asyncio.run(run()) == (4.0, 1, [4.0])


def test_who_sends_without_a_pause_gets_words_on_the_way() -> None:
    """There is always more audio than an update takes; words come before it ends."""

    async def run() -> tuple[int, list[float]]:
        n_polls = 0

        def poll() -> Samples:
            nonlocal n_polls
            n_polls += 1
            return np.tile(TENTH, 50)

        async with opened() as (_, _, session):
            session.poll_newer_audio = poll
            told = await asyncio.wait_for(session.push(np.tile(TENTH, 10)), 30)
        return n_polls, [event.end for event in told]  # type: ignore[union-attr]

    n_polls, ends = asyncio.run(run())
    assert n_polls == 1
    assert ends[-1] == pytest.approx(6.0)


def test_under_load_audio_is_held_until_an_update_is_due() -> None:
    async def run() -> tuple[list[int], list[str]]:
        calls = []
        async with opened() as (model, scheduler, session):
            await session.push(TENTH)
            calls.append(model.n_calls)
            scheduler._worker.interval_controller._level = 1
            for _ in range(9):
                assert await session.push(TENTH) == []
            calls.append(model.n_calls)
            told = await session.push(TENTH)
            calls.append(model.n_calls)
            assert await session.push(TENTH) == []
            assert session.received_s == pytest.approx(1.2)
            told += await session.close()
            calls.append(model.n_calls)
        return calls, [str(event_document(event)["type"]) for event in told]

    calls, kinds = asyncio.run(run())
    assert calls == [1, 1, 2, 3]
    assert kinds == ["partial", "final"]
