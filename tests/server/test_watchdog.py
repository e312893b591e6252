"""A model that cannot work any more is noticed: by `/ready`, and where wanted by the end of the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import cast

import httpx
import pytest

from sottovoce.errors import OptionError
from sottovoce.server.settings import ServerLimits
from sottovoce.server.worker import FAULTS_IN_A_ROW, Worker
from tests.server.servers import SlowModel, make_worker, serving, wait_until
from tests.server.test_uploads import wav


def submit(worker: Worker, work: Callable[[], object]) -> Future[object]:
    """Submit work that the model does."""
    caller = worker.runtime.caller()
    return worker.submit(lambda: caller.run_on_host(work), caller=caller)


def failing(error: Exception) -> Callable[[], object]:
    def do() -> object:
        raise error

    return do


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = make_worker()
    yield made
    made.close()
    made.join(10)


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


def test_a_call_that_does_not_end_is_trouble(worker: Worker) -> None:
    free, has_begun = threading.Event(), threading.Event()

    def stuck() -> None:
        has_begun.set()
        free.wait(20)

    waiting = submit(worker, stuck)
    assert has_begun.wait(10)
    assert worker.health_error(60.0) is None
    wait_until(lambda: worker.health_error(0.05) is not None)
    assert "no progress" in str(worker.health_error(0.05))
    free.set()
    waiting.result(10)
    wait_until(lambda: worker.health_error(0.0) is None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_ended_is_trouble_and_its_work_is_answered(worker: Worker) -> None:
    with pytest.raises(BaseException):  # noqa: B017, PT011
        submit(worker, failing(cast(Exception, SystemExit("torn out")))).result(10)
    wait_until(lambda: worker.health_error(60.0) == "a thread of the model has ended")


class BrokenModel(SlowModel):
    """Every call ends with a fault of its device, until it is mended."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = True

    def transcribe(self, source: object, **options: object) -> BrokenModel:  # type: ignore[override]
        return self

    def __next__(self) -> object:
        failing(RuntimeError("CUDA error: device-side assert triggered"))()
        raise StopIteration

    def close(self) -> None:
        pass


def break_it(url: str) -> None:
    for _ in range(FAULTS_IN_A_ROW):
        answer = httpx.post(f"{url}/v1/audio/transcriptions", files={"file": ("a.wav", wav(16_000))})
        assert answer.status_code == 500


def test_a_broken_model_is_not_ready() -> None:
    with serving(BrokenModel()) as server:
        assert httpx.get(f"{server.url}/ready").status_code == 200
        break_it(server.url)
        answer = httpx.get(f"{server.url}/ready")
        assert (answer.status_code, answer.json()["status"]) == (503, "failing")
        assert httpx.get(f"{server.url}/health").json()["status"] == "failing"
        assert "sottovoce_failing 1.0" in httpx.get(f"{server.url}/metrics").text
        assert server.server.broken_by is None


def test_a_broken_server_ends_where_that_is_wanted() -> None:
    with serving(BrokenModel(), limits=ServerLimits(broken_s=0.2)) as server:
        break_it(server.url)
        wait_until(lambda: not server._thread.is_alive())
        assert server.server.broken_by == f"{FAULTS_IN_A_ROW} faults in a row"
