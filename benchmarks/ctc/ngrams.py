"""N-gram models at their size: building, opening and look-ups, beside KenLM.

    python -m benchmarks ctc ngrams --tokens 4e5
    python -m benchmarks ctc ngrams --tokens 4e7 --kenlm kenlm/build/bin --folder /tmp/ngrams --steps ''

Makes a text: phrases of one to six words, drawn by Zipf's law, of words drawn by Zipf's law, in sentences
of 20 words on average. Estimates a 5-gram of it with `sottovoce lm estimate`, writes it as ARPA, and
converts that to tries of 8 and 32 bits; with --kenlm, the folder of KenLM's programs, their `lmplz` and
`build_binary` do the same. Every step is a process of its own: processor seconds, and the most memory it
held, which counts pages of mapped files. Look-ups are of sentences of the same law that were not in the
text, one after another as a search does: seconds of one thread, after a first pass that fills the cache.
The folder holds about 40 bytes per n-gram at the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.harness.report import benchmark_parser, show_json
from sottovoce.lm.ngram import NgramModel

ORDER = 5
LETTERS = np.array(list("etaoinshrdlcumwfgypbvkjxqz"))
LN10 = 2.302585092994046


def zipf(random: np.random.Generator, n: int, n_kinds: int) -> npt.NDArray[np.int64]:
    """Draw numbers below n_kinds, each in proportion to 1 / (number + 1)."""
    return (np.exp(random.random(n) * np.log(n_kinds)) - 1).astype(np.int64)


class Text:
    """Sentences of made words."""

    def __init__(self, n_words: int, n_phrases: int) -> None:
        random = np.random.default_rng(0)
        sizes = random.geometric(0.45, n_phrases).clip(max=6)
        self.starts = np.concatenate(([0], sizes.cumsum()))
        self.phrases = zipf(random, int(self.starts[-1]), n_words)
        self.words = np.array([spelled(word) for word in range(n_words)])

    def sentences(self, n_tokens: int, seed: int) -> Iterator[str]:
        random = np.random.default_rng(seed)
        n_phrases = len(self.starts) - 1
        while n_tokens > 0:
            drawn = zipf(random, 2**18, n_phrases)
            first, sizes = self.starts[drawn], np.diff(self.starts)[drawn]
            within = np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)
            tokens = self.phrases[np.repeat(first, sizes) + within][:n_tokens]
            n_tokens -= len(tokens)
            ends = np.flatnonzero(random.random(len(tokens)) < 1 / 20)
            yield from (" ".join(part) for part in np.split(self.words[tokens], ends) if len(part))


def spelled(number: int) -> str:
    letters = []
    number += 1
    while number:
        number, letter = divmod(number, len(LETTERS))
        letters.append(LETTERS[letter])
    return "".join(letters)


def measured(command: Sequence[str | Path], output: Path, stdin: Path | None = None) -> dict[str, float]:
    """Run a command; return its processor seconds, memory and the size of its output."""
    with open(stdin or os.devnull, "rb") as given, tempfile.TemporaryFile() as said:
        process = subprocess.Popen([str(each) for each in command], stdin=given, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            said.seek(0)
            raise SystemExit(f"{command}: {said.read().decode()}")
    seconds = usage.ru_utime + usage.ru_stime
    return {"cpu_s": seconds, "memory_mb": usage.ru_maxrss / 1e3, "mb": output.stat().st_size / 1e6}


def resident_mb() -> dict[str, float]:
    fields = dict(
        line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    return {name: int(fields[f"Rss{name.title()}"].split()[0]) / 1e3 for name in ("anon", "file")}


def looked_up(path: Path, text: Path) -> tuple[dict[str, float], torch.Tensor]:
    """Open a model and score the sentences of a text; also return log10 of each sentence's words."""
    before, begin = resident_mb(), time.process_time()
    model = NgramModel.load(path)
    opened = time.process_time() - begin
    begin = time.process_time()
    ids = model.vocabulary
    indexed = time.process_time() - begin
    lines = [
        [ids.get(word, model.unknown) for word in line.split()] for line in text.read_text().splitlines()
    ]
    by_length = sorted(range(len(lines)), key=lambda line: -len(lines[line]))
    columns = [
        torch.tensor([lines[line][place] for line in by_length if place < len(lines[line])])
        for place in range(len(lines[by_length[0]]))
    ]
    rates = []
    for _ in range(3):
        total = torch.zeros(len(lines))
        states, begin = model.start(len(lines)), time.process_time()
        for tokens in columns:
            scores, states = model.trie.follow(states[: len(tokens)], tokens)
            total[by_length[: len(tokens)]] += scores
        rates.append(sum(map(len, lines)) / (time.process_time() - begin))
    after = resident_mb()
    memory = {f"{name}_mb": after[name] - before[name] for name in after}
    times = {"open_s": opened, "words_s": indexed, "first_per_s": rates[0], "per_s": max(rates[1:])}
    return times | memory, total / LN10


