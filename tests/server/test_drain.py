"""A server that is told to end says so, finishes what it can, and tells the rest, all in its time."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from sottovoce.server.settings import ServerLimits
from tests.server.servers import ServerThread, SlowModel, serving, wait_until
from tests.server.test_uploads import wav

PATH = "/v1/audio/transcriptions"


class Held:
    """A server whose model is at work until it is let go."""

    def __init__(self, server: ServerThread, free: threading.Event) -> None:
        self.server = server
        self.free = free


@pytest.fixture
def held() -> Iterator[Held]:
    free = threading.Event()
    with serving(SlowModel(lambda: free.wait(20) and None), limits=ServerLimits(shutdown_s=2.0)) as server:
        yield Held(server, free)
        free.set()


def post(server: ServerThread, **fields: str) -> httpx.Response:
    return httpx.post(server.url + PATH, data=fields, files={"file": ("a.wav", wav(16_000))}, timeout=20)


def test_while_it_ends_it_says_so_and_then_tells_whom_it_cut_short(held: Held) -> None:
    server = held.server
    head = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: multipart/form-data; boundary=b\r\n"
    head += "content-length: 100000\r\n\r\n--b\r\n"
    with ThreadPoolExecutor() as threads, socket.create_connection(server.address.split(":")) as uploading:
        uploading.sendall(head.encode())
        whole, streamed = threads.submit(post, server), threads.submit(post, server, stream="true")
        wait_until(lambda: (server.services.n_requests, server.services.n_uploads) == (2, 1))
        server.server.should_exit = True
        wait_until(lambda: server.services.draining.is_set())
        ready = httpx.get(f"{server.url}/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "shutting down")
        assert post(server).status_code == 503
        answer = whole.result(20)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "shutting_down"
        last = streamed.result(20).text.strip().rpartition("data: ")[2]
        assert json.loads(last)["error"]["code"] == "shutting_down"
        uploading.settimeout(20)
        cut = uploading.recv(100_000)
    assert b" 503 " in cut.partition(b"\r\n")[0]
    assert b'"shutting_down"' in cut


def test_what_can_be_finished_is(held: Held) -> None:
    """A server that nobody asks for anything ends at once."""
    began_s = time.monotonic()
    held.server.stop()
    assert time.monotonic() - began_s < 1.5


def test_a_process_ends_in_its_time_whatever_its_model_is_at(held: Held) -> None:
    held.server.services.ends_process = True
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(post, held.server)
        wait_until(lambda: held.server.services.n_requests == 1)
        held.server.stop()
        assert not held.free.is_set()
        assert asked.result(20).status_code == 503
