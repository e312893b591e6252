"""What lists of hotwords cost: to build, and in decoding, for a CTC model of letters and for Whisper.

    python -m benchmarks ctc phrases --counts 0 100 10000

Made phrases of one or two words, random emissions: eight utterances of 300 frames, beam 16. Medians of
processor time over the repeats; a step of Whisper's is one of five hypotheses, over all of its tokens.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce.ctc import CtcDecoder
from sottovoce.lm.text_fusion import text_fusion
from sottovoce.text.tokenizer import Tokenizer

LABELS = [*"-|'abcdefghijklmnopqrstuvwxyz"]
N_TOKENS, N_STEPS, N_HYPOTHESES = 51865, 20, 5


def made_phrases(n: int) -> list[str]:
    chooser = random.Random(1)
    words = ["".join(chooser.choices(LABELS[3:], k=chooser.randint(5, 10))) for _ in range(2 * n)]
    return [" ".join(words[2 * i : 2 * i + chooser.randint(1, 2)]) for i in range(n)]


def median_ms(work: Callable[[], object], repeats: int) -> float:
    work()
    spent = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        spent.append(time.process_time() - begin)
    return round(1000 * statistics.median(spent), 2)


def measure(n: int, emissions: torch.Tensor, tokenizer: Tokenizer, repeats: int) -> dict[str, float]:
    phrases = made_phrases(n)
    decoder = CtcDecoder(LABELS, hotwords=phrases or None)
    found = {
        "ctc_build_ms": median_ms(lambda: CtcDecoder(LABELS, hotwords=phrases or None), repeats),
        "ctc_decode_ms": median_ms(lambda: decoder.decode(emissions), 5 * repeats),
    }
    if not phrases:
        return found
    fusion = text_fusion(tokenizer, hotwords=phrases)
    states = fusion.start(N_HYPOTHESES)
    found["whisper_build_ms"] = median_ms(lambda: text_fusion(tokenizer, hotwords=phrases), repeats)
    found["whisper_step_ms"] = median_ms(lambda: fusion.score(states), N_STEPS)
    return found


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[0, 100, 10_000])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    emissions = (3 * torch.randn(8, 300, len(LABELS), generator=generator)).log_softmax(dim=2)
    tokenizer = Tokenizer.for_model(N_TOKENS)
    names = ("ctc_build_ms", "ctc_decode_ms", "whisper_build_ms", "whisper_step_ms")
    show_heads("phrases", *names)
    rows = {n: measure(n, emissions, tokenizer, given.repeats) for n in given.counts}
    for n, found in rows.items():
        show_row(n, *(found.get(name, "") for name in names))
    show_json("phrases", {str(n): found for n, found in rows.items()})
