"""How many rows a second the one writer of `sottovoce batch` takes, for the arithmetic of docs/scaling.md.

    python -m benchmarks serving rows

Rows as `batch` writes them, of clips of 10 s and of recordings of an hour (segments of 5 s of ordinary text,
with their tokens, without words), into JSON lines and Parquet: the median of so many rounds, in turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_json
from sottovoce.archive.results import open_results
from sottovoce.archive.table_rows import Row

SEGMENT_S = 5.0
TEXT = " and so he went on to say what everybody in the room had been thinking."
TOKENS = list(range(1000, 1018))
FORMATS = ("jsonl", "parquet")


def row(number: int, seconds: float) -> Row:
    n_segments = int(seconds / SEGMENT_S)
    segments = [
        {
            "id": index,
            "start": index * SEGMENT_S,
            "end": (index + 1) * SEGMENT_S,
            "text": TEXT,
            "language": "en",
            "speaker": None,
            "tokens": TOKENS,
            "temperature": 0.0,
            "avg_logprob": -0.31,
            "compression_ratio": 1.4,
            "no_speech_prob": 0.02,
            "words": None,
        }
        for index in range(n_segments)
    ]
    return {
        "id": f"{number:09}",
        "file": f"archive/{number:09}.flac",
        "error": None,
        "text": TEXT * n_segments,
        "language": "en",
        "duration": seconds,
        "model": "base",
        "segments": segments,  # type: ignore[dict-item]
    }


def rows_a_second(folder: Path, format_name: str, seconds: float, n_rows: int) -> float:
    rows = [row(number, seconds) for number in range(n_rows)]
    begun = time.perf_counter()
    with open_results(folder / f"rows.{format_name}") as results:
        for one in rows:
            results.append(one)
    return n_rows / (time.perf_counter() - begun)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    found: dict[str, list[float]] = {}
    for _ in range(given.rounds):
        for format_name in FORMATS:
            for name, seconds, n_rows in (("10 s", 10.0, 20_000), ("1 h", 3600.0, 100)):
                with tempfile.TemporaryDirectory() as folder:
                    rate = rows_a_second(Path(folder), format_name, seconds, n_rows)
                found.setdefault(f"{format_name}, {name}", []).append(rate)
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    for name, rate in medians.items():
        hours = rate * (10 / 3600 if name.endswith("10 s") else 1)
        print(f"{name}: {rate:,.0f} rows a second, {hours:,.0f} hours of audio")
    show_json("serving rows", medians)
