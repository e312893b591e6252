"""ARPA files of n-gram models, read as KenLM reads them.

A probability may be `-inf`, a missing back-off is 0, and of a repeated unigram the first counts (of `<unk>`
the last). Tabs and spaces separate fields; other white space is part of words. Blank lines are optional, as
in SRILM.
"""

from __future__ import annotations

import gzip
import logging
import math
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar, cast

import numpy as np
import numpy.typing as npt

from sottovoce.errors import LanguageModelError, cause_of
from sottovoce.lm.base import Floats
from sottovoce.text.files import text_lines, whole_file

logger = logging.getLogger(__name__)

BLANKS = " \t\r\n"
_SPECIAL = ("<s>", "</s>", "<unk>")
"""Unigrams that recipes add to files that have them."""
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
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb", buffering=0) as file:
            return _ArpaReader(path, text_lines(cast(IO[bytes], file)), folder, report).read()
    except LanguageModelError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise LanguageModelError(f"{path}: expected an ARPA file, got {cause_of(error)}") from error


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
            if row < n_kept and fields[1] not in _SPECIAL:
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
