"""N-gram tables: ARPA files, and estimation from text or counts.

ARPA files are read as KenLM reads them. A probability may be `-inf`, a missing back-off is 0, and of a
repeated unigram the first counts (of `<unk>` the last). Tabs and spaces separate fields; other white space is
part of words. Blank lines are optional, as in SRILM.

Estimation is interpolated modified Kneser-Ney smoothing (Chen and Goodman 1998), as in KenLM's `lmplz`
(Heafield et al. 2013): discounts for counts of 1, 2, and 3 or more per order (equation 26); n-grams of lower
orders are counted by the words before them, unless they begin with <s>; unigrams are interpolated with a
uniform distribution that includes <unk>.
"""

from __future__ import annotations

import gzip
import logging
import math
import re
import tempfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar, cast

import numpy as np
import numpy.typing as npt

from sottovoce.errors import LanguageModelError, OptionError, expecting
from sottovoce.lm.base import Doubles, Floats, Ints
from sottovoce.text.files import text_lines, whole_file

logger = logging.getLogger(__name__)

BLANKS = " \t\r\n"
_BLOCK = 2**18
_BLOCK_LINES = 2**15
"""Some 10 MB of temporary arrays, and of lines."""
_IN_MEMORY_BYTES = 2**26
"""Larger arrays are in temporary files."""
NGRAM_BYTES = 60
"""Memory of an n-gram while a trie is built, as measured with 5-grams."""
SmallInts = npt.NDArray[np.int32]
Number = TypeVar("Number", bound=np.generic)
Report = Callable[[str, int, int], None]


def ignore(step: str, n_done: int, n_all: int) -> None: ...
def blocks(n: int) -> Iterator[slice]:
    """Yield slices of n places that fit in memory."""
    return (slice(start, min(start + _BLOCK, n)) for start in range(0, n, _BLOCK))


def scratch(shape: int | tuple[int, ...], dtype: type[Number], folder: Path | None) -> npt.NDArray[Number]:
    """Make an empty array, in a file if it is large."""
    if np.prod(shape) * np.dtype(dtype).itemsize <= _IN_MEMORY_BYTES:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile(dir=folder) as file:
        return cast("npt.NDArray[Number]", np.memmap(file, dtype, "w+", shape=shape))


def tell_memory(n: int, things: str, bytes_each: int) -> None:
    logger.info(
        "%s %s: about %.1f GB of memory, with temporary files", f"{n:,}", things, n * bytes_each / 1e9
    )


@dataclass(frozen=True, slots=True)
class Ngrams:
    """N-grams of one order: ids (n, order), log10 probabilities and back-offs (n,)."""

    words: SmallInts
    log10: Floats
    backoff: Floats


@dataclass(frozen=True, slots=True)
class NgramTable:
    """Words by id, and the n-grams of orders 1, 2, …."""

    words: list[str]
    orders: tuple[Ngrams, ...]


_FIELD = re.compile(r"[^ \t]+")


def fields_of(line: str) -> list[str]:
    return _FIELD.findall(line.strip(BLANKS))


def read_arpa(path: Path, folder: Path | None = None, report: Report = ignore) -> NgramTable:
    """Read an ARPA file, gzipped if the name ends in .gz. folder: for temporary files.

    Raises:
        LanguageModelError: the file is unreadable, or faulty.
    """
    with _text_of(path, "an ARPA file") as lines:
        return _ArpaReader(path, lines, folder, report).read()


@contextmanager
def _text_of(path: Path, expected: str) -> Iterator[Iterator[str]]:
    """Open a text, gzipped if its name ends in .gz. Raises: LanguageModelError, also when lines are read."""
    causes = (OSError, EOFError, ValueError, zlib.error)
    with (
        expecting(path, expected, LanguageModelError, causes),
        gzip.open(path) if path.suffix == ".gz" else path.open("rb", buffering=0) as file,
    ):
        yield text_lines(cast(IO[bytes], file))


