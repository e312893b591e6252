"""Texts, errors with their intervals, and n-gram models of the CTC benchmarks.

No sentence that is said in a clip is in the text of a language model, nor one of the same words.
"""

from __future__ import annotations

import gzip
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sottovoce.api import Model
from sottovoce.evaluation.scores import ErrorRate, ScoreOptions, count_edits, error_rate

RIGHTS = {"en": "eng", "de": "deu_1996", "es": "spa", "fr": "fra"}
"""Names of files of the Universal Declaration of Human Rights."""
Ngram = tuple[str, ...]
ORDER, DISCOUNT = 3, 0.75


def spelled(text: str, letters: str) -> str:
    """Lower case, and a space for whatever the labels cannot spell."""
    lowered = text.lower().replace("’", "'")
    return " ".join("".join(c if c in letters else " " for c in lowered).split())


def letters_of(model: Model) -> str:
    """The labels that words are made of: letters and the apostrophe."""
    assert model.ctc_head is not None
    single = (label for label in model.ctc_head.labels if len(label) == 1)
    return "".join(label for label in single if label.isalpha() or label == "'")


def rate_of(references: Sequence[str], texts: Sequence[str], *, letters: bool = False) -> ErrorRate:
    """Words wrong (or letters), with their bootstrap 95 % interval."""
    units = list if letters else str.split
    counts = [count_edits(units(item), units(text)) for item, text in zip(references, texts, strict=True)]
    return error_rate(counts, ScoreOptions(n_resamples=2000))


def shown(rate: float, low: float, high: float) -> str:
    return f"{rate:.1%} ({low:.1%} to {high:.1%})"


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
) -> None:
    """Write an interpolated trigram model with absolute discounting as an ARPA file.

    frequent: counts of words elsewhere; they share what the unigrams are discounted by, <unk> as one of the
    rarest.
    """
    counts: list[Counter[Ngram]] = [Counter() for _ in range(ORDER)]
    for text in texts:
        row = ("<s>", *text.split(), "</s>")
        for n in range(1, ORDER + 1):
            counts[n - 1].update(row[i : i + n] for i in range(len(row) - n + 1))
    del counts[0][("<s>",)]
    total = sum(counts[0].values())
    left = DISCOUNT * len(counts[0]) / total
    elsewhere = {(word,): count for word, count in frequent.items()} | {("<unk>",): min(frequent.values())}
    n_elsewhere = sum(elsewhere.values())
    unigrams = {key: (count - DISCOUNT) / total for key, count in counts[0].items()}
    for key, count in elsewhere.items():
        unigrams[key] = unigrams.get(key, 0.0) + left * count / n_elsewhere
    probabilities = [unigrams]
    backoffs: list[dict[Ngram, float]] = []
    for n in range(2, ORDER + 1):
        created, backoff = _interpolated(counts[n - 1], probabilities[-1])
        probabilities.append(created)
        backoffs.append(backoff)
    probabilities[0][("<s>",)] = 1e-9
    _write_arpa(path, probabilities, backoffs)


def _interpolated(
    counts: Counter[Ngram], shorter: dict[Ngram, float]
) -> tuple[dict[Ngram, float], dict[Ngram, float]]:
    """Probabilities of n-grams, and the back-off of their contexts."""
    totals: Counter[Ngram] = Counter()
    kept: defaultdict[Ngram, float] = defaultdict(float)
    for ngram, count in counts.items():
        totals[ngram[:-1]] += count
        if ngram[1:] in shorter:
            kept[ngram[:-1]] += count - DISCOUNT
    backoff = {context: 1 - share / totals[context] for context, share in kept.items()}
    created = {
        ngram: (count - DISCOUNT) / totals[ngram[:-1]] + backoff[ngram[:-1]] * shorter[ngram[1:]]
        for ngram, count in counts.items()
        if ngram[1:] in shorter
    }
    return created, backoff


def _write_arpa(
    path: Path, probabilities: Sequence[dict[Ngram, float]], backoffs: Sequence[dict[Ngram, float]]
) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("\\data\\\n")
        for n, result in enumerate(probabilities, start=1):
            file.write(f"ngram {n}={len(result)}\n")
        for n, result in enumerate(probabilities, start=1):
            file.write(f"\n\\{n}-grams:\n")
            for ngram, probability in result.items():
                backoff = backoffs[n - 1].get(ngram) if n <= len(backoffs) else None
                tail = "" if backoff is None else f"\t{math.log10(backoff):.5f}"
                file.write(f"{math.log10(probability):.5f}\t{' '.join(ngram)}{tail}\n")
        file.write("\n\\end\\\n")
