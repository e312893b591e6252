"""Reading ARPA files of n-gram models, plain or gzipped.

Format: a `\\data\\` section with counts, one section per order with lines of log10 probability, words and
an optional log10 back-off, then `\\end\\`. What KenLM reads is read as KenLM scores it: a probability may be
`-inf`, a missing back-off is 0, blank lines mean nothing, and of a unigram that stands twice the first one
counts (of `<unk>` the last one). Sections need no blank line between them, as in SRILM; fields may be apart
by spaces. White space other than tab, space and line ends, such as U+00A0 and U+0085, is part of words.
"""

from __future__ import annotations

import gzip
import logging
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from sottovoce.errors import LanguageModelError, cause_of
from sottovoce.text.files import text_lines

logger = logging.getLogger(__name__)

BLANKS = " \t\r\n"
"""What stands between fields and ends lines; other white space may be part of a word."""
_SPECIAL = ("<s>", "</s>", "<unk>")
"""Unigrams that recipes add to files that have them."""


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
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb", buffering=0) as file:
            return _ArpaReader(path, text_lines(cast(IO[bytes], file))).read()
    except LanguageModelError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise LanguageModelError(f"{path}: expected an ARPA file, got {cause_of(error)}") from error


class _ArpaReader:
    def __init__(self, path: Path, lines: Iterable[str]) -> None:
        self._path = path
        self._number = 0
        self._lines = self._counted(lines)
        self._vocabulary: dict[str, int] = {}
        self._twice: list[str] = []

    def read(self) -> ArpaFile:
        counts, title = self._read_counts()
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
        return ArpaFile(self._vocabulary, tuple(orders))

    def _counted(self, lines: Iterable[str]) -> Iterator[str]:
        for number, line in enumerate(lines, start=1):
            self._number = number
            if stripped := line.strip(BLANKS):
                yield stripped

    def _next(self) -> str:
        line = next(self._lines, None)
        if line is None:
            raise self._error("expected another section or \\end\\, got the end of the file")
        return line

    def _read_counts(self) -> tuple[list[int], str]:
        """Read the counts; return the title of the section behind them too."""
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

    def _read_order(self, order: int, count: int) -> tuple[ArpaNgrams, str]:
        """Read n-grams; return the title of the section behind them too."""
        words = np.zeros((count, order), dtype=np.int64)
        log10, backoff = np.zeros(count, dtype=np.float32), np.zeros(count, dtype=np.float32)
        n_read = n_kept = 0
        while not (line := self._next()).startswith("\\"):
            if n_read == count:
                raise self._error(f"expected {count} {order}-grams, got more: {line!r}")
            fields = fields_of(line)
            if not order + 1 <= len(fields) <= order + 2:
                raise self._error(
                    f"expected a number and {order} words, with or without a back-off, got {line!r}"
                )
            n_read += 1
            row = n_kept
            if order == 1:
                row = self._vocabulary.setdefault(fields[1], n_kept)
                if row < n_kept and fields[1] not in _SPECIAL:
                    self._twice.append(fields[1])
                if row < n_kept and fields[1] != "<unk>":
                    continue
            words[row] = self._ids(fields[1 : order + 1])
            log10[row] = self._log10(fields[0])
            backoff[row] = self._backoff(fields[order + 1]) if len(fields) == order + 2 else 0.0
            n_kept = max(n_kept, row + 1)
        if n_read < count:
            raise self._error(f"expected {count} {order}-grams, got {n_read} and then {line!r}")
        return ArpaNgrams(words[:n_kept], log10[:n_kept], backoff[:n_kept]), line

    def _ids(self, words: Sequence[str]) -> list[int]:
        try:
            return [self._vocabulary[word] for word in words]
        except KeyError as error:
            raise self._error(f"expected words of the unigrams, got {error.args[0]!r}") from error

    def _log10(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if math.isnan(number) or number == math.inf:
            raise self._error(f"expected a log10 number, got {text!r}")
        return number

    def _backoff(self, text: str) -> float:
        number = self._log10(text)
        if number == -math.inf:
            raise self._error(f"expected a finite back-off, got {text!r}")
        return number

    def _error(self, message: str) -> LanguageModelError:
        return LanguageModelError(f"{self._path}, line {self._number}: {message}")
