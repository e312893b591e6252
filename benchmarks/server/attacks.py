"""How late live sessions are while a server is attacked.

    python -m benchmarks server attacks --model nano --sessions 4 --seconds 20

A server in a process of its own, which may open 256 files; four sessions that speak in real time; each attack
of `serving.attackers` in a process of its own, from another address, after a stretch without any, which
begins when the server has finished with the last attack. Attackers have the lowest priority, as elsewhere
they would have processors of their own. At the end the server is told to end while recordings are under way.
Prints a table (delays of words and their 95 % quantile, the longest `/health`, the most memory, the answers
to the attackers, the share of the processors that other programs took), then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

import httpx

from benchmarks.harness.report import benchmark_parser, resident_bytes, show_json, show_table
from benchmarks.server.attackers import ATTACKS, TRANSCRIPTIONS, silence
from benchmarks.server.live_clients import Lateness, OtherPrograms, idle_again, part, served, speak, speech

CLIP, QUERY = "mixed.flac", "languages=en,de,es,fr"
HEADS = (
    *("attack", "sessions", "words p50 s", "p95 s", "behind p95 s", "health p50 ms", "most ms"),
    *("memory MB", "other programs", "attackers got"),
)
N_FILES = 256
SHUTDOWN_S = 5.0
HEAD_START_S = 2.0
"""Of those who speak: a session that begins during an attack may be refused with 429."""


async def health(address: str, times_s: list[float]) -> None:
    """Ask ten times a second, until cancelled."""
    async with httpx.AsyncClient(timeout=60) as client:
        while True:
            began = time.monotonic()
            answer = await client.get(f"http://{address}/health")
            times_s.append(time.monotonic() - began)
            assert answer.status_code == 200
            await asyncio.sleep(0.1)


async def watch_memory(pid: int, most_mb: list[float]) -> None:
    while True:
        most_mb[0] = max(most_mb[0], resident_bytes(pid) / 1e6)
        await asyncio.sleep(0.1)


async def beside(name: str | None, pid: int, address: str, options: argparse.Namespace) -> dict[str, Any]:
    """Speak while an attack goes on; None: none. Returns the figures."""
    late, times_s, others = Lateness(), list[float](), OtherPrograms()
    attacker = None
    if name is not None:
        command = ["nice", "-n", "19", sys.executable, "-m", "benchmarks", "server", "attackers"]
        command += [name, address, str(options.seconds)]
        attacker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert attacker.stdout is not None
        attacker.stdout.readline()
    asking = asyncio.create_task(health(address, times_s))
    most_mb = [0.0]
    watching = asyncio.create_task(watch_memory(pid, most_mb))
    audio = speech(CLIP)
    talks = asyncio.gather(
        *(speak(address, audio, options.seconds, late, QUERY) for _ in range(options.sessions))
    )
    reported = ""
    if attacker is not None:
        await asyncio.sleep(HEAD_START_S)
        reported = (await asyncio.to_thread(attacker.communicate, "go\n"))[0]
    await talks
    asking.cancel()
    watching.cancel()
    await asyncio.gather(asking, watching, return_exceptions=True)
    return {
        "memory_mb": most_mb[0],
        "words_s": [part(late.words_s, 0.5), part(late.words_s, 0.95)],
        "behind_s": part(late.behind_s, 0.95),
        "health_s": [statistics.median(times_s), max(times_s)],
        "taken": late.n_taken,
        "faults": late.faults,
        "others": others.part,
        "told": json.loads(reported.splitlines()[-1]) if reported else {},
    }


async def ended(process: subprocess.Popen[str], address: str) -> float:
    """Seconds until a server that is told to end has done so, while recordings are under way."""

    async def send() -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            await client.post(f"http://{address}{TRANSCRIPTIONS}", files={"file": ("a.ogg", silence())})

    sending = [asyncio.create_task(send()) for _ in range(4)]
    await asyncio.sleep(2.0)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(process.wait, 120)
    seconds = time.monotonic() - began
    await asyncio.gather(*sending, return_exceptions=True)
    return seconds


def row(name: str, result: dict[str, Any]) -> list[str]:
    answers = ", ".join(f"{n} {what}" for what, n in result["told"].items())
    answers += f"; gone after {result['left_s']:.1f} s" if result["left_s"] else ""
    return [
        name,
        str(result["taken"]),
        *(f"{seconds:.2f}" for seconds in (*result["words_s"], result["behind_s"])),
        *(f"{1000 * seconds:.0f}" for seconds in result["health_s"]),
        f"{result['memory_mb']:.0f}",
        f"{100 * result['others']:.0f} %",
        answers,
    ]


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--attack", action="append", choices=[*ATTACKS], help="[all]")
    options = parser.parse_args()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    rows: list[list[str]] = []
    result: dict[str, object] = {}
    resource.setrlimit(resource.RLIMIT_NOFILE, (N_FILES, files[1]))  # the server inherits it
    with served(options.model, options.dtype, "--shutdown-timeout", str(SHUTDOWN_S)) as (process, address):
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
        for name in options.attack or ATTACKS:
            for side in (None, name):
                figures = asyncio.run(beside(side, process.pid, address, options))
                figures["left_s"] = idle_again(address) if side else 0.0
                rows.append(row(side or "without", figures))
                result[f"{name}: {'with' if side else 'without'}"] = figures
                print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
        end_s = asyncio.run(ended(process, address))
    show_table(HEADS, rows)
    print(f"\ntold to end within {SHUTDOWN_S:g} s: gone after {end_s:.1f} s")
    show_json("server attacks", {**vars(options), "end_s": end_s, **result})
