"""What an archive costs in one process and on a local Ray cluster, for the arithmetic of docs/scaling.md.

    python -m benchmarks serving scaling ../shared --clips 48 --actors 1 2

The same human clips, three rounds in turns; of each way: seconds until the first row (processes that start,
models that load), and audio transcribed for a second of time after it. Run it where nothing else runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.harness.arguments import add_shared, benchmark_parser
from benchmarks.harness.clips import clips, spread
from benchmarks.harness.tables import show_heads, show_row
from sottovoce.api import load_model
from sottovoce.archive.listing import Item
from sottovoce.archive.table_rows import BatchOptions, Row, transcribe_items
from sottovoce.serving.ray.cluster import connect, library
from sottovoce.serving.ray.jobs import Actors, transcribe_on_ray


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--clips", type=int, default=48)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    chosen = spread(clips(given.shared / "data", "test"), given.clips)
    items = [Item(clip.name, str(clip.file)) for clip in chosen]
    reading = BatchOptions(n_together=4)
    open_model = partial(load_model, given.model, device="cpu", dtype=given.dtype)
    connect(None)

    def in_one_process() -> Iterator[Row]:
        import torch

        torch.set_num_threads(1)
        return transcribe_items(open_model(), items, reading)

    def on_ray(n: int) -> Iterator[Row]:
        return transcribe_on_ray(items, open_model, reading, Actors(n, n))

    ways: dict[str, Callable[[], Iterator[Row]]] = {"one process": in_one_process}
    ways |= {f"ray, {n} actors": partial(on_ray, n) for n in given.actors}
    figures: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(given.rounds):
        for way, run in ways.items():
            figures[way].append(measured(run))
    library("ray").shutdown()
    show_heads("way", "until the first rows", "audio a second after them")
    for way, found in figures.items():
        first, rate = (statistics.median(values) for values in zip(*found, strict=True))
        show_row(way, f"{first:.1f} s", f"{rate:.1f} s")


def measured(run: Callable[[], Iterator[Row]]) -> tuple[float, float]:
    """Seconds until the first row, and seconds of audio for a second of time from there on."""
    began = time.monotonic()
    first_s, seconds = 0.0, 0.0
    for row in run():
        if not first_s:
            first_s = time.monotonic() - began
            continue
        duration = row["duration"]
        assert isinstance(duration, float | int)
        seconds += duration
    return first_s, seconds / (time.monotonic() - began - first_s)
