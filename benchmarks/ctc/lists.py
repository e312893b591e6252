"""What a list of five costs under a lexicon of homophones, beside the best alone.

    python -m benchmarks ctc lists

2,000 made spellings of four words each over 16 letters, a made bigram, beam 16, batches of eight utterances
of nine words in 110 made frames. Sides take turns; medians of processor time an utterance, and of the ratio
in a round.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce.ctc import CtcDecoder
from sottovoce.decoding.ctc.search_options import CtcOptions, SearchEngine

LABELS = [*"-abcdefghijklmnop|"]
N_SPELLINGS, N_HOMOPHONES, N_UTTERANCES, N_WORDS, N_FRAMES = 2000, 4, 8, 9, 110


def spellings(chooser: random.Random) -> list[tuple[str, tuple[int, ...]]]:
    spelled = [tuple(chooser.choices(range(1, 16), k=chooser.randint(2, 6))) for _ in range(N_SPELLINGS)]
    return [(f"{i}.{homophone}", each) for i, each in enumerate(spelled) for homophone in range(N_HOMOPHONES)]


def write_bigrams(words: list[str], path: Path, chooser: random.Random) -> None:
    pairs = sorted({(chooser.choice(words), chooser.choice(words)) for _ in range(20_000)})
    unigrams = [f"{-2 - 3 * chooser.random():.3f}\t{word}\t-0.4" for word in words]
    bigrams = [f"{-0.5 - chooser.random():.3f}\t{first} {second}" for first, second in pairs]
    special = ["-5\t<unk>", "-99\t<s>\t-0.5", "-1\t</s>"]
    parts = [
        f"\\data\\\nngram 1={len(words) + 3}\nngram 2={len(pairs)}\n",
        "\\1-grams:\n" + "\n".join([*special, *unigrams]) + "\n",
        "\\2-grams:\n" + "\n".join(bigrams) + "\n",
        "\\end\\\n",
    ]
    path.write_text("\n".join(parts))


def utterances(
    lexicon: list[tuple[str, tuple[int, ...]]], is_open: bool, chooser: random.Random
) -> torch.Tensor:
    """Log-probabilities (B, T, V) of random words, as of a model that is mostly sure."""
    logits = 1.2 * torch.randn(
        N_UTTERANCES, N_FRAMES, len(LABELS), generator=torch.Generator().manual_seed(1)
    )
    separator = [] if is_open else [LABELS.index("|")]
    for row in logits:
        said = [label for _ in range(N_WORDS) for label in (*chooser.choice(lexicon)[1], *separator)]
        row[:, 0] += 4.5
        for place, label in enumerate(said[: N_FRAMES // 3]):
            row[3 * place, label] += 9.5
    return logits.log_softmax(dim=2)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--engine", choices=["compiled", "tensors"], default="compiled")
    given = parser.parse_args()
    torch.set_num_threads(1)
    engine: SearchEngine = given.engine
    show_heads("words end", "the best alone, ms", "a list of five, ms", "ratio")
    found = {}
    for is_open in (False, True):
        chooser = random.Random(0)
        lexicon = spellings(chooser)
        emissions = utterances(lexicon, is_open, chooser)
        labels = [*LABELS[:-1], "q"] if is_open else LABELS
        with tempfile.TemporaryDirectory() as folder:
            write_bigrams([word for word, _ in lexicon], Path(folder) / "words.arpa", chooser)
            decoders = [
                CtcDecoder(
                    labels,
                    lm=Path(folder) / "words.arpa",
                    lexicon=lexicon,
                    options=CtcOptions(n_best=n_best, times=False, engine=engine),
                )
                for n_best in (1, 5)
            ]
        rounds = []
        for _ in range(given.repeats + 1):  # the first compiles
            spent = []
            for decoder in decoders:
                begin = time.process_time()
                decoder.decode(emissions)
                spent.append(1000 * (time.process_time() - begin) / N_UTTERANCES)
            rounds.append((*spent, spent[1] / spent[0]))
        medians = [statistics.median(each) for each in zip(*rounds[1:], strict=True)]
        name = "anywhere" if is_open else "at a separator"
        show_row(name, *(f"{value:.2f}" for value in medians))
        found[name] = medians
    show_json("lists", found)
