"""Estimation of n-gram models from text or counts: interpolated modified Kneser-Ney smoothing.

Chen and Goodman 1998, as in KenLM's `lmplz` (Heafield et al. 2013): discounts for counts of 1, 2, and 3 or
more per order (equation 26); n-grams of lower orders are counted by the words before them, unless they begin
with <s>; unigrams are interpolated with a uniform distribution that includes <unk>.
"""

from __future__ import annotations

import gzip
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from sottovoce.errors import LanguageModelError, OptionError, cause_of
from sottovoce.lm.arpa import BLANKS, Ngrams, NgramTable, Report, SmallInts, ignore, scratch, tell_memory
from sottovoce.lm.base import Ints
from sottovoce.text.files import text_lines

SPECIAL = ("<unk>", "<s>", "</s>")
WORD_BYTES, COUNT_BYTES = 125, 120
"""Memory of a word and of a count, as measured with 5-grams."""
LONGEST = 10
"""Words of the longest n-grams."""
_UNKNOWN, _BEGIN, _END = range(3)
FALLBACK = (0.5, 1.0, 1.5)
"""Discounts of `lmplz --discount_fallback`."""
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Counts:
    """The n-grams of one order and their counts (n,).

    keys: place of the first order - 1 words * n_words + last word, ascending.
    """

    keys: Ints
    counts: Ints | SmallInts


def count_text(
    lines: Iterable[tuple[Path, int, str]], order: int, report: Report = ignore
) -> tuple[list[str], list[Counts]]:
    """Count the n-grams of `numbered_lines`; return the words and the counts of orders 1, 2, ….

    Raises:
        LanguageModelError: no text, or one with <s>, </s> or <unk>.
    """
    ids = {word: place for place, word in enumerate(SPECIAL)}
    tokens, specials = array("i"), set(SPECIAL)
    for path, number, line in lines:
        words = line.strip(BLANKS).replace("\t", " ").split(" ")
        if not specials.isdisjoint(words):
            raise LanguageModelError(f"{path}, line {number}: expected a text without {', '.join(SPECIAL)}")
        tokens.append(_BEGIN)
        tokens.extend([ids.setdefault(word, len(ids)) for word in words if word])
        tokens.append(_END)
    if len(ids) == len(SPECIAL):
        raise LanguageModelError("expected text with words, got none")
    tell_memory(len(tokens), "words", WORD_BYTES)
    sequence = np.frombuffer(tokens, np.int32).astype(np.int64)
    ends = np.flatnonzero(sequence == _END)
    left = np.repeat(ends, np.diff(ends, prepend=-1)) - np.arange(len(sequence))  # words after each
    orders = [Counts(np.arange(len(ids)), np.bincount(sequence, minlength=len(ids)))]
    places = sequence.copy()
    for length in range(2, order + 1):
        starts = np.flatnonzero(left >= length - 1)
        keys = places[starts] * len(ids) + sequence[starts + length - 1]
        unique, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        places[starts] = inverse
        orders.append(Counts(unique, counts.astype(np.int32)))
        report("counting", length, order)
    return list(ids), orders


def read_counts(paths: Sequence[Path], order: int | None = None) -> tuple[list[str], list[Counts]]:
    """Read lines `w1 w2 … wn<TAB>count` (SRILM's `ngram-count -write`, Google's Web 1T) of files, gzipped if
    their names end in .gz; return the words and the counts of orders 1, 2, …, order.

    Counts of equal n-grams are added. Shorter n-grams may be missing where they begin or end longer ones.
    order: None for the longest n-gram's. `<S>`, `</S>` and `<UNK>` count as `<s>`, `</s>` and `<unk>`.

    Raises:
        LanguageModelError: a file that cannot be read, another line, or no n-grams.
        OptionError: an order above that of the n-grams.
    """
    ids = {word: place for place, word in enumerate(SPECIAL)}
    ids |= {word.upper(): place for word, place in ids.items()}
    tokens, numbers = ([array(code) for _ in range(LONGEST)] for code in "iq")
    for path, number, line in numbered_lines(paths):
        ngram, _, count = line.strip(BLANKS).partition("\t")
        words = [ids.setdefault(word, len(ids) - len(SPECIAL)) for word in ngram.split(" ") if word]
        if not ngram:
            continue
        if not (count.isascii() and count.isdigit() and 0 < int(count) < 2**63):
            got = f"{count!r} after {ngram!r}"
            raise LanguageModelError(f"{path}, line {number}: expected a count above 0, got {got}")
        if len(words) > LONGEST or _BEGIN in words[1:] or _END in words[:-1]:
            expected = f"up to {LONGEST} words, <s> first and </s> last"
            raise LanguageModelError(f"{path}, line {number}: expected {expected}, got {ngram!r}")
        tokens[len(words) - 1].extend(words)
        numbers[len(words) - 1].append(int(count))
    longest = max((length for length, each in enumerate(numbers, start=1) if each), default=0)
    if not longest:
        raise LanguageModelError("expected lines of words, a tab and a count, got none")
    if order is not None and order > longest:
        raise OptionError(f"order: expected at most the {longest} words of the longest n-grams, got {order}")
    tell_memory(sum(map(len, numbers)), "n-grams", COUNT_BYTES)
    vocabulary = [*SPECIAL, *list(ids)[2 * len(SPECIAL) :]]
    return vocabulary, _levels(tokens[:longest], numbers[:longest], len(vocabulary))[:order]


