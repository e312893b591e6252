"""Recordings that several people upload at once: read in one batch, or in turns.

    python -m benchmarks serving uploads DATA --dtype bfloat16 --uploads 4

A recording of joined clips of people (the part that reports) for each upload, all handed at the same moment
to the server's own scheduler; nobody speaks live. A side is how many recordings a batch has (--most; 1: in
turns). All sides in every round, forwards, then backwards. Prints seconds of audio a second, by the clock and
of the processor (which other programs change less), the median over the rounds of the ratio to the first,
and how many texts differ from those of the first side; then one JSON line.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.clips import clips, joined
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce.api import Model, load_model
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.serving.scheduling import scheduler
from sottovoce.serving.scheduling.scheduler import Scheduler, TranscriptionRequest
from sottovoce.serving.settings import Work
from sottovoce.types import SAMPLE_RATE, Samples


@dataclass(frozen=True, slots=True)
class Run:
    """All uploads answered once: audio a second by the clock and of the processor, and what was heard."""

    by_clock: float
    by_processor: float
    texts: tuple[str, ...]


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="base")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--uploads", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60, help="of an upload")
    parser.add_argument("--most", default="1,2,4", help="recordings in a batch, a side each")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    model = load_model(given.model, device=given.device, dtype=given.dtype)
    sides = [int(most) for most in given.most.split(",")]
    english = clips(given.data, "test", language="en")
    uploads = [joined(english[n :: given.uploads], given.seconds) for n in range(given.uploads)]
    found: dict[int, list[Run]] = {most: [] for most in sides}
    uploaded(model, uploads, sides[0])
    for n in range(given.rounds):
        for most in sides if n % 2 == 0 else reversed(sides):
            found[most].append(uploaded(model, uploads, most))
            print(most, found[most][-1].by_clock, found[most][-1].by_processor, flush=True)
    show(found)


def uploaded(model: Model, uploads: Sequence[Samples], most: int) -> Run:
    """All of them at once, at most so many of them in a batch."""
    scheduler.ON_CPU = replace(scheduler.ON_CPU, files=most)
    scheduler.ON_ACCELERATOR = replace(scheduler.ON_ACCELERATOR, files=most)
    running = Scheduler(model, Work())
    transcription = TranscriptionRequest(TranscribeOptions(), ("en",))

    async def one(audio: Samples) -> str:
        job = await running.transcribe(audio, transcription)
        return (await job.collect()).text

    async def together() -> list[str]:
        return await asyncio.gather(*map(one, uploads))

    seconds = sum(map(len, uploads)) / SAMPLE_RATE
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        texts = asyncio.run(together())
    finally:
        running.close()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Run(seconds / wall, seconds / cpu, tuple(texts))


def show(found: dict[int, list[Run]]) -> None:
    """The table, and all of it as one JSON line."""
    first = next(iter(found))
    show_heads("in a batch", "s/s by the clock", "ratio", "s/s of processor time", "ratio", "other texts")

    for most, runs in found.items():
        clock = statistics.median(one.by_clock for one in runs)
        processor = statistics.median(one.by_processor for one in runs)
        pairs = list(zip(runs, found[first], strict=True))
        by_clock = statistics.median(one.by_clock / other.by_clock for one, other in pairs)
        by_processor = statistics.median(one.by_processor / other.by_processor for one, other in pairs)
        n_other = sum(a != b for a, b in zip(runs[0].texts, found[first][0].texts, strict=True))
        show_row(most, f"{clock:.1f}", f"{by_clock:.2f}", f"{processor:.1f}", f"{by_processor:.2f}", n_other)
    numbers = {most: [(one.by_clock, one.by_processor) for one in runs] for most, runs in found.items()}
    show_json("serving uploads", {"found": numbers})
