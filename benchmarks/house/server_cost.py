"""Processor seconds of the server for the same work, in this checkout and in another one, in turns.

    git worktree add ../before 1eaa2e3
    python -m benchmarks house server_cost DATA --before ../before --model base --rounds 5

A round asks both servers one after the other: --uploads recordings of --seconds at once (of people, the part
that reports), then --streams live sessions that speak in real time at the same moment. Texts of the uploads
must be the same. Prints the median of the ratios, and one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import wave
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from websockets.asyncio.client import connect

from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.clips import clips, joined
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce.types import SAMPLE_RATE, Samples

PUSH_S = 0.25
ANSWER_S = 600


@dataclass(frozen=True, slots=True)
class Server:
    """A running server of one checkout."""

    side: str
    port: int
    process: psutil.Process

    def processor_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def server(side: str, checkout: Path, options: Sequence[str]) -> Iterator[Server]:
    """Start `sottovoce serve` of a checkout, and wait until it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve() / "src")}
    command = [sys.executable, "-m", "sottovoce", "serve", "--port", str(port), *options]
    started = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(port)
        yield Server(side, port, psutil.Process(started.pid))
    finally:
        started.terminate()
        started.wait()


def wait_until_ready(port: int) -> None:
    for _ in range(240):
        try:
            if httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise TimeoutError("the server was not ready after two minutes")


def pcm(samples: Samples) -> bytes:
    return (samples * 32767).astype("<i2").tobytes()


def write_wav(file: Path, samples: Samples) -> None:
    with wave.open(str(file), "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(SAMPLE_RATE)
        writer.writeframes(pcm(samples))


async def uploaded(one: Server, files: Sequence[Path]) -> list[str]:
    """Texts of recordings that are uploaded at once, in English."""
    address = f"http://127.0.0.1:{one.port}/v1/audio/transcriptions"

    async def ask(client: httpx.AsyncClient, file: Path) -> str:
        upload = {"file": (file.name, file.read_bytes())}
        answer = await client.post(address, files=upload, data={"model": "whisper-1", "language": "en"})
        answer.raise_for_status()
        text: str = answer.json()["text"]
        return text

    async with httpx.AsyncClient(timeout=ANSWER_S) as client:
        return list(await asyncio.gather(*(ask(client, file) for file in files)))


async def spoken(one: Server, recordings: Sequence[Samples]) -> None:
    """Live sessions that get their audio in real time, all at once."""

    async def speak(samples: Samples) -> None:
        async with connect(f"ws://127.0.0.1:{one.port}/v1/live?languages=en,de") as live:
            reader = asyncio.create_task(read_all(live))
            n_push = int(PUSH_S * SAMPLE_RATE)
            started = time.monotonic()
            for n, start in enumerate(range(0, len(samples), n_push), start=1):
                await live.send(pcm(samples[start : start + n_push]))
                await asyncio.sleep(max(0.0, started + n * PUSH_S - time.monotonic()))
            await live.send(json.dumps({"type": "close"}))
            await reader

    async def read_all(live: object) -> int:
        return len([message async for message in live])  # type: ignore[attr-defined]

    await asyncio.gather(*(speak(samples) for samples in recordings))


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the version before")
    parser.add_argument("--model", default="base")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--uploads", type=int, default=2)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30)
    given = parser.parse_args()
    english = clips(given.data, "test", language="en")
    n = max(given.uploads, given.streams)
    recordings = [joined(english[k::n], given.seconds) for k in range(n)]
    options = ["--model", given.model]
    here = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{k}.wav" for k in range(given.uploads)]
        for file, samples in zip(files, recordings, strict=False):
            write_wav(file, samples)
        with server("before", given.before, options) as before, server("now", here, options) as now:
            figures = in_turns((before, now), files, recordings[: given.streams], given.rounds)
    show_json("house server_cost", figures)


def in_turns(
    sides: tuple[Server, Server], files: Sequence[Path], spoken_ones: Sequence[Samples], n_rounds: int
) -> dict[str, float]:
    """Medians of the ratios now / before, of uploads and live sessions."""
    spent: dict[tuple[str, str], list[float]] = {}
    texts = set()
    show_heads("round", "server", "uploads, processor s", "live, processor s")
    for n in range(n_rounds + 1):  # the first warms up
        for one in sides if n % 2 == 0 else sides[::-1]:
            started = one.processor_s()
            texts.add(tuple(asyncio.run(uploaded(one, files))))
            read = one.processor_s()
            asyncio.run(spoken(one, spoken_ones))
            done = one.processor_s()
            show_row(n, one.side, f"{read - started:.1f}", f"{done - read:.1f}")
            if n:
                spent.setdefault(("uploads", one.side), []).append(read - started)
                spent.setdefault(("live", one.side), []).append(done - read)
    ratios = {
        work: statistics.median(a / b for a, b in zip(spent[work, "now"], spent[work, "before"], strict=True))
        for work in ("uploads", "live")
    }
    return {work: round(ratio, 3) for work, ratio in ratios.items()} | {"different texts": len(texts) - 1}


if __name__ == "__main__":
    main()