def _levels(tokens: Sequence[array[int]], numbers: Sequence[array[int]], n_words: int) -> list[Counts]:
    sums: list[tuple[SmallInts, Ints]] = []
    for order in range(len(tokens), 0, -1):
        rows = np.frombuffer(tokens[order - 1], np.int32).reshape(-1, order)
        parts = [_grouped(rows, np.frombuffer(numbers[order - 1], np.int64), np.add)]
        for inner in (slice(None, -1), slice(1, None)) if sums else ():
            parts.append(_grouped(sums[-1][0][:, inner], sums[-1][1], np.add))
        rows, counts = (np.concatenate(each) for each in zip(*parts, strict=True))
        sums.append(_grouped(rows, counts, np.maximum))
    rows, counts = sums.pop()
    unigrams = np.zeros(n_words, np.int64)
    unigrams[rows[:, 0]] = counts
    levels = [Counts(np.arange(n_words), unigrams)]
    while sums:
        rows, counts = sums.pop()
        keys = rows[:, 0].astype(np.int64)
        for shorter, word in zip([*levels[1:], None], rows.T[1:], strict=True):
            keys = keys * n_words + word
            keys = keys if shorter is None else np.searchsorted(shorter.keys, keys)
        levels.append(Counts(keys, counts))
    return levels


def _grouped(rows: SmallInts, counts: Ints, combine: np.ufunc) -> tuple[SmallInts, Ints]:
    sorting = np.lexsort(rows.T[::-1])
    rows, counts = rows[sorting], counts[sorting]
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return rows[is_new], combine.reduceat(counts, np.flatnonzero(is_new)) if len(rows) else counts


def numbered_lines(paths: Sequence[Path]) -> Iterator[tuple[Path, int, str]]:
    """Yield the file, number and text of lines. Raises: LanguageModelError: a file cannot be read."""
    for path in paths:
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb", buffering=0) as file:
                for number, line in enumerate(text_lines(cast(IO[bytes], file)), start=1):
                    yield path, number, line
        except (OSError, EOFError, ValueError) as error:
            raise LanguageModelError(f"{path}: expected a text, got {cause_of(error)}") from error


def estimate(
    words: list[str],
    levels: list[Counts],
    *,
    prune: Sequence[int] = (),
    fallback: bool = False,
    folder: Path | None = None,
) -> NgramTable:
    """Estimate a model from counts of orders 1, 2, …, a list that is emptied.

    prune: drop n-grams of each order that occur at most that often; the last number is for all higher orders.
    fallback: use `FALLBACK` where counts give no discounts. folder: for temporary files.

    Raises:
        OptionError: numbers that do not rise from 0.
        LanguageModelError: counts that give no discounts.
    """
    if prune and (prune[0] != 0 or sorted(prune) != list(prune) or len(prune) > len(levels)):
        raise OptionError(f"prune: expected up to {len(levels)} numbers that rise from 0, got {list(prune)}")
    least = [*prune, *([prune[-1] if prune else 0] * (len(levels) - len(prune)))]
    return _Estimator(words, least, fallback, folder).run(levels)


