"""How long an n-gram model takes to load: an ARPA file parsed, mapped from the cache, and by KenLM.

    python -m benchmarks ctc loading ../shared/ctc/flashlight-lm.arpa words.arpa
    python -m benchmarks ctc loading --made 1000000      # an ARPA file of so many random n-grams

Sides take turns; medians of processor time over the repeats, and of the ratios to KenLM in the same round.
The decoder is what a user waits for: `CtcDecoder` with the file, its words spelled in letters.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import kenlm
import torch

from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce.ctc import CtcDecoder
from sottovoce.lm.arpa import read_arpa
from sottovoce.lm.ngram import NgramModel

LABELS = [*"-|'abcdefghijklmnopqrstuvwxyz"]
N_MADE_WORDS = 40_000


def made_arpa(n_ngrams: int, path: Path) -> Path:
    """Write random trigrams of 40 000 words, a third of them bigrams, as an ARPA file.

    Of every trigram the last two words are a bigram, as KenLM wants it.
    """
    chooser = random.Random(1)
    words = sorted({"".join(chooser.choices(LABELS[3:], k=8)) for _ in range(N_MADE_WORDS)})
    after = {word: chooser.sample(words, max(1, n_ngrams // (3 * len(words)))) for word in words}
    pairs = sorted((first, second) for first, seconds in after.items() for second in seconds)
    begun = (chooser.choice(pairs) for _ in range(n_ngrams - len(pairs)))
    triples = {(*pair, chooser.choice(after[pair[1]])) for pair in begun}
    unigrams = ["<unk>", "<s>", "</s>", *words]
    orders = [[(word,) for word in unigrams], pairs, sorted(triples)]
    with path.open("w") as file:
        file.write("\\data\\\n" + "".join(f"ngram {n}={len(rows)}\n" for n, rows in enumerate(orders, 1)))
        for n, rows in enumerate(orders, 1):
            backoff = "" if n == 3 else "\t-0.1"
            lines = (f"{-chooser.random():.4f}\t{' '.join(row)}{backoff}" for row in rows)
            file.write(f"\n\\{n}-grams:\n" + "\n".join(lines) + "\n")
        file.write("\n\\end\\\n")
    return path


def spent(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure(path: Path, repeats: int) -> dict[str, object]:
    quiet = kenlm.Config()
    quiet.show_progress = False
    sides: dict[str, Callable[[], object]] = {
        "kenlm": lambda: kenlm.Model(str(path), quiet),
        "parsed": lambda: NgramModel.from_file(read_arpa(path)),
        "mapped": lambda: NgramModel.from_arpa(path),
        "decoder": lambda: CtcDecoder(LABELS, 0, lm=path),
    }
    model = NgramModel.from_arpa(path)  # from here on it is in the cache
    rounds = [{name: spent(work) for name, work in sides.items()} for _ in range(repeats)]
    medians = {name: statistics.median(row[name] for row in rounds) for name in sides}
    ratios = {name: statistics.median(row[name] / row["kenlm"] for row in rounds) for name in sides}
    shown = [f"{1000 * medians[name]:.0f} ms ({ratios[name]:.2f})" for name in sides]
    n_ngrams = sum(len(order.words) for order in read_arpa(path).orders)
    show_row(path.name, str(len(model.vocabulary)), str(n_ngrams), *shown)
    return {"file": path.name, "ngrams": n_ngrams, "seconds": medians, "ratios": ratios}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("arpa", type=Path, nargs="*")
    parser.add_argument("--made", type=int, default=0, help="n-grams of a file that is made here")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SOTTOVOCE_CACHE"] = str(Path(folder) / "cache")
        files = [*given.arpa, *([made_arpa(given.made, Path(folder) / "made.arpa")] if given.made else [])]
        show_heads("file", "words", "n-grams", "KenLM", "parsed", "mapped", "decoder")
        show_json("loading", {"files": [measure(path, given.repeats) for path in files]})
