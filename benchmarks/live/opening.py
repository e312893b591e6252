"""How long it takes to open a live session, the first one of a process and those after it.

    python -m benchmarks live opening
    python -m benchmarks live opening --model nano --processes 3

Processor milliseconds, which other programs do not change: of opening, and of the first two seconds of a
recording in the session that was opened. "First": in processes of their own, the median; the model is loaded,
and nothing was heard with it yet. One thread.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_heads
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.types import SAMPLE_RATE

SETTINGS: dict[str, dict[str, Any]] = {
    "one language": {"languages": "en"},
    "all languages, `restart`": {"languages": None},
    "all languages, `parallel`": {"languages": None, "switching": "parallel"},
    'one language, `speakers="auto"`': {"languages": "en", "speakers": "auto"},
}
HEARD_S = 2.0
ROOT = Path(__file__).parents[2]
CLIP = ROOT / "examples" / "speech" / "en.flac"


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--times", type=int, default=200, help="sessions opened after the first [200]")
    parser.add_argument("--processes", type=int, default=5, help="processes for a first one [5]")
    parser.add_argument("--first", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(given.model, device="cpu", dtype=given.dtype)
    if given.first:
        print(json.dumps(opened(model, SETTINGS[given.first])))
        return
    show_heads(
        "session", "first", "its first 2 s of sound", "later, median", "90 %", "their first 2 s, median"
    )

    for name, setting in SETTINGS.items():
        first = [in_a_process(given, name) for _ in range(given.processes)]
        later = [opened(model, setting) for _ in range(11)][1:]
        times = [milliseconds(partial(model.session, **setting)) for _ in range(given.times)]
        cells = [median(one[0] for one in first), median(one[1] for one in first)]
        cells += [median(times), quantiles(times, n=10)[-1], median(one[1] for one in later)]
        print("| " + " | ".join([name, *(f"{cell:.{cell < 10:d}f} ms" for cell in cells)]) + " |", flush=True)


def opened(model: Model, setting: dict[str, Any]) -> tuple[float, float]:
    """Milliseconds to open a session, and to hear the beginning of a recording with it."""
    sound = load_audio(CLIP)[: round(HEARD_S * SAMPLE_RATE)]
    began = time.process_time()
    session = model.session(**setting)
    opening = 1000 * (time.process_time() - began)
    return opening, milliseconds(lambda: session.push(sound))


def milliseconds(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return 1000 * (time.process_time() - began)


def in_a_process(given: argparse.Namespace, name: str) -> tuple[float, float]:
    """The same of the first session of a process."""
    command = [sys.executable, "-m", "benchmarks", "live", "opening", "--first", name]
    command += ["--model", given.model, "--dtype", given.dtype]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    opening, heard = json.loads(told)
    return opening, heard
