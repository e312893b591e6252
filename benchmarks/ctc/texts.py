"""Texts, clips, errors with their intervals, and n-gram models of the CTC benchmarks.

No sentence that is said in a clip is in the text of a language model, nor one of the same words.
"""

from __future__ import annotations

import gzip
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sottovoce.api import Model
from sottovoce.evaluation.wer import count_edits

RIGHTS = {"en": "eng", "de": "deu_1996", "es": "spa", "fr": "fra"}
"""Names of files of the Universal Declaration of Human Rights."""
Ngram = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Clip:
    """A recording, its text in the labels' letters, and its language."""

    path: Path
    text: str
    language: str


def spelled(text: str, letters: str) -> str:
    """Lower case, and a space for whatever the labels cannot spell."""
    lowered = text.lower().replace("’", "'")
    return " ".join("".join(c if c in letters else " " for c in lowered).split())


def letters_of(model: Model) -> str:
    """The labels that words are made of: letters and the apostrophe."""
    assert model.ctc_head is not None
    single = (label for label in model.ctc_head.labels if len(label) == 1)
    return "".join(label for label in single if label.isalpha() or label == "'")


def errors_of(clips: Sequence[Clip], texts: Sequence[str]) -> np.ndarray:
    """Word errors and words of every clip: (n, 2)."""
    counts = [count_edits(c.text.split(), text.split()) for c, text in zip(clips, texts, strict=True)]
    return np.array([[count.n_errors, count.n_reference] for count in counts], dtype=np.float64)


def word_error_rate(clips: Sequence[Clip], texts: Sequence[str]) -> float:
    errors, words = errors_of(clips, texts).sum(axis=0)
    return float(errors / max(words, 1))


def interval(values: np.ndarray, words: np.ndarray, n_draws: int = 2000) -> tuple[float, float]:
    """Bootstrap 95 % interval of sum(values) / sum(words) over clips."""
    chosen = np.random.default_rng(0).integers(len(values), size=(n_draws, len(values)))
    rates = values[chosen].sum(axis=1) / words[chosen].sum(axis=1)
    low, high = np.quantile(rates, (0.025, 0.975))
    return float(low), float(high)


def shown(limits: tuple[float, float]) -> str:
    return f"{limits[0]:.1%} to {limits[1]:.1%}"


def holds_any(text: str, spoken: Iterable[str]) -> bool:
    """One of the texts is this one, or four words and more of it."""
    return any(each == text or (each.count(" ") >= 3 and f" {each} " in f" {text} ") for each in spoken)


def passages(data: Path, language: str, letters: str) -> list[str]:
    """All lines without digits, the Declaration of Human Rights too; of the damaged Spanish lines the runs of
    three and more frequent words."""
    paths = (
        data / "text" / "sentences" / f"{language}.txt",
        data / "text" / "udhr" / f"{RIGHTS[language]}.txt",
    )
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    texts = [spelled(line, letters) for line in lines if not any(c.isdigit() for c in line)]
    if language != "es":
        return texts
    known = frequencies(data, language, letters, 20_000).keys()
    runs = (itertools.groupby(text.split(), known.__contains__) for text in texts)
    whole = (list(words) for groups in runs for is_known, words in groups if is_known)
    return [" ".join(words) for words in whole if len(words) >= 3]


def frequencies(data: Path, language: str, letters: str, n: int) -> dict[str, int]:
    """The most used words of a language that the labels can spell, and how often each was counted."""
    path = data / "text" / "freqwords" / f"{language}_50k_top20k.txt.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [line.split() for line in lines if line.strip()]
    counts = {word: int(count) for word, count in rows if spelled(word, letters) == word}
    return dict(itertools.islice(counts.items(), n))


def write_ngrams(
    texts: Iterable[str],
    path: Path,
    *,
    frequent: Mapping[str, int],
    discount: float = 0.75,
    order: int = 3,
    least: int = 1,
) -> None:
    """Write an interpolated n-gram model with absolute discounting as an ARPA file.

    frequent: counts of words elsewhere; they share what the unigrams are discounted by, <unk> as one of the
    rarest. least: n-grams above bigrams that were counted less often are left out.
    """
    counts: list[Counter[Ngram]] = [Counter() for _ in range(order)]
    for text in texts:
        row = ("<s>", *text.split(), "</s>")
        for n in range(1, order + 1):
            counts[n - 1].update(row[i : i + n] for i in range(len(row) - n + 1))
    del counts[0][("<s>",)]
    total = sum(counts[0].values())
    left = discount * len(counts[0]) / total
    elsewhere = {(word,): count for word, count in frequent.items()} | {("<unk>",): min(frequent.values())}
    n_elsewhere = sum(elsewhere.values())
    unigrams = {key: (count - discount) / total for key, count in counts[0].items()}
    for key, count in elsewhere.items():
        unigrams[key] = unigrams.get(key, 0.0) + left * count / n_elsewhere
    probabilities = [unigrams]
    backoffs: list[dict[Ngram, float]] = []
    for n in range(2, order + 1):
        made, backoff = _interpolated(counts[n - 1], probabilities[-1], discount, least=least if n > 2 else 1)
        probabilities.append(made)
        backoffs.append(backoff)
    probabilities[0][("<s>",)] = 1e-9
    _write_arpa(path, probabilities, backoffs)


def _interpolated(
    counts: Counter[Ngram], shorter: dict[Ngram, float], discount: float, *, least: int
) -> tuple[dict[Ngram, float], dict[Ngram, float]]:
    """Probabilities of n-grams, and the back-off of their contexts.

    What rare n-grams would have had goes to the back-off, and contexts without any left have none.
    """
    totals: Counter[Ngram] = Counter()
    kept: defaultdict[Ngram, float] = defaultdict(float)
    for ngram, count in counts.items():
        totals[ngram[:-1]] += count
        if count >= least and ngram[1:] in shorter:
            kept[ngram[:-1]] += count - discount
    backoff = {context: 1 - share / totals[context] for context, share in kept.items()}
    made = {
        ngram: (count - discount) / totals[ngram[:-1]] + backoff[ngram[:-1]] * shorter[ngram[1:]]
        for ngram, count in counts.items()
        if count >= least and ngram[1:] in shorter
    }
    return made, backoff


def _write_arpa(
    path: Path, probabilities: Sequence[dict[Ngram, float]], backoffs: Sequence[dict[Ngram, float]]
) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("\\data\\\n")
        for n, found in enumerate(probabilities, start=1):
            file.write(f"ngram {n}={len(found)}\n")
        for n, found in enumerate(probabilities, start=1):
            file.write(f"\n\\{n}-grams:\n")
            for ngram, probability in found.items():
                backoff = backoffs[n - 1].get(ngram) if n <= len(backoffs) else None
                tail = "" if backoff is None else f"\t{math.log10(backoff):.5f}"
                file.write(f"{math.log10(probability):.5f}\t{' '.join(ngram)}{tail}\n")
        file.write("\n\\end\\\n")
