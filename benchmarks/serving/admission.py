"""Do live sessions that are taken stay in time, when many begin together?

    python -m benchmarks serving admission --model base --dtype bfloat16 --clients 12 --seconds 40

A server that forecasts its load, and one that does not, in turn; the clients begin at the same moment and
speak in real time. With --busy so many programs that want a core each begin after a third of the time: the
model falls behind, and the newest sessions are asked to come again (1013). Of those who are taken: how late
words are after they were said, and `behind_s`, the seconds of audio that no event accounts for yet, as the
server tells it every second. Of the others: their status and when they may come again. Prints a table, then
one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from dataclasses import asdict

from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import machine, show_json, show_table
from benchmarks.serving.live_clients import Lateness, part, served, speak, speech
from benchmarks.serving.others import OtherPrograms

SIDES = {"forecast": (), "without": ("--no-forecast",)}


async def together(address: str, audio: bytes, options: argparse.Namespace) -> Lateness:
    """Clients that begin at the same moment."""
    late = Lateness()
    talks = [speak(address, audio, options.seconds, late, options.query) for _ in range(options.clients)]
    speaking = asyncio.gather(*talks)
    await asyncio.sleep(options.seconds / 3)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
    try:
        await speaking
    finally:
        for program in busy:
            program.kill()
            program.wait()
    return late


def row(side: str, late: Lateness, others: float) -> list[str]:
    """One of the table; others: the part of the processors that other programs took."""
    codes = sorted({code for code, _ in late.refused if code is not None})
    agains = sorted({again for _, again in late.refused if again is not None})
    refused = f"{len(late.refused)}" + (f" ({', '.join(map(str, codes))})" if codes else "")
    delays = [f"{part(late.words_s, share):.2f}" for share in (0.5, 0.95)]
    behind = [f"{part(late.behind_s, share):.2f}" for share in (0.5, 0.95, 1.0)]
    span = f"{agains[0]:.0f}-{agains[-1]:.0f}" if agains else ""
    return [
        side,
        str(late.n_taken),
        refused,
        span,
        *delays,
        *behind,
        str(len(late.faults)),
        f"{100 * others:.0f} %",
    ]


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument(
        "--busy", type=int, default=0, help="programs that want a core, after a third of the time"
    )
    parser.add_argument("--clip", default="mixed.flac", help="of examples/clips")
    parser.add_argument("--query", default="languages=en,de,es,fr", help="of the address of /v1/live")
    parser.add_argument("--side", choices=[*SIDES], action="append", help="[both]")
    options = parser.parse_args()
    audio, rows, found = speech(options.clip), [], {}
    for side in options.side or SIDES:
        more = (*SIDES[side], "--max-sessions", str(options.clients))
        with served(options.model, options.dtype, *more) as (_, address):
            others = OtherPrograms()
            late = asyncio.run(together(address, audio, options))
            rows.append(row(side, late, others.part))
        found[side] = {**asdict(late), "words_s": sorted(late.words_s), "behind_s": sorted(late.behind_s)}
    heads = ["side", "taken", "refused", "again after s", "words p50 s", "p95 s"]
    show_table([*heads, "behind p50 s", "p95 s", "most s", "faults", "other programs"], rows)
    show_json("serving admission", {**vars(options), **machine(), **found})


if __name__ == "__main__":
    main()
