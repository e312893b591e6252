"""What a chunk of a CTC stream costs as the stream goes on: process time, memory, and what is held.

    python -m benchmarks ctc streams ../shared/ctc --minutes 60

Made emissions (29 letters, see `benchmarks/ctc/emissions.py`) in chunks of half a second, through the search
alone, through a lexicon with a 3-gram, and through these beside a neural model that answers at once: what is
measured there is the search's own work. Every row is the mean of the chunks since the row before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.ctc.emissions import made_emissions, vocabulary, words_of_arpa
from benchmarks.harness.report import benchmark_parser, resident_bytes
from sottovoce.ctc import CtcDecoder
from sottovoce.lm.neural import History
from sottovoce.types import FRAMES_PER_SECOND

CHUNK_FRAMES = 25
ARPA = "flashlight-lm.arpa"
N_WORDS = 20_000


class InstantWords:
    """Stands where a neural model would, and takes no time."""

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> dict[tuple[History, str], float]:
        return {pair: -6.0 - len(pair[1]) % 3 for pair in pairs}

    def score_ends(self, histories: Sequence[History]) -> dict[History, float]:
        return dict.fromkeys(histories, -1.0)


def _marks(minutes: float) -> list[int]:
    last = int(minutes * 60 * FRAMES_PER_SECOND)
    return [n for n in (1_000, 10_000, 60_000, 120_000, 180_000) if n < last] + [last]


def _run(kind: str, decoder: CtcDecoder, emissions: torch.Tensor, marks: list[int]) -> dict[str, object]:
    state, n_chunks, spent, longest = decoder.start(), 0, 0.0, 0
    rows: list[dict[str, object]] = []
    warm = decoder.start()  # compiles
    for part in torch.split(emissions[:1000], CHUNK_FRAMES):
        decoder.decode_chunk(warm, part)
    decoder.finish(warm)
    told = 0
    for begin in range(0, marks[-1], CHUNK_FRAMES):
        part = emissions[begin : begin + CHUNK_FRAMES]
        started = time.process_time()
        decoder.decode_chunk(state, part)
        told += sum(len(event.words) for event in decoder.committed(state))
        spent += time.process_time() - started
        n_chunks += 1
        longest = max(longest, sum(chunk.shape[1] for chunk, _ in state.emissions))
        if begin + CHUNK_FRAMES >= marks[len(rows)]:
            row: dict[str, object] = {
                "frames": marks[len(rows)],
                "ms_a_chunk": round(1000 * spent / n_chunks, 3),
                "memory_mb": round(resident_bytes() / 2**20),
                "most_frames_held": longest,
                "words_told": told,
            }
            print(kind, row, flush=True)
            rows.append(row)
            n_chunks, spent, longest = 0, 0.0, 0
    started = time.process_time()
    decoder.finish(state)
    return {"kind": kind, "rows": rows, "finish_s": round(time.process_time() - started, 3)}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("ctc", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    words = words_of_arpa(given.ctc / ARPA)[:N_WORDS]
    known = vocabulary(29, words)
    marks = _marks(given.minutes)
    # A few minutes over and over: the search does not know.
    some = made_emissions(known, 30, 500, "doubtful").flatten(0, 1)
    emissions = some.repeat(-(-marks[-1] // len(some)), 1)[: marks[-1]]
    lexicon = list(known.words.items())
    decoders = {
        "search": CtcDecoder(known.labels, 0),
        "lexicon and 3-gram": CtcDecoder(known.labels, 0, lm=given.ctc / ARPA, lexicon=lexicon),
        "neural": CtcDecoder(known.labels, 0, lm=given.ctc / ARPA, lexicon=lexicon, neural_lm=InstantWords()),
    }
    for kind, decoder in decoders.items():
        print(json.dumps(_run(kind, decoder, emissions, marks)))
