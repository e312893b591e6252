"""Several engines on one model: the same words, whichever does an update; recordings between live work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.decoding.decode import WindowBatch
from sottovoce.errors import OptionError
from sottovoce.options.live import LiveOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.batching import THREADS, CallBatcher, Priority
from sottovoce.server.scheduler import Scheduler, SessionHandle, TranscriptionRequest
from sottovoce.server.settings import Work
from sottovoce.server.worker import Worker
from sottovoce.types import Final, Samples
from tests.server.servers import make_worker, serving

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
OPTIONS = (
    LiveOptions(("en",), switching="off", vad=False),
    LiveOptions(("en", "de"), vad=False),
    LiveOptions(("en",), switching="off"),
)


@pytest.fixture(scope="module")
def nano() -> Model:
    return load_model("nano", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def voice() -> Samples:
    return load_audio(CLIPS / "en.flac")[: 4 * 16_000]


async def heard(scheduler: Scheduler, options: LiveOptions, audio: Samples) -> str:
    """What a session says of audio that comes as fast as it is taken."""
    return await said_by(await scheduler.open(options), audio)


async def said_by(live: SessionHandle, audio: Samples) -> str:
    told = []
    for at in range(0, len(audio), 16_000):
        told += await live.push(audio[at : at + 16_000])
    told += await live.flush()
    return " ".join(event.text for event in told if isinstance(event, Final))


def alone(model: Model, options: LiveOptions, audio: Samples) -> str:
    session = model.session(options.languages, switching=options.switching, vad=options.vad)
    events = [event for at in range(0, len(audio), 16_000) for event in session.push(audio[at : at + 16_000])]
    events += session.close()
    return " ".join(event.text for event in events if isinstance(event, Final))


@pytest.mark.parametrize("n_engines", [1, 3])
def test_sessions_say_what_they_say_alone(nano: Model, voice: Samples, n_engines: int) -> None:
    # Never less often: other updates are other words.
    scheduler = Scheduler(nano, Work(engines=n_engines, threads=1, longest_interval_s=0.5))

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(heard(scheduler, options, voice) for options in OPTIONS * 2))

    try:
        said = asyncio.run(all_of_them())
        assert len(scheduler.worker.runtime.states) == n_engines
    finally:
        scheduler.close()
        scheduler.join(60)
    expected = [alone(nano, options, voice) for options in OPTIONS]
    assert said == expected * 2
    assert all(expected)


@pytest.fixture
def two() -> Iterator[Worker]:
    worker = make_worker(2, n_threads=4)
    yield worker
    worker.close()
    worker.join(20)


def test_an_engine_that_is_at_work_holds_nobody_up(two: Worker) -> None:
    is_there, is_free = threading.Event(), threading.Event()

    def held() -> int:
        is_there.set()
        is_free.wait(20)
        return threading.get_ident()

    callers = [two.runtime.caller() for _ in range(6)]
    first = two.submit(lambda: callers[0].run_on_host(held), caller=callers[0])
    assert is_there.wait(20)
    others = [
        two.submit(lambda one=one: one.run_on_host(threading.get_ident), caller=one) for one in callers[1:]
    ]
    threads = {other.result(20) for other in others}
    assert not first.done()
    is_free.set()
    assert first.result(20) not in threads
    assert len(threads) == 1


def test_processor_threads_are_shared_by_the_engines_at_work(two: Worker) -> None:
    """What a thread tells PyTorch holds for that thread, and in the end nobody else's has changed."""
    before = torch.get_num_threads()
    is_there, is_free = threading.Event(), threading.Event()

    def held() -> int:
        is_there.set()
        is_free.wait(20)
        return torch.get_num_threads()

    callers = [two.runtime.caller() for _ in range(2)]
    first = two.submit(lambda: callers[0].run_on_host(held), Priority.LIVE, callers[0])
    assert is_there.wait(20)
    second = two.submit(
        lambda: callers[1].run_on_host(torch.get_num_threads), Priority.LIVE, callers[1]
    ).result(20)
    is_free.set()
    assert first.result(20) == 4, "it was alone when it began"
    assert second == 2
    assert torch.get_num_threads() == before
    two.close()
    two.join(20)
    of_new: list[int] = []
    thread = threading.Thread(target=lambda: of_new.append(torch.get_num_threads()))
    thread.start()
    thread.join(20)
    assert of_new == [THREADS]


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
        job = await scheduler.transcribe(voice, TranscriptionRequest(TranscribeOptions(), ("en",)))
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
    assert [(one["model"], one["engine"], one["recording"]) for one in engines] == [
        ("nano", 0, False),
        ("nano", 1, False),
    ]
    assert all(one["live_updates"] == 0 and 0.0 <= one["busy"] <= 1.0 for one in engines)
    for number in range(2):
        assert f'sottovoce_engine_updates{{engine="{number}",model="nano"}} 0.0' in lines


@pytest.mark.parametrize("wrong", [{"engines": 0}, {"threads": 0}, {"longest_interval_s": 0.7}])
def test_work_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="expected"):
        Work(**wrong)
