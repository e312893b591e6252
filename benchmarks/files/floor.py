"""What a decoder step and an encoder window cannot take less than: bytes over bandwidth, products over peak.

    python -m benchmarks files floor --threads 1

Both are measured here. Bandwidth: the sum of an array of 512 MB, which no cache holds, the best of the
rounds. Peak: the fastest that PyTorch (float32, bfloat16) or the kernels (bytes) multiply 768 rows with a
table of 768 by 768, which stays in the caches. A step reads each table of the decoder once in bytes, and the
keys and values of one audio in bfloat16, for all rows, as a beam has it. Prints a table and one JSON line.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import sottovoce_kernels as kernels
import torch

from benchmarks.files.kernels import SIZES
from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_heads, show_json, show_row

N_BYTES = 2**29
WIDTH = 768
N_FRAMES, N_MEL_FRAMES = 1500, 3000
N_VOCAB = 51865
ROWS = (1, 5, 16)


def fastest(work: Callable[[], object], rounds: int) -> float:
    """Seconds on the clock of the fastest round, after one that is not counted."""
    work()
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def bandwidth(rounds: int) -> float:
    """Bytes a second from memory."""
    numbers = torch.ones(N_BYTES // 4)
    return N_BYTES / fastest(numbers.sum, rounds)


def peaks(rounds: int, n_threads: int) -> dict[str, float]:
    """Products a second, by number format: a multiplication and an addition each."""
    n_products = WIDTH**3
    found = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        both = torch.randn(2, WIDTH, WIDTH).to(dtype)
        found[name] = n_products / fastest(partial(torch.mm, both[0], both[1]), rounds)
    numbers, out = np.random.default_rng(0).standard_normal((2, WIDTH, WIDTH)).astype(np.float32)
    linear = kernels.Linear(numbers.ctypes.data, 0, WIDTH, WIDTH)
    addresses = numbers.ctypes.data, WIDTH, out.ctypes.data
    found["bytes"] = n_products / fastest(lambda: linear.apply(*addresses, kernels.STORE, n_threads), rounds)
    return found


def step_bytes(d: int, n_layer: int) -> int:
    """Bytes that a step reads: tables of all layers and the vocabulary, keys and values of one audio."""
    tables = n_layer * (4 + 2 + 8) * d * d + N_VOCAB * d
    return tables + n_layer * 2 * N_FRAMES * d * 2


def step_products(d: int, n_layer: int, n_rows: int) -> int:
    """Products of a step of one token a row."""
    return n_rows * (n_layer * (14 * d * d + 2 * N_FRAMES * d) + N_VOCAB * d)


def encoder_products(d: int, n_layer: int, n_mels: int) -> int:
    """Products of a window of 30 s: two convolutions, linear layers, attention."""
    convolutions = N_MEL_FRAMES * 3 * n_mels * d + N_FRAMES * 3 * d * d
    return convolutions + n_layer * (12 * N_FRAMES * d * d + 2 * N_FRAMES**2 * d)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    per_s = bandwidth(given.rounds)
    peak = peaks(given.rounds, given.threads)
    told = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in peak.items())
    print(f"{per_s / 1e9:.1f} GB/s; 10^9 products a second: {told}\n")
    show_heads("ms", *(f"step, {n} rows" for n in ROWS), "encoder, 30 s")
    floors = {}
    for name, (d, _, n_encoder, n_decoder) in SIZES.items():
        read_s = step_bytes(d, n_decoder) / per_s
        steps = [max(read_s, step_products(d, n_decoder, n) / peak["bytes"]) for n in ROWS]
        n_mels = 128 if name == "turbo" else 80
        floors[name] = [*steps, encoder_products(d, n_encoder, n_mels) / max(peak.values())]
        show_row(name, *(f"{1e3 * one:.1f}" for one in floors[name]))
    show_json("files floor", {"bytes_per_s": per_s, "products_per_s": peak, "floors_s": floors})


if __name__ == "__main__":
    main()
