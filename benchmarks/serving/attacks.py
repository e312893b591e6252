"""Do people who mean harm make those wait who speak?

    python -m benchmarks serving attacks --model nano --sessions 4 --seconds 20

A server in a process of its own, which may open 256 files; four sessions that speak in real time; each
attack of `serving.attackers` beside them in a process of its own, from another address, with a stretch
without any before it, which begins when nothing is left of the last one (and how long that took). Attackers
have the lowest priority of the machine, as elsewhere they would have processors of their own. How late
words are (the middle, and one of twenty is later), how long the worst `/health` took, how much memory the
server had at most, what the attackers got, and what part of the processors other programs took. At the end
the server is told to go while recordings are under way, and must be gone within its time. Prints a table,
then one JSON line.
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
from pathlib import Path

import httpx

from benchmarks.harness.report import benchmark_parser, show_json, show_table
from benchmarks.serving.attackers import ATTACKS, TRANSCRIPTIONS, silence
from benchmarks.serving.live_clients import Lateness, OtherPrograms, metrics, part, served, speak, speech

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
    """Note the most memory of a process, until cancelled (Linux)."""
    while True:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        most_mb[0] = max(most_mb[0], pages * resource.getpagesize() / 1e6)
        await asyncio.sleep(0.1)


async def beside(name: str | None, pid: int, address: str, options: argparse.Namespace) -> dict[str, object]:
    """Speak while an attack goes on; None: none. Returns the figures."""
    late, times_s, others = Lateness(), list[float](), OtherPrograms()
    attacker = None
    if name is not None:
        command = ["nice", "-n", "19", sys.executable, "-m", "benchmarks", "serving", "attackers"]
        command += [name, address, str(options.seconds)]
        attacker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert attacker.stdout is not None
        attacker.stdout.readline()
    asking = asyncio.create_task(health(address, times_s))
    most_mb = [0.0]
    watching = asyncio.create_task(watch_memory(pid, most_mb))
    audio = speech(options.clip)
    talks = asyncio.gather(
        *(speak(address, audio, options.seconds, late, options.query) for _ in range(options.sessions))
    )
    told = ""
    if attacker is not None:
        await asyncio.sleep(HEAD_START_S)
        told = (await asyncio.to_thread(attacker.communicate, "go\n"))[0]
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
        "told": json.loads(told.splitlines()[-1]) if told else {},
    }


def idle_again(address: str, within_s: float = 120.0) -> float:
    """Wait until the server is at nothing any more; return for how long (seconds)."""
    began = time.monotonic()
    while time.monotonic() - began < within_s:
        values = metrics(address)
        if not any(values[f"sottovoce_{name}"] for name in ("sessions", "recordings", "work_waiting")):
            break
        time.sleep(0.2)
    return time.monotonic() - began


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


def row(name: str, found: dict[str, object]) -> list[str]:
    """One of the table."""
    words, asked = found["words_s"], found["health_s"]
    assert isinstance(words, list)
    assert isinstance(asked, list)
    told, others = found["told"], found["others"]
    assert isinstance(told, dict)
    assert isinstance(others, float)
    answers = ", ".join(f"{n} {what}" for what, n in told.items())
    figures = [f"{words[0]:.2f}", f"{words[1]:.2f}", f"{found['behind_s']:.2f}"]
    answers += f"; gone after {found['left_s']:.1f} s" if found["left_s"] else ""
    return [
        name,
        str(found["taken"]),
        *figures,
        f"{1000 * asked[0]:.0f}",
        f"{1000 * asked[1]:.0f}",
        f"{found['memory_mb']:.0f}",
        f"{100 * others:.0f} %",
        answers,
    ]


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clip", default="mixed.flac", help="of examples/clips")
    parser.add_argument("--query", default="languages=en,de,es,fr", help="of the address of /v1/live")
    parser.add_argument("--attack", action="append", choices=[*ATTACKS], help="[all]")
    parser.add_argument(
        "--forecast",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let the server refuse sessions",
    )
    options = parser.parse_args()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    rows: list[list[str]] = []
    found: dict[str, object] = {}
    resource.setrlimit(resource.RLIMIT_NOFILE, (N_FILES, files[1]))  # the server inherits it
    more = ("--shutdown-timeout", str(SHUTDOWN_S), "--forecast" if options.forecast else "--no-forecast")
    with served(options.model, options.dtype, *more) as (process, address):
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
        for name in options.attack or ATTACKS:
            for side in (None, name):
                figures = asyncio.run(beside(side, process.pid, address, options))
                figures["left_s"] = idle_again(address) if side else 0.0
                rows.append(row(side or "without", figures))
                found[f"{name}: {'with' if side else 'without'}"] = figures
                print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
        end_s = asyncio.run(ended(process, address))
    heads = [
        "attack",
        "sessions",
        "words p50 s",
        "p95 s",
        "behind p95 s",
        "health p50 ms",
        "most ms",
        "memory MB",
        "other programs",
        "attackers got",
    ]
    show_table(heads, rows)
    print(f"\ntold to end within {SHUTDOWN_S:g} s: gone after {end_s:.1f} s")
    show_json("serving attacks", {**vars(options), "end_s": end_s, **found})


if __name__ == "__main__":
    main()
