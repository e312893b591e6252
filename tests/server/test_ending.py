"""A server that ends says so, finishes what it can, tells the rest in time, and leaves no thread."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from sottovoce.server.settings import ServerLimits
from sottovoce.server.worker import THREAD_NAME
from tests.server.conversation import connected, received, refusal, rest, say
from tests.server.servers import (
    SECOND,
    TRANSCRIPTIONS,
    Gate,
    ServerThread,
    SlowModel,
    head,
    opened,
    post,
    serving,
    threads_of_servers,
    wait_until,
)


@pytest.fixture
def held(gate: Gate) -> Iterator[ServerThread]:
    """A server whose model is at work until the gate is open."""
    with serving(SlowModel(gate), limits=ServerLimits(shutdown_s=2.0)) as server:
        yield server
        gate.open()


def test_while_it_ends_it_says_so_and_then_tells_whom_it_cut_short(held: ServerThread) -> None:
    form = ("content-type: multipart/form-data; boundary=b\r\n", "content-length: 100000\r\n")
    begun = head(TRANSCRIPTIONS, *form, method="POST") + b"--b\r\n"
    with ThreadPoolExecutor() as threads, opened(held, begun) as uploading:
        whole, streamed = threads.submit(post, held), threads.submit(post, held, stream="true")
        wait_until(lambda: (held.services.n_requests, held.services.n_uploads) == (2, 1))
        held.server.should_exit = True
        wait_until(lambda: held.services.draining.is_set())
        ready = httpx.get(f"{held.url}/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "shutting down")
        assert post(held).status_code == 503
        answer = whole.result(20)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "shutting_down"
        last = streamed.result(20).text.strip().rpartition("data: ")[2]
        assert json.loads(last)["error"]["code"] == "shutting_down"
        cut = uploading.recv(100_000)
    assert b" 503 " in cut.partition(b"\r\n")[0]
    assert b'"shutting_down"' in cut


def test_while_it_ends_captions_are_put_off_until_the_next_server(held: ServerThread) -> None:
    with ThreadPoolExecutor() as threads, connected(held, "/v1/captions") as speaker:
        ready = received(speaker)
        threads.submit(post, held)
        wait_until(lambda: held.services.n_requests == 1)
        held.server.should_exit = True
        rest(speaker)
        assert speaker.close_code == 1012
        for path, word in (("", f"resume.{ready['resume']}"), ("/read", f"captions.{ready['token']}")):
            answer = refusal(held, f"/v1/captions{path}", subprotocols=["sottovoce", f"sottovoce-{word}"])
            assert answer.status_code == 503


def test_what_can_be_finished_is(held: ServerThread) -> None:
    """A server that nobody asks for anything ends at once."""
    began_s = time.monotonic()
    held.stop()
    assert time.monotonic() - began_s < 1.5


def test_a_process_ends_in_its_time_whatever_its_model_is_at(held: ServerThread, gate: Gate) -> None:
    held.services.ends_process = True
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(post, held)
        wait_until(lambda: held.services.n_requests == 1)
        held.stop()
        assert not gate.is_open
        assert answer.result(20).status_code == 503


@pytest.mark.parametrize("seconds", [0.0, 1.5])
def test_a_server_that_ends_leaves_no_thread(seconds: float) -> None:
    """Also where its model is at work for a client that has gone, beyond the time for sessions to end."""
    before = threads_of_servers()
    model = SlowModel(lambda: time.sleep(seconds))
    with serving(model, limits=ServerLimits(shutdown_s=0.1)) as server:
        client = connected(server)
        say(client, 2 * SECOND)
        wait_until(lambda: model.n_calls > 0)
        names = {thread.name for thread in threads_of_servers() - before}
        assert {name for name in names if not name.startswith(THREAD_NAME)} == {"sottovoce-server"}
        assert len(names) > 1
        client.socket.close()
    client.close()
    assert threads_of_servers() <= before


def test_a_server_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    monkeypatch.setattr("tests.server.servers.JOIN_TIMEOUT_S", 0.0)
    model = SlowModel(gate)
    with serving(model, limits=ServerLimits(shutdown_s=0.1)) as server:
        client = connected(server)
        say(client, 2 * SECOND)
        wait_until(lambda: model.n_calls > 0)
        with pytest.raises(RuntimeError, match="expected it to end"):
            server.stop()
        gate.open()
        server._thread.join(20)
    client.close()
    assert not server._thread.is_alive()
