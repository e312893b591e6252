"""What a frame of the CTC search in tensors costs, as utterances and beams grow.

    python -m benchmarks ctc frames --frames 200 1500 --beam-sizes 16 64

Random emissions of 32 labels, no language model. Prints milliseconds of processor time a frame (of the clock
on a GPU), medians of the repeats, as one JSON line for each.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time

import torch

from benchmarks.harness.arguments import benchmark_parser
from sottovoce.decoding.ctc.prefix_search import PrefixSearch

N_LABELS = 32


def frame_ms(beam_size: int, n_frames: int, n_batch: int, device: torch.device, repeats: int) -> float:
    generator = torch.Generator().manual_seed(1)
    emissions = (3 * torch.randn(n_batch, n_frames, N_LABELS, generator=generator)).log_softmax(dim=2)
    emissions, lengths = emissions.to(device), torch.full((n_batch,), n_frames, device=device)
    search = PrefixSearch(N_LABELS, 0, beam_size)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    times = []
    for _ in range(repeats):
        state = search.start(n_batch, device)
        begin = clock()
        search.run(state, emissions, lengths, n_frames)
        state.length.tolist()  # waits for the device
        times.append(clock() - begin)
    return 1000 * statistics.median(times) / n_frames


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--frames", type=int, nargs="+", default=[200, 1500])
    parser.add_argument("--beam-sizes", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    for beam_size, n_frames in itertools.product(options.beam_sizes, options.frames):
        found = frame_ms(beam_size, n_frames, options.batch, device, options.repeats)
        row = {
            "beam_size": beam_size,
            "frames": n_frames,
            "batch": options.batch,
            "frame_ms": round(found, 3),
        }
        print(json.dumps(row), flush=True)