class _Estimator:
    def __init__(self, words: list[str], least: list[int], fallback: bool, folder: Path | None) -> None:
        self._words = words
        self._least = least
        self._fallback = fallback
        self._folder = folder

    def run(self, levels: list[Counts]) -> NgramTable:
        n_words, n_contexts = len(self._words), 1
        lower = np.array([1 / (n_words - 1)])  # uniform, without <s>
        suffix: Ints = np.zeros(n_words, np.int64)
        rows = np.zeros((1, 0), np.int32)
        done: list[Ngrams] = []
        while levels:
            level, order = levels.pop(0), len(done) + 1
            contexts, last = np.divmod(level.keys, n_words) if done else (suffix, level.keys)
            longer = self._suffixes(levels[0], level, suffix if done else None) if levels else None
            extended = scratch((len(last), order), np.int32, self._folder)
            extended[:, :-1], extended[:, -1], rows = rows[contexts], last, extended
            adjusted = self._adjusted(level, rows, longer)
            kept = level.counts > self._least[order - 1] if done else np.ones(n_words, np.bool_)
            smoothed, gamma = self._smoothed(adjusted, contexts, kept, n_contexts)
            if done:
                done[-1] = self._with_backoff(done[-1], gamma)
            lower = smoothed + gamma[contexts] * lower[suffix]
            if not done:
                lower[_BEGIN] = 1.0
            log10 = np.where(kept, np.log10(lower), np.nan).astype(np.float32)
            done.append(Ngrams(rows, log10, np.zeros(len(log10), np.float32)))
            n_contexts = len(level.keys)
            suffix = suffix if longer is None else longer
        return NgramTable(self._words, tuple(map(_unpruned, done)))

    def _suffixes(self, level: Counts, shorter: Counts, suffix: Ints | None) -> Ints:
        contexts, last = np.divmod(level.keys, len(self._words))
        if suffix is None:
            return last
        places: Ints = np.searchsorted(shorter.keys, suffix[contexts] * len(self._words) + last)
        return places

    def _adjusted(self, level: Counts, rows: npt.NDArray[np.int32], longer: Ints | None) -> Ints:
        """Count n-grams of lower orders by the words before them, except after <s>."""
        begins = rows[:, 0] == _BEGIN
        adjusted: Ints = level.counts.astype(np.int64)
        if longer is not None:
            n_before = np.bincount(longer, minlength=len(begins)).clip(1)
            adjusted[~begins] = np.minimum(adjusted, n_before)[~begins]
        if rows.shape[1] == 1:
            adjusted[_BEGIN] = 0
        return adjusted

    def _smoothed(
        self, adjusted: Ints, contexts: Ints, kept: npt.NDArray[np.bool_], n_contexts: int
    ) -> tuple[Doubles, Doubles]:
        """Return each n-gram's own share, and each context's share of lower orders."""
        discounts = np.array([0.0, *self._discounts(adjusted)])
        taken = np.where(kept, discounts[adjusted.clip(max=3)], adjusted)  # all, of those that are pruned
        total = np.bincount(contexts, adjusted, n_contexts).clip(1)
        return (adjusted - taken) / total[contexts], np.bincount(contexts, taken, n_contexts) / total

    def _discounts(self, adjusted: Ints) -> tuple[float, ...]:
        n = np.bincount(adjusted.clip(max=5), minlength=6)[:5].astype(np.float64)
        if n[1:4].all():
            share = n[1] / (n[1] + 2 * n[2])
            discounts = tuple(i - (i + 1) * share * n[i + 1] / n[i] for i in (1, 2, 3))
            if all(0 <= discount <= i for i, discount in enumerate(discounts, start=1)):
                return discounts
        if self._fallback:
            return FALLBACK
        counts = ", ".join(f"{int(n[i])} of {i}" for i in range(1, 5))
        raise LanguageModelError(
            "expected counts that give discounts (--discount-fallback sets them), "
            f"got n-grams of an order with counts {counts}"
        )

    def _with_backoff(self, ngrams: Ngrams, gamma: Doubles) -> Ngrams:
        backoff = np.log10(np.where(gamma > 0, gamma, 1.0))
        return Ngrams(ngrams.words, ngrams.log10, backoff.astype(np.float32))


def _unpruned(ngrams: Ngrams) -> Ngrams:
    kept = ~np.isnan(ngrams.log10)
    if kept.all():
        return Ngrams(ngrams.words, ngrams.log10.clip(max=0.0), ngrams.backoff)
    return Ngrams(ngrams.words[kept], ngrams.log10[kept].clip(max=0.0), ngrams.backoff[kept])
