"""The threads of a model: live sessions in rounds, recordings between them, and engines that fail."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import httpx
import numpy as np
import pytest
import torch

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.decoding.decode import WindowBatch
from sottovoce.errors import OptionError
from sottovoce.formats.document import event_document
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime import batching
from sottovoce.runtime.batching import CallBatcher, Caller, Priority
from sottovoce.runtime.calls import RunOnHost, Runtime
from sottovoce.server.errors import ApiError
from sottovoce.server.scheduler import Scheduler, SessionHandle, TranscriptionRequest
from sottovoce.server.settings import ServerLimits, Work
from sottovoce.server.worker import FAULTS_IN_A_ROW, Worker
from sottovoce.streaming.options import LiveOptions
from sottovoce.types import SAMPLE_RATE, Event, Final, Samples, Word
from tests.server.servers import (
    CLIPS,
    Gate,
    QuietModel,
    ServerThread,
    SlowModel,
    SlowSession,
    post,
    serving,
    submit,
    wait_until,
    working,
)

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


def failing(error: BaseException) -> Callable[[], None]:
    def do() -> None:
        raise error

    return do


class LanguageModel(SlowModel):
    """Its sessions give words the language of their options."""

    def session(
        self, languages: Any = None, runtime: Runtime | None = None, **options: object
    ) -> SlowSession:
        return LanguageSession(self, runtime, cast(LiveOptions, options["options"]).languages[0])


class LanguageSession(SlowSession):
    def __init__(self, model: SlowModel, runtime: Runtime | None, language: str) -> None:
        super().__init__(model, runtime)
        self._language = language

    def words(self, n: int) -> list[Word]:
        return [replace(word, language=self._language) for word in super().words(n)]


def test_audio_that_waits_is_decoded_under_the_options_before_a_change() -> None:
    """Also where a flush has ended the session of the library."""

    async def run() -> list[Event]:
        live = await scheduler.open(LiveOptions(("en",)))
        await live.push(np.zeros(SAMPLE_RATE, np.float32))
        events = await live.flush()
        for language in ("de", "fr"):
            await live.queue.put_audio(np.zeros(SAMPLE_RATE, np.float32))
            events += await live.configure(LiveOptions((language,)))
        return events

    scheduler = Scheduler(cast(Model, LanguageModel()))
    try:
        events = asyncio.run(run())
    finally:
        scheduler.close()
        scheduler.join(10)
    finals = [event for event in events if isinstance(event, Final)]
    assert [final.words[0].language for final in finals] == ["en", "en", "de"]


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux alone")
def test_threads_of_recordings_are_of_low_priority() -> None:

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    with working() as worker:
        live, file = (worker.submit(niceness, priority).result(10) for priority in Priority)
    assert file > live == os.getpriority(os.PRIO_PROCESS, 0)


def test_work_ends_with_what_it_returns_or_raises() -> None:
    with working() as model:
        good, bad = submit(model, lambda: "a"), submit(model, failing(OptionError("mine")))
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
            caller.run(RunOnHost(lambda: is_over.wait(0.01)))
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
        assert submit(model, lambda: n_live, Priority.FILE).result(20) > before, "live work goes first"
        is_over.set()
        for session in sessions:
            session.join(10)


def test_live_calls_go_before_those_of_recordings(gate: Gate) -> None:
    done: list[str] = []
    with working() as worker:
        first = submit(worker, gate, Priority.FILE)
        wait_until(lambda: gate.n_waiting == 1)
        file = submit(worker, lambda: done.append("file"), Priority.FILE)
        live = submit(worker, lambda: done.append("live"), Priority.LIVE)
        wait_until(lambda: len(worker.runtime.waiting) == 2)
        gate.open()
        for item in (first, file, live):
            item.result(10)
    assert done == ["live", "file"]


def test_work_under_way_at_the_end_is_told_so(gate: Gate) -> None:
    with working() as model:
        first = submit(model, gate)
        wait_until(lambda: gate.n_waiting == 1)
        second = submit(model, lambda: None, Priority.FILE)
        wait_until(lambda: bool(model.runtime.waiting))
        model.close()
        with pytest.raises(ApiError, match="shutting down"):
            second.result(10)
        gate.open()
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
            submit(model, lambda: "lost").result(10)
        assert submit(model, lambda: "kept").result(10) == "kept"


def test_who_sends_much_faster_than_anybody_speaks_has_the_turn_of_recordings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    priorities = []
    begin = Worker.begin

    def noted(self: Worker, request: Any, priority: Priority, caller: Caller) -> Any:
        priorities.append(priority)
        return begin(self, request, priority, caller)

    monkeypatch.setattr(Worker, "begin", noted)

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


def test_an_update_that_waits_takes_what_comes_meanwhile(gate: Gate) -> None:
    async def run() -> tuple[float, int, list[float]]:
        async with opened(level=2) as (model, scheduler, session):
            worker = scheduler.worker
            assert len(worker.runtime.states) == 1
            busy = submit(worker, gate)
            wait_until(lambda: gate.n_waiting == 1)
            pushing = asyncio.create_task(session.push(np.tile(TENTH, 10)))
            await asyncio.sleep(0.05)
            await session.queue.put_audio(np.tile(TENTH, 30))
            gate.open()
            reported = await pushing
            busy.result(10)
        return session.received_s, model.n_calls, [event.end for event in reported]  # type: ignore[union-attr]

    assert asyncio.run(run()) == (4.0, 1, [4.0])


def test_an_update_that_is_cancelled_before_it_begins_takes_no_audio(gate: Gate) -> None:
    async def run() -> tuple[int, int, list[float]]:
        async with opened() as (model, scheduler, session):
            busy = submit(scheduler.worker, gate)
            wait_until(lambda: gate.n_waiting == 1)
            pushing = asyncio.create_task(session.push(np.tile(TENTH, 10)))
            await asyncio.sleep(0.05)
            pushing.cancel()
            await asyncio.gather(pushing, return_exceptions=True)
            gate.open()
            busy.result(10)
            n_ready, n_calls = session.queue.n_ready, model.n_calls
            return n_ready, n_calls, [event.end for event in await session.update()]  # type: ignore[union-attr]

    assert asyncio.run(run()) == (16_000, 0, [1.0])


def test_who_sends_without_a_pause_gets_words_on_the_way() -> None:
    """There is more audio than an update takes; words come before all of it was processed."""

    async def run() -> tuple[list[float], int]:
        async with opened() as (_, _, session):
            await session.queue.put_audio(np.tile(TENTH, 60))
            reported = await session.update()
            return [event.end for event in reported], session.queue.n_ready  # type: ignore[union-attr]

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
            reported = await session.push(TENTH)
            calls.append(model.n_calls)
            assert await session.push(TENTH) == []
            assert session.received_s == pytest.approx(1.2)
            reported += await session.flush()
            calls.append(model.n_calls)
        return calls, [str(event_document(event)["type"]) for event in reported]

    calls, kinds = asyncio.run(run())
    assert calls == [1, 1, 2, 3]
    assert kinds == ["partial", "final"]


OPTIONS = (
    LiveOptions(("en",), switching="off", vad=False),
    LiveOptions(("en", "de"), vad=False),
    LiveOptions(("en",), switching="off"),
)


@pytest.fixture(scope="module")
def voice() -> Samples:
    return load_audio(CLIPS / "en.flac")[: 4 * 16_000]


async def said_by(live: SessionHandle, audio: Samples) -> str:
    """What a session says of audio that comes as fast as it is taken."""
    reported = []
    for at in range(0, len(audio), 16_000):
        reported += await live.push(audio[at : at + 16_000])
    reported += await live.flush()
    return " ".join(event.text for event in reported if isinstance(event, Final))


def alone(model: Model, options: LiveOptions, audio: Samples) -> str:
    session = model.session(options.languages, switching=options.switching, vad=options.vad)
    events = [event for at in range(0, len(audio), 16_000) for event in session.push(audio[at : at + 16_000])]
    events += session.close()
    return " ".join(event.text for event in events if isinstance(event, Final))


@pytest.mark.long
@pytest.mark.parametrize(("n_engines", "n_each"), [pytest.param(1, 2, marks=pytest.mark.long), (3, 1)])
def test_sessions_say_what_they_say_alone(nano: Model, voice: Samples, n_engines: int, n_each: int) -> None:
    # Never less often: other updates are other words.
    scheduler = Scheduler(nano, Work(engines=n_engines, threads=1, longest_interval_s=0.5))

    async def all_of_them() -> list[str]:
        sessions = [await scheduler.open(options) for options in OPTIONS * n_each]
        return await asyncio.gather(*(said_by(session, voice) for session in sessions))

    try:
        said = asyncio.run(all_of_them())
        assert len(scheduler.worker.runtime.states) == n_engines
    finally:
        scheduler.close()
        scheduler.join(60)
    expected = [alone(nano, options, voice) for options in OPTIONS]
    assert said == expected * n_each
    assert all(expected)


def test_an_engine_that_is_at_work_holds_nobody_up(gate: Gate) -> None:
    def held() -> int:
        gate()
        return threading.get_ident()

    with working(2, n_threads=4) as two:
        first = submit(two, held)
        wait_until(lambda: gate.n_waiting == 1)
        others = [submit(two, threading.get_ident) for _ in range(5)]
        threads = {other.result(20) for other in others}
        assert not first.done()
        gate.open()
        assert first.result(20) not in threads
    assert len(threads) == 1


def test_processor_threads_are_shared_by_the_engines_at_work(gate: Gate) -> None:
    """What a thread tells PyTorch holds for that thread, and in the end nobody else's has changed."""
    before = torch.get_num_threads()

    def held() -> int:
        gate()
        return torch.get_num_threads()

    with working(2, n_threads=4) as two:
        first = submit(two, held)
        wait_until(lambda: gate.n_waiting == 1)
        second = submit(two, torch.get_num_threads).result(20)
        gate.open()
        assert first.result(20) == 4, "it was alone when it began"
    assert second == 2
    assert torch.get_num_threads() == before
    with ThreadPoolExecutor(1) as other:
        assert other.submit(torch.get_num_threads).result(20) == before


