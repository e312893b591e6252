"""What following languages costs on recordings in one language: processor seconds, in turns.

    python -m benchmarks language following_cost ../shared/data --recordings 8
    python -m benchmarks language following_cost ../shared/data --recordings 8 --minutes 60

Recordings of 90 s, joined from clips of people (`one_language`), read with their language given, with none,
and with a list of four. A beam of 5, one thread, one round after the other. `--minutes` reads one recording
of that length a language, from the others one after the other, and again. Prints seconds and ratios, and
one JSON line.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_json
from benchmarks.language.one_language import items
from sottovoce.api import load_model
from sottovoce.types import SAMPLE_RATE, Samples

LISTED = ("en", "de", "es", "pl")


def recordings(data: Path, n: int, minutes: float | None) -> list[tuple[str, str, Samples]]:
    """Give (name, language, samples) of n recordings of 90 s, or of one of so many minutes a language."""
    chosen = [one for one in items(data, "test", 0, n) if one.language in LISTED]
    if minutes is None:
        return [(one.name, one.language, one.samples()) for one in chosen]
    languages = dict.fromkeys(one.language for one in chosen)
    own = {code: [one.samples() for one in chosen if one.language == code] for code in languages}
    n_samples = int(minutes * 60 * SAMPLE_RATE)
    return [
        (f"{minutes:g}-{code}", code, np.resize(np.concatenate(some), n_samples))
        for code, some in own.items()
    ]


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--recordings", type=int, default=6)
    parser.add_argument("--minutes", type=float, help="instead, one recording of this length a language")
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model("base", device="cpu")
    spent: dict[str, list[float]] = {"given": [], "auto": [], "list": []}
    for title, spoken, samples in recordings(given.data, given.recordings, given.minutes):
        ways = {"given": spoken, "auto": None, "list": ",".join(LISTED)}
        for name, language in ways.items():
            started = time.process_time()
            languages = {one.language for one in model.transcribe(samples, language=language, beam_size=5)}
            spent[name].append(time.process_time() - started)
            print(title, name, f"{spent[name][-1]:.1f} s", sorted(languages), flush=True)
    row = {name: round(sum(values), 1) for name, values in spent.items()}
    for name in ("auto", "list"):
        row[f"{name} / given, median"] = round(
            median(a / b for a, b in zip(spent[name], spent["given"], strict=True)), 3
        )
    show_json("language following_cost", row)
