"""What the parts of a live update cost alone and in company: encoder, prefix, decoder step.

    python benchmarks/live_parts.py --dtype float32

Least processor milliseconds of several repeats on one thread, over random sound: nothing is said of words.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch

from sottovoce.api import load_model
from sottovoce.backends.base import Backend, GrowingWindow, RunningRows
from sottovoce.types import EncoderOutput

BEFORE, NOW = 1500, 1600
"""Log-mel frames (10 ms) of a window before an update and at it."""
PREFIX = tuple(range(1000, 1088))
REPEATS = 5


def least_ms(work: Callable[[], object]) -> float:
    """Processor milliseconds, the least of several."""
    spent = []
    for _ in range(REPEATS):
        began_s = time.thread_time()
        work()
        spent.append(time.thread_time() - began_s)
    return 1e3 * min(spent)


def admitted(backend: Backend, encoded: EncoderOutput, n_rows: int) -> RunningRows:
    rows = backend.rows()
    for _ in range(n_rows):
        rows.admit(encoded)
    return rows


def read(backend: Backend, rows: RunningRows, tokens: list[tuple[int, ...]]) -> None:
    rows.step(tokens, [[len(new) - 1] for new in tokens], capture=backend.alignment_heads)


def read_anew(backend: Backend, encoded: EncoderOutput, tokens: list[tuple[int, ...]]) -> None:
    read(backend, admitted(backend, encoded, len(tokens)), tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    backend = load_model(args.model, device="cpu", dtype=args.dtype).backend
    log_mel, mode = torch.randn(backend.dims.n_mels, NOW), backend.encoder_mode
    (first,) = backend.encode_growing([GrowingWindow(log_mel[:, :BEFORE], mode)])
    window = GrowingWindow(log_mel, mode, first.state)
    for n in (1, 2, 4):
        together = [window] * n
        print(f"encode {n}: {least_ms(partial(backend.encode_growing, together)) / n:.0f} ms each")
    for n in (1, 4, 8):
        prefixes = [PREFIX] * n
        spent = least_ms(partial(read_anew, backend, first.encoded, prefixes))
        print(f"prefix of {len(PREFIX)}, {n} in a pass: {spent / n:.0f} ms each")
        rows = admitted(backend, first.encoded, n)
        read(backend, rows, prefixes)
        print(f"step of {n}: {least_ms(partial(read, backend, rows, [(5,)] * n)):.0f} ms in all")
    rows = admitted(backend, first.encoded, 4)
    read(backend, rows, [PREFIX] * 4)
    rows.admit(first.encoded)

    def beside() -> None:
        read(backend, rows, [(5,)] * 4 + [PREFIX])
        rows.cut(4, len(PREFIX))

    print(f"prefix beside the steps of 4: {least_ms(beside):.0f} ms in all")


if __name__ == "__main__":
    main()
