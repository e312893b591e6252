"""How many people can speak at once to a server whose model runs in one process, or in several?

    python -m benchmarks serving processes DATA --model base --dtype bfloat16 --streams 4,6 --processes 1,2

People who speak in real time (`serving.streams`) over sockets, to a server in a process of its own, which
refuses nobody. Delays are from the end of a word to its event, here; memory is that of the server and of all
processes that it has begun. Prints a table, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import time
from pathlib import Path

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import machine, show_json, show_table
from benchmarks.serving.chaos import begun_by
from benchmarks.serving.live_clients import PATIENCE_S, served
from benchmarks.serving.streams import PAGE_MB, PUSH_S, SHARE, Report, Said, Stream, n_wrong, streams


async def heard(address: str, stream: Stream, began_s: float) -> Said:
    """One stream in real time, and what came of it; what comes later than `PATIENCE_S` is lost."""
    said = Said()
    async with connect(f"ws://{address}/v1/live?languages=en", ping_interval=None) as socket:

        async def send() -> None:
            fed_s = 0.0
            while fed_s < stream.duration_s:
                await asyncio.sleep(max(0.0, began_s + stream.from_s + fed_s + PUSH_S - time.monotonic()))
                piece = stream.piece(fed_s, fed_s + PUSH_S)
                await socket.send((piece * 32767).astype("<i2").tobytes())
                fed_s += PUSH_S
            await socket.send('{"type": "close"}')

        sending = asyncio.create_task(send())
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(stream.from_s + stream.duration_s + PATIENCE_S):
                async for message in socket:
                    event = json.loads(message)
                    if event["type"] == "partial":
                        now_s = time.monotonic() - began_s - stream.from_s
                        said.delays_s += [now_s - word["end"] for word in event["words"]]
                        said.text += event["text"]
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    return said


async def all_heard(address: str, some: list[Stream]) -> list[Said]:
    """All streams at once."""
    began_s = time.monotonic()
    return await asyncio.gather(*(heard(address, stream, began_s) for stream in some))


def family_mb(pid: int) -> float:
    """What a process and those that it has begun hold, each for itself (Linux)."""
    try:
        own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_MB
        return own + sum(map(family_mb, begun_by(pid)))
    except OSError:  # it has just gone
        return 0.0


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--streams", default="4")
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a stream, about")
    options = parser.parse_args()
    rows, found = [], {}
    for n_streams in map(int, options.streams.split(",")):
        some = streams(options.data, n_streams, options.seconds)
        for side in options.processes.split(","):
            more = ["--processes", side, "--threads", str(os.cpu_count()), "--no-forecast"]
            more += ["--max-sessions", str(n_streams), "--max-wait", "99"]
            with served(options.model, options.dtype, *more) as (process, address):
                said = asyncio.run(all_heard(address, some))
                memory_mb = family_mb(process.pid)
            rows.append(row(side, some, Report(side, said, {}, memory_mb)))
            print(*rows[-1], sep=" | ", flush=True)
            found[f"{n_streams} on {side}"] = rows[-1]
    heads = ["streams", "processes", "words within 2 s", "p50 s", "p95 s", "MB", "words wrong", "words"]
    show_table(heads, rows)
    show_json("serving processes", {**options_of(options), **machine(), **found})


def row(side: str, some: list[Stream], report: Report) -> list[str]:
    """One of the table."""
    wrong, total = n_wrong(report.said, [stream.text for stream in some])
    delays = [f"{report.quantile_s(share):.2f}" for share in (0.5, SHARE)]
    n_words = sum(len(one.delays_s) for one in report.said)
    figures = [f"{100 * report.within():.1f} %", *delays, f"{report.memory_mb:.0f}"]
    return [str(len(some)), side, *figures, f"{100 * wrong / total:.1f} %", str(n_words)]


def options_of(options: argparse.Namespace) -> dict[str, str]:
    """What was asked for, without where the data lies."""
    return {name: str(value) for name, value in vars(options).items() if name != "data"}


if __name__ == "__main__":
    main()
