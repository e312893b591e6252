"""What the language probe costs once keys and values are there: random weights of a named size.

    python benchmarks/probe.py --size tiny --frames 1500 --rows 1 2 8

CPU time of the process (not the clock: other work beside it counts less), median and 95th percentile.
Prints a table, then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch

from sottovoce.backends.torch import TorchBackend
from sottovoce.language.probe import LanguageProbe
from sottovoce.models.dims import ModelDims
from sottovoce.models.whisper import Whisper
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import EncoderOutput

SIZES = {"tiny": (384, 6, 4), "base": (512, 8, 6), "small": (768, 12, 12)}


def random_backend(size: str) -> TorchBackend:
    width, heads, layers = SIZES[size]
    dims = ModelDims(80, 1500, width, heads, layers, 51865, 448, width, heads, layers)
    torch.manual_seed(0)
    model = Whisper(dims).requires_grad_(False).eval()
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.normal_(std=0.02)
    return TorchBackend(model, name=size)


def measure(backend: TorchBackend, n_frames: int, n_rows: int, repeats: int) -> dict[str, float]:
    """Milliseconds of one probe of n_rows stretches."""
    tokenizer = Tokenizer.for_model(51865)
    probe = LanguageProbe(backend, tokenizer, tokenizer.language_codes)
    encoded = EncoderOutput(torch.randn(1, n_frames, backend.dims.n_audio_state), (n_frames,))
    width = min(75, n_frames)
    spans = [(n_frames - width - row, n_frames - row) for row in range(n_rows)]
    for _ in range(5):
        probe.probe(encoded, spans)
    times = []
    for _ in range(repeats):
        began = time.process_time()
        probe.probe(encoded, spans)
        times.append(1000 * (time.process_time() - began))
    return {
        "rows": n_rows,
        "p50_ms": round(float(np.median(times)), 2),
        "p95_ms": round(float(np.quantile(times, 0.95)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--frames", type=int, default=1500)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--repeats", type=int, default=50)
    given = parser.parse_args()
    torch.set_num_threads(1)
    backend = random_backend(given.size)
    rows = [measure(backend, given.frames, n, given.repeats) for n in given.rows]
    for row in rows:
        print(row)
    print(json.dumps({"size": given.size, "n_frames": given.frames, "threads": 1, "rows": rows}))


if __name__ == "__main__":
    main()
