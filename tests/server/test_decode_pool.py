"""Uploads are decoded by few threads of low priority, in turn, and for nobody who has left."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from sottovoce.server import uploads
from sottovoce.server.settings import ServerLimits
from sottovoce.server.worker import DecodePool, Slices
from tests.server.servers import Gate, SlowModel, head, opened, post, serving, wait_until, wav

CHUNK = SimpleNamespace(samples=np.zeros(16_000, np.float32))
BODY = wav(16_000)


def counted(pool_log: list[str], name: str, n_slices: int) -> Slices[str]:
    for _ in range(n_slices):
        pool_log.append(name)
        yield
    return name


def test_those_who_wait_take_turns() -> None:
    pool, log = DecodePool(1), []

    async def run() -> list[str]:
        return await asyncio.gather(pool.run(counted(log, "long", 20)), pool.run(counted(log, "short", 3)))

    assert asyncio.run(run()) == ["long", "short"]
    assert log.index("short") <= 1
    assert "".join(name[0] for name in log[:6]) in ("lslsls", "slslsl")
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux alone")
def test_its_threads_are_of_low_priority() -> None:
    pool = DecodePool(1)

    async def niceness() -> int:
        return await pool.call(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    assert asyncio.run(niceness()) > os.getpriority(os.PRIO_PROCESS, 0)
    pool.close()


def test_who_leaves_is_worked_for_no_longer() -> None:
    pool, log = DecodePool(1), []

    async def run() -> None:
        task = asyncio.create_task(pool.run(counted(log, "long", 1_000_000)))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    n_done = len(log)
    time.sleep(0.05)
    assert 0 < n_done == len(log) < 1_000_000
    pool.close()


class Endless:
    """A recording whose decoding never ends; it counts how many there are, and their chunks."""

    def __init__(self) -> None:
        self.n_chunks = 0
        self.n_open = 0
        self.at_once: set[str] = set()

    def open(self, source: object, input_format: str | None) -> Endless:
        return self

    def __enter__(self) -> Endless:
        self.n_open += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.n_open -= 1

    def __iter__(self) -> Iterator[SimpleNamespace]:
        for _ in itertools.count():
            self.at_once.add(threading.current_thread().name)
            self.n_chunks += 1
            time.sleep(0.002)
            yield CHUNK


def test_decoding_ends_when_its_client_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Endless()
    monkeypatch.setattr(uploads, "open_audio", endless.open)
    begun = head("/v1/listen", f"content-length: {len(BODY)}\r\n", method="POST") + BODY
    with serving(SlowModel(), limits=ServerLimits(duration_s=1e9)) as server, ExitStack() as stack:
        clients = [stack.enter_context(opened(server, begun)) for _ in range(6)]
        wait_until(lambda: endless.n_open == len(clients))
        assert len(endless.at_once) <= max(1, (os.cpu_count() or 1) // 4)
        for client in clients:
            client.close()
        wait_until(lambda: endless.n_open == 0)
        n_chunks = endless.n_chunks
        time.sleep(0.05)
        assert endless.n_chunks == n_chunks
        wait_until(lambda: server.services.n_requests == 0)


def test_all_uploads_together_have_a_limit(gate: Gate) -> None:
    """One that waits for its answer keeps another out that is small enough alone."""
    body_mb = len(BODY) / 1e6
    limits = ServerLimits(upload_mb=1.2 * body_mb, uploads_mb=1.5 * body_mb)
    begun = head("/v1/listen", f"content-length: {len(BODY)}\r\n", method="POST") + BODY
    with serving(SlowModel(gate), limits=limits) as server:
        with opened(server, begun):
            wait_until(lambda: server.services.upload_bytes == len(BODY))
            for answer in (
                post(server, data=BODY),
                httpx.post(f"{server.url}/v1/listen", content=BODY),
            ):
                assert answer.status_code == 429
                assert int(answer.headers["retry-after"]) > 0
        gate.open()
        wait_until(lambda: server.services.upload_bytes == 0)
