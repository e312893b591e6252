"""Reading ARPA files of n-gram models, plain or gzipped.

Format: a `\\data\\` section with counts, one section per order with lines of log10 probability, words and
an optional log10 back-off, then `\\end\\`. Windows line ends and tabs or spaces are taken; a missing
back-off is 0. Other white space, such as U+00A0 and U+0085, is part of words, as KenLM reads them.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sottovoce.errors import LanguageModelError, cause_of

BLANKS = " \t\r\n"
"""What stands between fields and ends lines; other white space may be part of a word."""


def fields_of(line: str) -> list[str]:
    """Split a line at spaces and tabs."""
    return [field for field in line.strip(BLANKS).replace("\t", " ").split(" ") if field]


@dataclass(frozen=True, slots=True)
class ArpaNgrams:
    """All n-grams of one order: words (n, order) int64 ids, log10 probabilities and back-offs (n,)."""

    words: npt.NDArray[np.int64]
    log10: npt.NDArray[np.float32]
    backoff: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ArpaFile:
    """The vocabulary in the order of the unigrams, and the n-grams of orders 1, 2, …"""

    vocabulary: dict[str, int]
    orders: tuple[ArpaNgrams, ...]


def read_arpa(path: Path) -> ArpaFile:
    """Read an ARPA file; a name that ends in .gz is unpacked.

    Raises: LanguageModelError for a file that is unreadable, has no header, other counts than it says, bad
        numbers, or n-grams of words that are no unigrams.
    """
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
                return _ArpaReader(path, lines).read()
        with path.open(encoding="utf-8", newline="\n") as lines:
            return _ArpaReader(path, lines).read()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise LanguageModelError(f"{path}: expected an ARPA file, got {cause_of(error)}") from error


class _ArpaReader:
    """Reads the sections in turn and knows the line for messages."""

    def __init__(self, path: Path, lines: Iterable[str]) -> None:
        self._path = path
        self._number = 0
        self._lines = self._counted(lines)
        self._vocabulary: dict[str, int] = {}

    def read(self) -> ArpaFile:
        counts = self._read_counts()
        orders = []
        for order, count in enumerate(counts, start=1):
            orders.append(self._read_order(order, count))
        if self._section() != "\\end\\":
            raise self._error("expected \\end\\ after the last section")
        return ArpaFile(self._vocabulary, tuple(orders))

    def _counted(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            self._number += 1
            yield line

    def _section(self) -> str:
        """The next line that is not blank."""
        line = next((line.strip(BLANKS) for line in self._lines if line.strip(BLANKS)), "")
        if not line:
            raise self._error("expected another section or \\end\\, got the end of the file")
        return line

    def _read_counts(self) -> list[int]:
        header = next((line for line in self._lines if line.strip(BLANKS) == "\\data\\"), None)
        if header is None:
            raise self._error("expected a line \\data\\, got none: not an ARPA file")
        counts: list[int] = []
        for line in self._lines:
            name, _, count = line.strip(BLANKS).partition("=")
            if not name:
                if counts:
                    break
                continue
            if name.split() != ["ngram", str(len(counts) + 1)] or not count.strip().isdigit():
                raise self._error(f"expected 'ngram {len(counts) + 1}=COUNT', got {line.strip(BLANKS)!r}")
            counts.append(int(count))
        if not counts or not counts[0]:
            raise self._error("expected at least one unigram, got none")
        return counts

    def _read_order(self, order: int, count: int) -> ArpaNgrams:
        title = self._section()
        if title != f"\\{order}-grams:":
            raise self._error(f"expected \\{order}-grams:, got {title!r}")
        words = np.zeros((count, order), dtype=np.int64)
        log10, backoff = np.zeros(count, dtype=np.float32), np.zeros(count, dtype=np.float32)
        for row in range(count):
            fields = fields_of(next(self._lines, ""))
            if not order + 1 <= len(fields) <= order + 2:
                got = " ".join(fields) or "a blank line or the end"
                raise self._error(f"expected {count} {order}-grams, got {row} and then {got!r}")
            words[row] = self._ids(fields[1 : order + 1], order)
            log10[row] = self._number_of(fields[0])
            backoff[row] = self._number_of(fields[order + 1]) if len(fields) == order + 2 else 0.0
        extra = next(self._lines, "").strip(BLANKS)
        if extra:
            raise self._error(f"expected {count} {order}-grams, got more: {extra!r}")
        return ArpaNgrams(words, log10, backoff)

    def _ids(self, words: list[str], order: int) -> list[int]:
        if order == 1:
            if words[0] in self._vocabulary:
                raise self._error(f"expected each unigram once, got {words[0]!r} again")
            self._vocabulary[words[0]] = len(self._vocabulary)
        try:
            return [self._vocabulary[word] for word in words]
        except KeyError as error:
            raise self._error(f"expected words of the unigrams, got {error.args[0]!r}") from error

    def _number_of(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not np.isfinite(number):
            raise self._error(f"expected a finite log10 number, got {text!r}")
        return number

    def _error(self, message: str) -> LanguageModelError:
        return LanguageModelError(f"{self._path}, line {self._number}: {message}")