class _ArpaReader:
    def __init__(self, path: Path, lines: Iterable[str], folder: Path | None, report: Report) -> None:
        self._path = path
        self._folder = folder
        self._report = report
        self._number = 0
        self._lines = self._counted(lines)
        self._vocabulary: dict[str, int] = {}
        self._encoded: dict[bytes, int] = {}
        self._twice: list[str] = []

    def read(self) -> NgramTable:
        counts, title = self._read_counts()
        tell_memory(sum(counts), "n-grams", NGRAM_BYTES)
        orders = []
        for order, count in enumerate(counts, start=1):
            if title != f"\\{order}-grams:":
                raise self._error(f"expected \\{order}-grams:, got {title!r}")
            ngrams, title = self._read_order(order, count)
            orders.append(ngrams)
        if title != "\\end\\":
            raise self._error(f"expected \\end\\ after the last section, got {title!r}")
        if self._twice:
            shown = ", ".join(map(repr, self._twice[:3]))
            logger.warning("%s: unigrams that stand twice, the first counts: %s", self._path, shown)
        return NgramTable(list(self._vocabulary), tuple(orders))

    def _counted(self, lines: Iterable[str]) -> Iterator[str]:
        for number, line in enumerate(lines, start=1):
            if stripped := line.strip(BLANKS):
                self._number = number
                yield stripped

    def _next(self) -> str:
        line = next(self._lines, None)
        if line is None:
            raise self._error("expected another section or \\end\\, got the end of the file")
        return line

    def _read_counts(self) -> tuple[list[int], str]:
        if "\\data\\" not in self._lines:
            raise self._error("expected a line \\data\\, got none: not an ARPA file")
        counts: list[int] = []
        while not (line := self._next()).startswith("\\"):
            name, _, count = line.partition("=")
            if name.split() != ["ngram", str(len(counts) + 1)] or not count.strip().isdigit():
                raise self._error(f"expected 'ngram {len(counts) + 1}=COUNT', got {line!r}")
            counts.append(int(count))
        if not counts or not counts[0]:
            raise self._error("expected at least one unigram, got none")
        return counts, line

    def _read_order(self, order: int, count: int) -> tuple[Ngrams, str]:
        words = scratch((count, order), np.int32, self._folder)
        log10, backoff = (scratch(count, np.float32, self._folder) for _ in range(2))
        n_read = n_kept = 0
        title = ""
        while not title:
            lines, numbers, title = self._block()
            if n_read + len(lines) > count:
                self._number = numbers[count - n_read]
                raise self._error(f"expected {count} {order}-grams, got more: {lines[count - n_read]!r}")
            rows = slice(n_read, n_read + len(lines))
            if order == 1:
                n_kept = self._read_unigrams(lines, numbers, n_kept, words[:, 0], log10, backoff)
            elif not self._read_regular(lines, order, words[rows], log10[rows], backoff[rows]):
                for row, (number, line) in enumerate(zip(numbers, lines, strict=True), start=n_read):
                    self._number = number
                    fields = self._fields(line, order)
                    words[row] = self._ids(fields[1 : order + 1])
                    log10[row], backoff[row] = self._numbers(fields, order)
            n_read += len(lines)
            self._report(f"reading {order}-grams", n_read, count)
        if n_read < count:
            raise self._error(f"expected {count} {order}-grams, got {n_read} and then {title!r}")
        if order > 1:
            return Ngrams(words, log10, backoff), title
        self._encoded = {word.encode(): place for word, place in self._vocabulary.items()}
        return Ngrams(words[:n_kept], log10[:n_kept], backoff[:n_kept]), title

    def _block(self) -> tuple[list[str], list[int], str]:
        lines: list[str] = []
        numbers: list[int] = []
        while len(lines) < _BLOCK_LINES:
            line = self._next()
            if line[0] == "\\":
                return lines, numbers, line
            lines.append(line)
            numbers.append(self._number)
        return lines, numbers, ""

    def _read_unigrams(
        self,
        lines: Sequence[str],
        numbers: Sequence[int],
        n_kept: int,
        words: SmallInts,
        log10: Floats,
        backoff: Floats,
    ) -> int:
        for number, line in zip(numbers, lines, strict=True):
            self._number = number
            fields = self._fields(line, 1)
            row = self._vocabulary.setdefault(fields[1], n_kept)
            if row < n_kept and fields[1] not in SPECIAL:  # recipes add these again
                self._twice.append(fields[1])
            if row == n_kept or fields[1] == "<unk>":
                words[row] = row
                log10[row], backoff[row] = self._numbers(fields, 1)
                n_kept = max(n_kept, row + 1)
        return n_kept

    def _read_regular(
        self, lines: Sequence[str], order: int, words: SmallInts, log10: Floats, backoff: Floats
    ) -> bool:
        """Read lines that all have a back-off, or none; return False for others."""
        joined = "\n\\\n".join(lines).encode()
        fields = [] if b"\v" in joined or b"\f" in joined else joined.split()
        width, remainder = divmod(len(fields) + 1, len(lines)) if lines else (0, 0)
        n_ends = len(lines) - 1
        if remainder or not order + 2 <= width <= order + 3:
            return not lines
        if fields[width - 1 :: width].count(b"\\") != n_ends:
            return False
        try:
            log10[:] = np.fromiter(map(float, fields[::width]), np.float32, len(lines))
            backoff[:] = 0.0
            if width == order + 3:
                backoff[:] = np.fromiter(map(float, fields[order + 1 :: width]), np.float32, len(lines))
            for place in range(order):
                ids = map(self._encoded.__getitem__, fields[place + 1 :: width])
                words[:, place] = np.fromiter(ids, np.int32, len(lines))
        except (KeyError, ValueError):
            return False
        return bool((log10 < np.inf).all() and np.isfinite(backoff).all())

    def _fields(self, line: str, order: int) -> list[str]:
        fields = fields_of(line)
        if not order + 1 <= len(fields) <= order + 2:
            raise self._error(
                f"expected a number and {order} words, with or without a back-off, got {line!r}"
            )
        return fields

    def _ids(self, words: Sequence[str]) -> list[int]:
        try:
            return [self._vocabulary[word] for word in words]
        except KeyError as error:
            raise self._error(f"expected words of the unigrams, got {error.args[0]!r}") from error

    def _numbers(self, fields: Sequence[str], order: int) -> tuple[float, float]:
        backoff = self._log10(fields[order + 1]) if len(fields) == order + 2 else 0.0
        if backoff == -math.inf:
            raise self._error(f"expected a finite back-off, got {fields[order + 1]!r}")
        return self._log10(fields[0]), backoff

    def _log10(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if math.isnan(number) or number == math.inf:
            raise self._error(f"expected a log10 number, got {text!r}")
        return number

    def _error(self, message: str) -> LanguageModelError:
        return LanguageModelError(f"{self._path}, line {self._number}: {message}")


def write_arpa(path: Path, table: NgramTable) -> None:
    """Write an ARPA file, gzipped if the name ends in .gz."""
    with (
        whole_file(path) as unfinished,
        gzip.open(unfinished, "wb", 6) if path.suffix == ".gz" else unfinished.open("wb") as opened,
    ):
        file = cast(IO[bytes], opened)
        counts = [f"ngram {i}={len(ngrams.log10)}\n" for i, ngrams in enumerate(table.orders, start=1)]
        file.write(("\\data\\\n" + "".join(counts)).encode())
        for order, ngrams in enumerate(table.orders, start=1):
            file.write(f"\n\\{order}-grams:\n".encode())
            for start in range(0, len(ngrams.log10), _BLOCK_LINES):
                rows = slice(start, start + _BLOCK_LINES)
                file.writelines(_lines(table, ngrams, rows, is_last=order == len(table.orders)))
        file.write(b"\n\\end\\\n")


def _lines(table: NgramTable, ngrams: Ngrams, rows: slice, *, is_last: bool) -> Iterator[bytes]:
    names = [" ".join([table.words[word] for word in row]) for row in ngrams.words[rows].tolist()]
    for name, log10, backoff in zip(
        names, ngrams.log10[rows].tolist(), ngrams.backoff[rows].tolist(), strict=True
    ):
        yield f"{log10:.7g}\t{name}{'' if is_last else f'{chr(9)}{backoff:.7g}'}\n".encode()


SPECIAL = ("<unk>", "<s>", "</s>")
WORD_BYTES, COUNT_BYTES = 125, 120
"""Memory of a word and of a count, as measured with 5-grams."""
LONGEST = 10
"""Words of the longest n-grams."""
_UNKNOWN, _BEGIN, _END = range(3)
FALLBACK = (0.5, 1.0, 1.5)
"""Discounts of `lmplz --discount_fallback`."""


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
        with _text_of(path, "a text") as lines:
            for number, line in enumerate(lines, start=1):
                yield path, number, line


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