def test_a_recording_says_the_same_beside_a_live_session(
    nano: Model, voice: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the session has its words before the recording is done, on one engine."""
    done: list[str] = []
    is_there, is_asked = threading.Event(), threading.Event()
    step, round_ = WindowBatch._go_on, CallBatcher.round

    def counted(*given: Any, **options: Any) -> Any:
        done.append("recording")
        is_there.set()
        is_asked.wait(20)
        return step(*given, **options)

    def counted_round(engine: CallBatcher) -> Priority | None:
        served = round_(engine)
        if served is Priority.LIVE:
            done.append("live")
        return served

    expected = nano.transcribe(voice, language="en", beam_size=2).text
    monkeypatch.setattr(WindowBatch, "_go_on", counted)
    monkeypatch.setattr(CallBatcher, "round", counted_round)
    scheduler = Scheduler(nano, Work(engines=1, threads=1, longest_interval_s=0.5), beam_size=2)

    async def both() -> tuple[str, str]:
        live = await scheduler.open(OPTIONS[0])
        job = await scheduler.transcribe(
            voice, TranscriptionRequest(options=TranscribeOptions(), languages=("en",))
        )
        upload = asyncio.create_task(job.collect())
        while not is_there.is_set():
            await asyncio.sleep(0.01)
        session = asyncio.create_task(said_by(live, voice))
        while not scheduler.worker.n_waiting:
            await asyncio.sleep(0.01)
        is_asked.set()
        return (await upload).text, await session

    try:
        of_upload, of_session = asyncio.run(both())
    finally:
        is_asked.set()
        scheduler.close()
        scheduler.join(60)
    assert of_upload == expected
    assert of_session == alone(nano, OPTIONS[0], voice)
    first = done.index("live")
    assert "recording" in done[:first]
    assert "recording" in done[first:], "live work waited for the whole recording"


def test_health_and_metrics_tell_of_every_engine(nano: Model) -> None:
    with serving(nano, work=Work(engines=2, threads=1)) as server:
        engines = httpx.get(f"{server.url}/health").json()["engines"]
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    assert [(engine["model"], engine["engine"], engine["recording"]) for engine in engines] == [
        ("nano", 0, False),
        ("nano", 1, False),
    ]
    assert all(engine["live_updates"] == 0 and 0.0 <= engine["busy"] <= 1.0 for engine in engines)
    for number in range(2):
        assert f'sottovoce_engine_updates{{engine="{number}",model="nano"}} 0.0' in lines


@pytest.fixture
def worker() -> Iterator[Worker]:
    with working() as created:
        yield created


def test_faults_in_a_row_are_trouble_and_work_that_goes_well_ends_it(worker: Worker) -> None:
    broken = failing(RuntimeError("CUDA error: an illegal memory access was encountered"))
    for i in range(FAULTS_IN_A_ROW):
        assert worker.health_error(60.0) is None, i
        with pytest.raises(RuntimeError):
            submit(worker, broken).result(10)
    assert worker.health_error(60.0) == f"{FAULTS_IN_A_ROW} faults in a row"
    assert submit(worker, lambda: "well").result(10) == "well"
    assert worker.health_error(60.0) is None


def test_faults_of_clients_are_no_trouble(worker: Worker) -> None:
    for _ in range(2 * FAULTS_IN_A_ROW):
        with pytest.raises(OptionError):
            submit(worker, failing(OptionError("theirs"))).result(10)
    assert worker.health_error(60.0) is None


def test_a_call_that_does_not_end_is_trouble(worker: Worker, gate: Gate) -> None:
    waiting = submit(worker, gate)
    wait_until(lambda: gate.n_waiting == 1)
    assert worker.health_error(60.0) is None
    wait_until(lambda: worker.health_error(0.05) is not None)
    assert "no progress" in str(worker.health_error(0.05))
    gate.open()
    waiting.result(10)
    wait_until(lambda: worker.health_error(0.0) is None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_ended_is_trouble_and_its_work_is_answered(worker: Worker) -> None:
    with pytest.raises(BaseException):  # noqa: B017, PT011
        submit(worker, failing(SystemExit("torn out"))).result(10)
    wait_until(lambda: worker.health_error(60.0) == "a thread of the model has ended")


def broken_model() -> QuietModel:
    """Every call ends with a fault of its device."""
    return QuietModel(failing(RuntimeError("CUDA error: device-side assert triggered")))


def break_it(server: ServerThread) -> None:
    for _ in range(FAULTS_IN_A_ROW):
        assert post(server).status_code == 500


def test_a_broken_model_is_not_ready() -> None:
    with serving(broken_model()) as server:
        assert httpx.get(f"{server.url}/ready").status_code == 200
        break_it(server)
        answer = httpx.get(f"{server.url}/ready")
        assert (answer.status_code, answer.json()["status"]) == (503, "failing")
        assert httpx.get(f"{server.url}/health").json()["status"] == "failing"
        assert "sottovoce_failing 1.0" in httpx.get(f"{server.url}/metrics").text
        assert server.server.broken_by is None


def test_a_broken_server_ends_where_that_is_wanted() -> None:
    with serving(broken_model(), limits=ServerLimits(broken_s=0.2)) as server:
        break_it(server)
        wait_until(lambda: not server._thread.is_alive())
        assert server.server.broken_by == f"{FAULTS_IN_A_ROW} faults in a row"
