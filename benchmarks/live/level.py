"""Whether a live session stays level: the same 40 s of speech again and again in one session.

    python -m benchmarks live level ../shared --dtype bfloat16 --rounds 7
    ONEDNN_PRIMITIVE_CACHE_CAPACITY=1024 python -m benchmarks live level ../shared --dtype bfloat16

Processor seconds for a second of sound, and the memory of the process, of every round: what grows, grows by
itself, as what is said does not change. There are no long pauses, so that the window of the utterance is soon
full.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.harness.arguments import add_shared, benchmark_parser
from benchmarks.harness.clips import clips, joined
from benchmarks.harness.tables import show_heads, show_row
from sottovoce.api import load_model
from sottovoce.types import SAMPLE_RATE

SECONDS = 40.0
UPDATE_SAMPLES = SAMPLE_RATE // 2


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--language", default="en")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    model = load_model(given.model, device="cpu", dtype=given.dtype)
    sound = joined(clips(given.shared / "data", "dev", language=given.language)[:30], SECONDS)
    session = model.session(given.language)
    show_heads("round", "processor s a second", "memory")
    for number in range(1, given.rounds + 1):
        began = time.process_time()
        for start in range(0, len(sound), UPDATE_SAMPLES):
            session.push(sound[start : start + UPDATE_SAMPLES])
        cost = (time.process_time() - began) / (len(sound) / SAMPLE_RATE)
        show_row(number, f"{cost:.2f}", f"{resident_mb():.0f} MB")


def resident_mb() -> float:
    """Memory of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 1e6