def main(arguments: Sequence[str] | None = None) -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--tokens", type=float, default=4e5, help="words of the text")
    parser.add_argument("--words", type=int, default=400_000, help="the vocabulary")
    parser.add_argument("--kenlm", type=Path, metavar="DIR", help="KenLM's programs")
    parser.add_argument("--steps", default="arpa", help="'' leaves out ARPA files and the exact trie")
    parser.add_argument("--folder", type=Path, help="for the files, which stay; default: temporary")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        run(options, folder)


def run(options: argparse.Namespace, folder: Path) -> None:
    text, held_out = folder / "text.txt", folder / "held_out.txt"
    source = Text(options.words, int(options.tokens) // 8)
    for path, n_tokens, seed in ((text, int(options.tokens), 1), (held_out, 100_000, 2)):
        with path.open("w") as file:
            file.writelines(f"{sentence}\n" for sentence in source.sentences(n_tokens, seed))
    del source
    lm = (sys.executable, "-m", "sottovoce", "lm")
    found: dict[str, dict[str, float]] = {}

    def step(name: str, command: Sequence[str | Path], output: Path) -> None:
        found[name] = measured(command, output)
        print(name, found[name], flush=True)

    small, exact, arpa = (folder / name for name in ("8.trie", "32.trie", "lm.arpa.gz"))
    step("estimate", (*lm, "estimate", text, "--order", str(ORDER), "-o", small), small)
    found["look up 8"], rounded = looked_up(small, held_out)
    found["look up 8"]["n_ngrams"] = NgramModel.load(small).trie.n_ngrams
    n_words = torch.tensor([len(line.split()) for line in held_out.read_text().splitlines()])
    scores = rounded
    if "arpa" in options.steps:
        step("estimate ARPA", (*lm, "estimate", text, "--order", str(ORDER), "-o", arpa), arpa)
        step("build 8", (*lm, "build", arpa, "-o", small), small)
        step("build 32", (*lm, "build", arpa, "-o", exact, "--bits", "32"), exact)
        found["look up 32"], scores = looked_up(exact, held_out)
    if options.kenlm:
        more, scores = of_kenlm(options.kenlm, folder, held_out, scores, n_words)
        found |= more
    show_error("8 bits", rounded, scores, n_words)
    for name, figures in found.items():
        print(f"{name:24}", "  ".join(f"{key} {value:,.3f}" for key, value in figures.items()))
    show_json("ctc ngrams", found)


def of_kenlm(
    programs: Path, folder: Path, held_out: Path, ours: torch.Tensor, n_words: torch.Tensor
) -> tuple[dict[str, dict[str, float]], torch.Tensor]:
    """Do the same with KenLM; return the figures and the exact scores."""
    import kenlm

    arpa, ids, found, exact = folder / "kenlm.arpa.gz", folder / "ids", {}, ours
    lmplz = f"{programs}/lmplz -o {ORDER} -S 2G -T {folder} --text {folder}/text.txt | gzip -1 > {arpa}"
    found["kenlm estimate"] = measured(("sh", "-c", lmplz), arpa)
    for name, flags in (("exact", ()), ("8 bits", ("-q", "8", "-b", "8", "-a", "64"))):
        binary = folder / "kenlm.bin"
        command = (programs / "build_binary", "-S", "2G", "-T", folder, *flags, "trie", arpa, binary)
        found[f"kenlm build {name}"] = measured(command, binary)
        print(name, found, flush=True)
        benchmark = (programs / "kenlm_benchmark", "-t", "1", "-m", binary)
        with open(held_out, "rb") as given, ids.open("wb") as to:
            subprocess.run([*benchmark, "-v"], stdin=given, stdout=to, check=True)
        for _ in range(2):
            with ids.open("rb") as given:
                said = subprocess.run(
                    [*benchmark, "-q"], stdin=given, capture_output=True, text=True, check=True
                )
            print(said.stdout, said.stderr, flush=True)
        model = kenlm.Model(str(binary))
        scores = torch.tensor([model.score(line, eos=False) for line in held_out.read_text().splitlines()])
        exact = scores if name == "exact" else exact
        show_error(f"kenlm {name}", scores, ours if name == "exact" else exact, n_words)
    return found, exact


def show_error(name: str, scores: torch.Tensor, exact: torch.Tensor, n_words: torch.Tensor) -> None:
    errors = ((scores - exact) / n_words).abs()
    bias = float((scores - exact).sum() / n_words.sum())
    print(f"{name}: log10 a word is off by {errors.mean():.6f}, at most {errors.max():.6f}, bias {bias:.6f}")


if __name__ == "__main__":
    main()
