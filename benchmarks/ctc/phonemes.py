"""A phoneme network with a lexicon of 50,000 words and a bigram: set-up, time and memory of the search.

    python -m benchmarks ctc phonemes --data ../shared/ctc/phonemes --beam 16 100

Data: `dev.npz` (log-probabilities of LibriSpeech clips, labels and texts), `lexicon.txt`, `bigram.arpa.gz`.

Prints processor seconds of every part of the set-up, then, for each beam, the words wrong, the processor
seconds of the first call and the median of the others, and a digest of texts and scores; at the end the
peak memory of the process. Then one JSON line.
"""

from __future__ import annotations

import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from benchmarks.ctc.texts import rate_of
from benchmarks.harness.report import benchmark_parser, show_json
from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.lm.lexicon import Lexicon, read_lexicon
from sottovoce.lm.ngram import NgramModel

Made = TypeVar("Made")
FUSION = CtcFusionOptions(lm_weight=0.6, word_score=0.0)


class Clock:
    """Processor seconds of named parts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, work: Callable[[], Made]) -> Made:
        begin = time.process_time()
        made = work()
        self.seconds[name] = round(time.process_time() - begin, 4)
        print(f"{name:28} {1e3 * self.seconds[name]:9.1f} ms", flush=True)
        return made


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--beam", type=int, nargs="+", default=[16, 100])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data, clock, rows = options.data, Clock(), {}
    saved = np.load(data / "dev.npz")
    meta = json.loads(str(saved["meta"]))
    labels, names = meta["labels"], [name for name in saved.files if name != "meta"]
    emissions = [torch.from_numpy(saved[name]).float() for name in names]
    texts = [meta["texts"][name] for name in names]
    lengths = torch.tensor([len(each) for each in emissions])
    batch = torch.nn.utils.rnn.pad_sequence(emissions, batch_first=True).log_softmax(dim=2)
    spellings = clock.timed("reading the lexicon", lambda: read_lexicon(data / "lexicon.txt", labels))
    separator = labels.index("|")
    lexicon = clock.timed("lexicon tree", lambda: Lexicon(spellings, len(labels), separator=separator))
    ngram = clock.timed("reading the n-gram", lambda: NgramModel.load(data / "bigram.arpa.gz"))
    for beam in options.beam:
        decoder = clock.timed(
            f"decoder, beam {beam}",
            lambda beam=beam: CtcDecoder(
                labels,
                meta["blank"],
                lm=ngram,
                lexicon=lexicon,
                beam_size=beam,
                n_best=4,
                fusion=FUSION,
            ),
        )
        clock.timed(f"first frame, beam {beam}", lambda decoder=decoder: decoder.decode(batch[:1, :1]))
        seconds = []
        for _ in range(options.repeats):
            begin = time.process_time()
            found = decoder.decode(batch, lengths)
            seconds.append(time.process_time() - begin)
        wrong = rate_of(texts, [each[0].text for each in found]).rate or 0.0
        digest = sum(one.score for each in found for one in each)
        rows[beam] = {"seconds": statistics.median(seconds), "wrong": wrong, "digest": digest}
        print(f"beam {beam:4}: {wrong:.2%} wrong, {rows[beam]['seconds']:.3f} s, sum of scores {digest:.3f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MB")
    show_json("ctc phonemes", {"setup": clock.seconds, "beams": rows, "peak_mb": round(peak)})


if __name__ == "__main__":
    main()
