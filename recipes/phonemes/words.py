"""The network of the package `hama`, with a lexicon and a bigram of English: pronunciations of `hama`, counts
of `wordsegment`.

The lexicon has to be what the network was taught: `hama` learned the output of its own pronunciation model
("of" is `ɔ f`), so that this model spells the words.
"""

from __future__ import annotations

import importlib
import math
import re
import shutil
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path

KEPT = 0.9
"""Share of a bigram's relative frequency that it keeps; the rest is for pairs without a count."""
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")
_NO_WORDS = frozenset("bcdefghjklmnpqrstuvwxyz")
"""Single letters that Google's counts are full of."""
_SENTENCE_WORDS = 20
"""Words of a sentence, for the probability of its end, which the counts do not have."""


def copy_network(folder: Path) -> None:
    """Copy the network, its description and its labels. Raises: ImportError without `hama`."""
    package = importlib.import_module("hama")
    names = {"<wb>": "|", " ": "<space>"}  # a space of written Korean, which is no end of a word
    labels = [names.get(label, label) for label in package.ASRModel().decoder_tokens]
    (folder / "labels.txt").write_text("\n".join(labels) + "\n", encoding="utf-8")
    network = Path(str(package.__file__)).with_name("assets") / "asr_waveform_fp16.onnx"
    for file in (network, Path(__file__).with_name("network.toml")):
        shutil.copy(file, folder)


def frequent_words(n_words: int, also: Collection[str] = ()) -> dict[str, int]:
    """Return the counts of the most frequent words, and of others that are wanted."""
    counts: dict[str, int] = {}
    wanted = set(also)
    for line in _lines("unigrams.txt"):
        word, _, count = line.partition("\t")
        if _WORD.fullmatch(word) and word not in _NO_WORDS and (len(counts) < n_words or word in wanted):
            counts[word] = int(count)
    return counts


def write_lexicon(words: Collection[str], path: Path) -> None:
    """Write a line `word phoneme phoneme …` for each word. Raises: ImportError without `hama`."""
    model = importlib.import_module("hama").G2PModel()
    lines = []
    for word in words:
        phonemes = [one.phoneme for one in model.predict(word).alignments]
        if phonemes:
            lines.append(f"{word} {' '.join(phonemes)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_bigram(counts: Mapping[str, int], path: Path) -> None:
    """Write an ARPA file of the words: relative frequencies, less a tenth of each for other pairs.

    Source: the counts of Google's Web corpus in the package `wordsegment` (MIT).
    """
    total = sum(counts.values())
    unigrams = {word: count / total * (1 - 1 / _SENTENCE_WORDS) for word, count in counts.items()}
    unigrams["</s>"] = 1 / _SENTENCE_WORDS
    pairs: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for line in _lines("bigrams.txt"):
        pair, _, count = line.partition("\t")
        first, _, second = pair.partition(" ")
        if (first in counts or first == "<s>") and second in counts:
            pairs[first][second] = int(count)
    bigrams: dict[tuple[str, str], float] = {}
    backoffs: dict[str, float] = {}
    for first, followers in pairs.items():
        base = max(counts.get(first, 0), sum(followers.values()))
        bigrams |= {(first, second): KEPT * n / base for second, n in followers.items()}
        left = 1 - sum(bigrams[first, second] for second in followers)
        backoffs[first] = left / (1 - sum(unigrams[second] for second in followers))
    lines = ["\\data\\", f"ngram 1={len(unigrams) + 2}", f"ngram 2={len(bigrams)}", "", "\\1-grams:"]
    lines += ["-7\t<unk>", _entry(1e-99, "<s>", backoffs.get("<s>"))]
    lines += [_entry(probability, word, backoffs.get(word)) for word, probability in unigrams.items()]
    lines += ["", "\\2-grams:"]
    lines += [_entry(probability, " ".join(pair)) for pair, probability in bigrams.items()]
    path.write_text("\n".join([*lines, "", "\\end\\", ""]), encoding="utf-8")


def _entry(probability: float, words: str, backoff: float | None = None) -> str:
    tail = "" if backoff is None else f"\t{math.log10(backoff):.4f}"
    return f"{math.log10(probability):.4f}\t{words}{tail}"


def _lines(name: str) -> list[str]:
    package = importlib.import_module("wordsegment")
    return Path(str(package.__file__)).with_name(name).read_text(encoding="utf-8").splitlines()
