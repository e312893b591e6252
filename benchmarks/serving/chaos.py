"""Clients that misbehave, one kind after the other and some at a time, without harm to others. For `soak`."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

SECOND = bytes(2 * 16_000)
ROUTES = ("/v1/live", "/v1/realtime", "/v1/listen?encoding=linear16")
RECORDING = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"
AT_A_TIME = 3
JOB_EVERY_S = 10.0
GONE = (OSError, ConnectionClosed, InvalidHandshake, TimeoutError, httpx.HTTPError)
"""What a client of this kind may come to."""


class Chaos:
    """All of them against one server. n_done: of each kind.

    on_fault: told of answers that a server never gives.
    """

    def __init__(self, address: str, on_fault: Callable[[str], None], seed: int = 0) -> None:
        self.n_done: Counter[str] = Counter()
        self._on_fault = on_fault
        self._address = address
        self._random = random.Random(seed)
        self._kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "vanished": self._vanish,
            "stalled": self._stall,
            "garbage": self._garbage,
            "half-open": self._half_open,
            "slow uploads": self._slow_upload,
            "tiny messages": self._tiny,
            "recordings": self._recording,
            "clients gone": self._gone_client,
        }

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for first in range(AT_A_TIME):
                tasks.create_task(self._one_after_the_other(first))

    async def _one_after_the_other(self, first: int) -> None:
        kinds = list(self._kinds.items())
        kinds = kinds[first:] + kinds[:first]
        while True:
            for name, kind in kinds:
                with suppress(*GONE):
                    await kind()
                self.n_done[name] += 1
                await asyncio.sleep(self._random.uniform(0.1, 1.0))

    async def _vanish(self) -> None:
        """In the middle of a word."""
        for route in ROUTES:
            client = await connect(f"ws://{self._address}{route}")
            await client.send(SECOND)
            client.transport.abort()

    async def _stall(self) -> None:
        """Sends, then neither sends nor reads."""
        async with connect(f"ws://{self._address}/v1/live?unstable=true") as client:
            await client.send(SECOND * 3)
            await asyncio.sleep(5.0)
            client.transport.abort()

    async def _garbage(self) -> None:
        for route in ROUTES:
            async with connect(f"ws://{self._address}{route}") as client:
                for i in range(50):
                    await client.send(self._random.randbytes(i))
                    await client.send("{" * i)
                client.transport.abort()

    async def _half_open(self) -> None:
        """Begins of requests that are left at that."""
        host, port = self._address.split(":")
        begins = (
            b"",
            b"GET / HT",
            b"GET /v1/live HTTP/1.1\r\nupgrade: websocket\r\n",
            b"\x16\x03\x01",
            bytes(9_999),
        )
        made = []
        for begin in begins:
            connection = socket.create_connection((host, int(port)), timeout=5)
            connection.sendall(begin)
            made.append(connection)
        await asyncio.sleep(3.0)
        for connection in made:
            connection.close()

    async def _slow_upload(self) -> None:
        """A byte now and then, and an end in the middle."""
        _, writer = await asyncio.open_connection(*self._address.split(":"))
        head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: {self._address}\r\ncontent-length: 99999\r\n"
        writer.write(f"{head}content-type: multipart/form-data; boundary=a\r\n\r\n--a\r\n".encode())
        for _ in range(20):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.2)
        writer.transport.abort()

    async def _tiny(self) -> None:
        """10,000 messages of a byte."""
        async with connect(f"ws://{self._address}/v1/live") as client:
            for _ in range(10_000):
                await client.send(b"\x00")
            await client.send('{"type": "close"}')
            async for message in client:
                if json.loads(message)["type"] == "error":
                    self._on_fault(f"tiny messages: {message!r}")

    async def _recording(self) -> None:
        """A recording as it should be, beside all of this."""
        await self._post(timeout=120.0)

    async def _gone_client(self) -> None:
        """One that does not wait for its text."""
        await self._post(timeout=0.3)

    async def _post(self, timeout: float) -> None:
        async with httpx.AsyncClient(timeout=timeout) as client:
            answer = await client.post(
                f"http://{self._address}/v1/audio/transcriptions",
                files={"file": ("en.flac", RECORDING.read_bytes())},
            )
        if answer.status_code not in (200, 429):
            self._on_fault(f"a recording was answered with {answer.status_code}")


async def sending_jobs(address: str, accepted: list[str]) -> None:
    """Send a job every few seconds, until this is cancelled. accepted: gets the ids of those taken."""
    async with httpx.AsyncClient(timeout=60) as client:
        while True:
            files = {"file": ("en.flac", RECORDING.read_bytes())}
            answer = await client.post(f"http://{address}/v1/jobs", files=files)
            if answer.status_code == 202:
                accepted.append(answer.json()["id"])
            await asyncio.sleep(JOB_EVERY_S)


async def lost_jobs(address: str, accepted: list[str], within_s: float = 600.0) -> list[str]:
    """Wait for all jobs that were accepted; return what became of those that did not go well."""
    ends_s = time.monotonic() + within_s
    states: dict[str, str] = dict.fromkeys(accepted, "unknown")
    async with httpx.AsyncClient(timeout=60) as client:
        while time.monotonic() < ends_s and not set(states.values()) <= {"succeeded", "failed"}:
            for job in accepted:
                answer = await client.get(f"http://{address}/v1/jobs/{job}")
                states[job] = answer.json().get("status", "gone")
            await asyncio.sleep(1.0)
    return [f"a job that was accepted is {state}" for state in states.values() if state != "succeeded"]
