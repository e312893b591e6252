"""Does a server stay as it was, hour by hour, whatever its clients do?

    python -m benchmarks server soak               # 30 minutes, nano, 2 sessions, and chaos beside them
    python -m benchmarks server soak --model base --sessions 4 --seconds 3600

A server in a process of its own; some sessions that speak in real time, one after the other; beside them
clients that misbehave (`Chaos`). Every session must say what the library says of the same audio, and none
may fail; memory and open files must stay level. In the end all go, and the server must have nothing left
of them, and every job that was accepted must be done. Then the server is killed in the middle of a
session and started anew at the same port, and must serve the clients that come back.

Where the whole of it is stopped for a while (SIGSTOP), what goes wrong then is no fault: clocks go on.
Latency is the time from the end of a word to its text: the middle, and one word of twenty is later.
Prints a table, then one JSON line; ends with 1 where something did not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import httpx
import numpy as np
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from benchmarks.harness.report import benchmark_parser, resident_bytes, show_json
from benchmarks.server.live_clients import CLIPS, GONE, RATE, conversation, idle_again, served
from sottovoce.api import load_model
from sottovoce.audio.io import load_audio
from sottovoce.types import Final

SECOND = bytes(2 * 16_000)
ROUTES = ("/v1/live", "/v1/realtime", "/v1/listen?encoding=linear16")
RECORDING = CLIPS / "en.flac"
AT_A_TIME = 3
JOB_EVERY_S = 10.0


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
            "recordings": partial(self._post, 120.0),
            "clients gone": partial(self._post, 0.3),
        }

    async def run(self) -> None:
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
        async with connect(f"ws://{self._address}/v1/live?captions=revisable") as client:
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
        begins = (b"", b"GET / HT", b"GET /v1/live HTTP/1.1\r\nupgrade: websocket\r\n", bytes(9_999))
        created = []
        for begin in begins:
            connection = socket.create_connection((host, int(port)), timeout=5)
            connection.sendall(begin)
            created.append(connection)
        await asyncio.sleep(3.0)
        for connection in created:
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
        async with connect(f"ws://{self._address}/v1/live") as client:
            for _ in range(10_000):
                await client.send(b"\x00")
            await client.send('{"type": "close"}')
            async for message in client:
                if json.loads(message)["type"] == "error":
                    self._on_fault(f"tiny messages: {message!r}")

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


LEAST_DELAY_S, LEAST_RUN_S = 1.0, 600.0
"""By which words may come later in the last quarter than in the second, in a run so long: in a shorter
one that tells of what else the machine does."""
PAUSE_S, AFTER_S = 4.0, 30.0
"""From how long on all have stood still, and how long that is felt."""
LEAST_GROWTH_MB = 150.0
"""Memory that may come with the first sessions and recordings, whatever the time: in 20 s of `nano` 50 to
64 MB, most of it with the first recordings; each engine has its own."""


@dataclass(frozen=True, slots=True)
class State:
    """The server at a moment: memory, processor time, threads, files."""

    at_s: float
    memory_mb: float
    cpu_s: float
    n_threads: int
    n_files: int


@dataclass(slots=True)
class Heard:
    """What sessions gave: the latency of each word with its moment, sessions done, what went wrong.

    pauses: from when to when all of this stood still, by the clock: what is late then is no fault.
    """

    latencies: list[tuple[float, float]] = field(default_factory=list)
    n_sessions: int = 0
    noted: list[tuple[float, str]] = field(default_factory=list)
    pauses: list[tuple[float, float]] = field(default_factory=list)

    def fault(self, text: str) -> None:
        self.noted.append((time.monotonic(), text))

    @property
    def faults(self) -> list[str]:
        """Faults, without those during pauses of the whole machine."""
        return [text for at, text in self.noted if not any(a <= at <= b + AFTER_S for a, b in self.pauses)]


def options_of_server(options: argparse.Namespace, port: int, jobs: str) -> list[str]:
    """Options that take all sessions, at an interval that gives the words of the library."""
    limits = ["--max-sessions", str(options.sessions + 40), "--max-requests", "12", "--jobs-dir", jobs]
    return ["--port", str(port), "--longest-interval", "0.5", "--no-forecast", *limits]


def state_of(process: subprocess.Popen[str], began: float) -> State:
    folder = Path(f"/proc/{process.pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    times = (folder / "stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
    n_files = len(list((folder / "fd").iterdir()))
    memory_mb = resident_bytes(process.pid) / 1e6
    return State(time.monotonic() - began, memory_mb, cpu_s, int(status["Threads"]), n_files)


async def speak(address: str, audio: bytes, expected: str, began: float, heard: Heard) -> None:
    """One session in real time, from its first word to its last."""
    text = []
    async with connect(f"ws://{address}/v1/live?languages=en,de,es,fr", open_timeout=60) as socket:
        async for event, at_s in conversation(socket, audio, len(audio) / 2 / RATE):
            if event["type"] == "partial":
                now = time.monotonic() - began
                heard.latencies += [(now, at_s - word["end"]) for word in event["words"]]
            elif event["type"] == "final":
                text.append(event["text"])
            elif event["type"] == "error":
                heard.fault(event["error"]["message"])
    heard.n_sessions += 1
    if " ".join(text) != expected:
        heard.fault(f"a session of {len(expected)} letters had {len(' '.join(text))}, or others")


async def speaking(
    address: str, audio: bytes, expected: str, began: float, seconds: float, heard: Heard
) -> None:
    """Sessions one after the other, as long as there is time for one."""
    while time.monotonic() - began + len(audio) / 2 / RATE < seconds or not heard.n_sessions:
        try:
            await speak(address, audio, expected, began, heard)
        except InvalidStatus as refused:
            again_s = refused.response.headers.get("retry-after")
            if again_s is None:
                heard.fault(f"a session was refused with {refused.response.status_code}")
            await asyncio.sleep(float(again_s or 1.0))
        except (OSError, ConnectionClosed, TimeoutError) as error:
            heard.fault(f"a session ended with {type(error).__name__}: {error}")
            await asyncio.sleep(1.0)


async def soak(
    process: subprocess.Popen[str], address: str, options: argparse.Namespace, audio: bytes, expected: str
) -> tuple[list[State], Heard, dict[str, int]]:
    """The load and the chaos, for so long; the state of the server all along."""
    began, heard, states = time.monotonic(), Heard(), [state_of(process, time.monotonic())]
    seconds: float = options.seconds
    good = [
        asyncio.create_task(speaking(address, audio, expected, began, seconds, heard))
        for _ in range(options.sessions)
    ]
    chaos = Chaos(address, heard.fault)
    bad = [asyncio.create_task(chaos.run()), asyncio.create_task(noting_pauses(heard))]
    jobs: list[str] = []
    bad.append(asyncio.create_task(sending_jobs(address, jobs)))
    while not all(task.done() for task in good):
        await asyncio.sleep(min(5.0, seconds / 20))
        states.append(state_of(process, began))
        progress = f"{states[-1].at_s:.0f} s: {states[-1].memory_mb:.0f} MB, {heard.n_sessions} sessions"
        print(progress, f"{len(heard.faults)} faults", sep=", ", file=sys.stderr, flush=True)
    for task in bad:
        task.cancel()
    await asyncio.gather(*bad, return_exceptions=True)
    for lost in await lost_jobs(address, jobs):
        heard.noted.append((math.inf, lost))
    chaos.n_done["jobs"] = len(jobs)
    for task in good:
        task.result()
    return states, heard, chaos.n_done


async def noting_pauses(heard: Heard) -> None:
    """Note when this process, and the server with it, was stopped for a while; until cancelled."""
    while True:
        before_s = time.monotonic()
        await asyncio.sleep(1.0)
        if time.monotonic() - before_s > PAUSE_S:
            heard.pauses.append((before_s, time.monotonic()))


async def cut_off(process: subprocess.Popen[str], address: str, audio: bytes) -> bool:
    """Kill the server in the middle of a session; whether its client is told at once."""
    async with connect(f"ws://{address}/v1/live") as socket:
        await socket.send(audio[: 2 * RATE])
        await socket.recv()
        process.kill()
        try:
            async with asyncio.timeout(20):
                async for _ in socket:
                    pass
        except ConnectionClosed:
            return True
        except TimeoutError:
            return False
    return True


def quarters(states: list[State], heard: Heard) -> Iterator[tuple[str, ...]]:
    end = states[-1].at_s
    for i in range(4):
        first, last = end * i / 4, end * (i + 1) / 4
        some = [state for state in states if first <= state.at_s <= last] or [states[-1]]
        delays = delays_in(heard, end, i)
        shown = ["", ""]
        if delays:
            shown = [f"{delays[len(delays) // 2]:.2f}", f"{delays[len(delays) * 19 // 20]:.2f}"]
        span = max(some[-1].at_s - some[0].at_s, 1e-9)
        yield (
            f"{first:.0f}-{last:.0f}",
            f"{statistics.median(state.memory_mb for state in some):.0f}",
            f"{max(state.n_threads for state in some)}",
            f"{statistics.median(state.n_files for state in some):.0f}",
            f"{100 * (some[-1].cpu_s - some[0].cpu_s) / span:.0f}",
            *shown,
        )


def delays_in(heard: Heard, end_s: float, quarter: int) -> list[float]:
    """Of the words of a part of the run, 0 to 3, in ascending order."""
    first, last = end_s * quarter / 4, end_s * (quarter + 1) / 4
    return sorted(delay for at, delay in heard.latencies if first <= at < last)


def levels(states: list[State], after: State, heard: Heard) -> list[str]:
    """Figures that did not stay level, and faults."""
    end = states[-1].at_s
    early = [state.memory_mb for state in states if end / 4 <= state.at_s < end / 2] or [states[-1].memory_mb]
    late = [state.memory_mb for state in states if state.at_s >= end * 3 / 4] or [states[-1].memory_mb]
    growth_mb = statistics.median(late) - statistics.median(early)
    result = list(dict.fromkeys(heard.faults))
    middle_s = [statistics.median(delays or [0.0]) for delays in (delays_in(heard, end, i) for i in (1, 3))]
    if end >= LEAST_RUN_S and middle_s[1] - middle_s[0] > LEAST_DELAY_S:
        result.append(f"words come {middle_s[1] - middle_s[0]:.1f} s later than before")
    if growth_mb > max(LEAST_GROWTH_MB, 0.05 * statistics.median(early)):
        result.append(f"memory grew by {growth_mb:.0f} MB")
    if after.n_files > states[0].n_files + 4:
        result.append(f"{after.n_files - states[0].n_files} files stay open")
    if not heard.latencies:
        result.append("no word was heard")
    return result


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--clip", default="mixed.flac", help="of examples/clips")
    options = parser.parse_args()
    samples = load_audio(CLIPS / options.clip)
    audio = (samples * 32767).astype("<i2").tobytes()
    expected = text_of(options.model, options.dtype, audio)
    jobs = tempfile.mkdtemp()
    more = options_of_server(options, 0, jobs)
    with served(options.model, options.dtype, *more) as (process, address):
        states, heard, n_bad = asyncio.run(soak(process, address, options, audio, expected))
        is_empty = idle_again(address, within_s=60.0) < 60.0
        after = state_of(process, 0.0)
        failed = levels(states, after, heard)
        failed += [] if is_empty else ["sessions or recordings stay that nobody has"]
        if not asyncio.run(cut_off(process, address, audio)):
            failed.append("a client was not told that the server was gone")
        process.wait()
        port = int(address.split(":")[1])
    more = options_of_server(options, port, jobs)
    with served(options.model, options.dtype, *more) as (process, address):
        again = Heard()
        asyncio.run(speak(address, audio, expected, time.monotonic(), again))
        failed += [f"after it was killed: {fault}" for fault in again.faults]
    shutil.rmtree(jobs, ignore_errors=True)
    report(options, states, heard, n_bad, failed)
    sys.exit(1 if failed else 0)


def text_of(model: str, dtype: str, audio: bytes) -> str:
    """The library's text of the same audio."""
    pcm = np.frombuffer(audio, "<i2").astype(np.float32) / 32768
    session = load_model(model, dtype=dtype).session(["en", "de", "es", "fr"], switching="restart")
    events = [*session.push(pcm), *session.close()]
    return " ".join(event.text for event in events if isinstance(event, Final))


def report(
    options: argparse.Namespace, states: list[State], heard: Heard, n_bad: dict[str, int], failed: list[str]
) -> None:
    also = ", ".join(f"{n} {name}" for name, n in n_bad.items())
    good = f"{heard.n_sessions} sessions of {len(heard.latencies)} words, {len(heard.pauses)} pauses"
    print(f"{good}; also {also}")
    heads = ("seconds", "MB", "threads", "files", "CPU %", "p50 s", "p95 s")
    for row in (heads, *quarters(states, heard)):
        print("  ".join(f"{cell:>9}" for cell in row))
    print("\n".join(f"FAILED: {what}" for what in failed) or "all as it was")
    figures = {"first": asdict(states[0]), "last": asdict(states[-1]), "chaos": n_bad, "failed": failed}
    show_json("server soak", {**vars(options), **figures})
