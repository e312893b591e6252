"""A server in a process of its own, clients that speak to it in real time, how late it is for them, and the
share of the processors that other programs took.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import os
import subprocess
import sys
import time
import wave
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from sottovoce.audio.io import load_audio

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
RATE = 16_000
GONE = (OSError, ConnectionClosed, InvalidHandshake, TimeoutError, httpx.HTTPError)
"""Errors of clients whose server refuses or drops them."""
PIECE_S = 0.1
PATIENCE_S = 30.0
"""With a session that is late, after its last audio."""


@dataclass(slots=True)
class Lateness:
    """Of sessions: how late each word was (seconds after its end), `behind_s` every second, and who was
    refused (status, seconds until another try)."""

    words_s: list[float] = field(default_factory=list)
    behind_s: list[float] = field(default_factory=list)
    refused: list[tuple[int | None, float | None]] = field(default_factory=list)
    n_taken: int = 0
    faults: list[str] = field(default_factory=list)


def speech(name: str) -> bytes:
    """A clip of examples/clips with a second of silence behind it: 16 kHz, 16 bits."""
    samples = load_audio(CLIPS / name)
    return (samples * 32767).astype("<i2").tobytes() + bytes(2 * RATE)


def wave_file(pcm: bytes) -> bytes:
    """Samples of 16 kHz and 16 bits as a wave file."""
    created = io.BytesIO()
    with wave.open(created, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(pcm)
    return created.getvalue()


def part(values: Sequence[float], share: float) -> float:
    """The value that a share of them does not exceed; NaN of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


async def speak(address: str, audio: bytes, seconds: float, late: Lateness, query: str = "") -> None:
    """Say audio again and again, in real time, for so long; a server that refuses is not asked again."""
    try:
        socket = await connect(f"ws://{address}/v1/live?{query}", open_timeout=120, ping_interval=None)
    except InvalidStatus as refused:
        again = refused.response.headers.get("retry-after")
        late.refused.append((refused.response.status_code, None if again is None else float(again)))
        return
    async with socket:
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(seconds + PATIENCE_S):
                async for event, at_s in conversation(socket, audio, seconds):
                    if event["type"] == "ready":
                        late.n_taken += 1
                    elif event["type"] == "partial":
                        late.words_s += [at_s - word["end"] for word in event["words"]]
                    elif event["type"] == "status":
                        late.behind_s.append(event["behind_s"])
    if socket.close_code != 1000:
        late.faults.append(f"a session ended with {socket.close_code}: {socket.close_reason}")


async def conversation(
    socket: ClientConnection, audio: bytes, seconds: float
) -> AsyncIterator[tuple[dict[str, Any], float]]:
    """Send audio in real time, again and again for so long, and close; yields events with their seconds."""
    start = time.monotonic()

    async def send() -> None:
        n_piece = 2 * round(PIECE_S * RATE)
        pieces = [audio[i : i + n_piece] for i in range(0, len(audio), n_piece)]
        for number, piece in enumerate(itertools.cycle(pieces)):
            if number * PIECE_S >= seconds:
                break
            await asyncio.sleep(max(0.0, start + number * PIECE_S - time.monotonic()))
            await socket.send(piece)
        await socket.send('{"type": "close"}')

    sending = asyncio.create_task(send())
    try:
        async for message in socket:
            yield json.loads(message), time.monotonic() - start
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


@contextlib.contextmanager
def served(
    model: str, dtype: str, *more: str, log: int | IO[str] = subprocess.DEVNULL
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, ready, and its address; it is killed at the end.

    more: options. log: takes what it logs once it listens."""
    command = [
        sys.executable,
        "-m",
        "sottovoce",
        "serve",
        "-m",
        model,
        "--port",
        "0",
        "--dtype",
        dtype,
        *more,
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next((line for line in process.stderr if line.startswith("listening on ")), None)
        if line is None:
            raise SystemExit("the server did not start")
        address = line.split("//")[1].strip()
        with subprocess.Popen(["cat"], stdin=process.stderr, stdout=log):
            process.stderr.close()
            try:
                until_ready(address)
                yield process, address
            finally:
                process.kill()  # else what reads its errors never ends
    finally:
        process.kill()
        process.wait()


def metrics(address: str) -> dict[str, float]:
    lines = httpx.get(f"http://{address}/metrics", timeout=60).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def idle_again(address: str, within_s: float = 120.0) -> float:
    """Wait until the server has no work left; returns the seconds that it took, or so many."""
    began = time.monotonic()
    while time.monotonic() - began < within_s:
        values = metrics(address)
        if not any(values[f"sottovoce_{name}"] for name in ("sessions", "recordings", "work_waiting")):
            return time.monotonic() - began
        time.sleep(0.2)
    return within_s


def until_ready(address: str, within_s: float = 300.0) -> None:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://{address}/ready", timeout=20).status_code == 200:
                return
        time.sleep(0.2)
    raise SystemExit("the server was never ready")


TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class OtherPrograms:
    """Looks at the processors from now on: all time that this process and those it begins did not have."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._other_s = busy_s() - family_s(os.getpid())

    @property
    def part(self) -> float:
        """Of all processors since then, 0 to 1."""
        passed_s = (time.monotonic() - self._began_s) * (os.cpu_count() or 1)
        return max(0.0, busy_s() - family_s(os.getpid()) - self._other_s) / max(passed_s, TICK_S)


def busy_s() -> float:
    """Processor time of all programs so far (seconds)."""
    times = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(times) - times[3] - times[4]) * TICK_S  # but idle and waiting for disks


def begun_by(process: int) -> list[int]:
    lists = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for path in lists for child in path.read_text().split()]


def family_s(pid: int) -> float:
    """Processor time of a process, of those that it has begun, and of those of them that have ended."""
    try:
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
        return sum(map(int, times)) * TICK_S + sum(map(family_s, begun_by(pid)))
    except OSError:  # it has just gone, and its parent has its time
        return 0.0
