"""Threads that spin, or sleep, while they wait for each other: a recording read each way, taking turns.

    python benchmarks/waiting.py examples/speech/en.flac --rounds 3
    python benchmarks/waiting.py examples/speech/en.flac --rounds 3 --beside 0.3

--beside: another program takes so much of a core meanwhile. Each run is a process of its own, since OpenMP
reads these variables once. Prints the median seconds by the clock, and of processor time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

WAYS: dict[str, dict[str, str]] = {
    "300,000 turns (OpenMP's own)": {},
    "10,000 turns": {"GOMP_SPINCOUNT": "10000"},
    "1,000 turns": {"GOMP_SPINCOUNT": "1000"},
    "none": {"OMP_WAIT_POLICY": "passive"},
}
SLICE_S = 0.02
SCRIPT = """
import sys, time, torch, sottovoce
torch.set_num_threads(int(sys.argv[2]))
model = sottovoce.load_model(sys.argv[3], device="cpu", dtype=sys.argv[4])
wall, spent = time.perf_counter(), time.process_time()
model.transcribe(sys.argv[1], language="en", beam_size=int(sys.argv[5])).collect()
print(time.perf_counter() - wall, time.process_time() - spent)
"""


def work(share: float) -> None:
    """Take a share of a core until ended."""
    while True:
        until = time.monotonic() + share * SLICE_S
        while time.monotonic() < until:
            pass
        time.sleep((1.0 - share) * SLICE_S)


def run(way: dict[str, str], given: argparse.Namespace) -> tuple[float, float]:
    """Seconds by the clock and of processor time."""
    others = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in others} | way
    words = [str(given.recording), str(given.threads), given.model, given.dtype, str(given.beam_size)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], env=environment, capture_output=True, text=True, check=True
    )
    wall_s, spent_s = done.stdout.split()
    return float(wall_s), float(spent_s)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recording", type=Path)
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--beam-size", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=float, default=0.0, help="cores that another program takes")
    given = parser.parse_args()
    other = multiprocessing.Process(target=work, args=(given.beside,), daemon=True)
    if given.beside:
        other.start()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for _ in range(given.rounds):
        for name, way in WAYS.items():
            found[name].append(run(way, given))
    print("| spins for | s by the clock | processor s |\n|---|---|---|")
    for name, times in found.items():
        wall_s, spent_s = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"| {name} | {wall_s:.1f} | {spent_s:.1f} |")


if __name__ == "__main__":
    main()
