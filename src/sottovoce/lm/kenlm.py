"""KenLM's binary files, version 5, with their words.

A trie can be listed, and becomes an n-gram trie. A probing table can only be searched. Layout:
`lm/binary_format.hh`, `trie.hh`, `search_hashed.hh` of KenLM.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sottovoce.errors import LanguageModelError, OptionError, cause_of
from sottovoce.kernels import load_kernels
from sottovoce.lm.arpa import NGRAM_BYTES, Ngrams, NgramTable, Report, blocks, ignore, scratch, tell_memory
from sottovoce.lm.base import Automaton, Floats, Ints, Records, WordModel, followed

if TYPE_CHECKING:
    import sottovoce_kernels.kenlm

MAGIC = b"mmap lm http://kheafield.com/code format version 5\n"
_SANITY = struct.Struct("<56s3f3IQ")
_FIXED = struct.Struct("<B3xfI?3xI")
_REST_PROBING, _TRIE, _QUANTIZED, _ARRAY = 1, 2, 1, 2
"""Kinds: 0, 1 and, for tries, 2 plus those of quantised values and compressed pointers."""
_UNIGRAM = np.dtype([("log10", "<f4"), ("backoff", "<f4"), ("next", "<u8")])


class KenlmBinary:
    """The header of a file. Raises: LanguageModelError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            magic, *numbers = _SANITY.unpack_from(self.content)
            fixed = _FIXED.unpack_from(self.content, _SANITY.size)
            self.order, self.multiplier, self.kind, has_words, _ = fixed
            counts = _SANITY.size + _FIXED.size
            self.counts: tuple[int, ...] = struct.unpack_from(f"<{self.order}Q", self.content, counts)
        except (OSError, ValueError, struct.error) as error:
            raise self.error(cause_of(error) if isinstance(error, OSError) else "a damaged one") from error
        if magic.rstrip(b"\0") != MAGIC or numbers != [0.0, 1.0, -0.5, 1, 2**32 - 1, 0, 1]:
            raise self.error("another version of its format")
        if not has_words:
            raise self.error("one without")
        most = 8 * len(self.content)  # an n-gram has a bit at least
        is_plausible = self.counts and all(0 < n < most for n in self.counts) and 1 <= self.multiplier < most
        if not is_plausible or self.kind >= _TRIE + _QUANTIZED + _ARRAY + 1:
            raise self.error("a damaged one")
        self.start = counts + 8 * self.order + -(counts + 8 * self.order) % 8
        if self.kind >= _TRIE:
            self.start += 8 * (1 + self.counts[0])
        else:
            self.start += 8 + 12 * self.buckets(0)

    def buckets(self, order: int) -> int:
        n = int(self.counts[order])
        wanted = np.float32(self.multiplier) * np.float32(n)
        return max(n + 1, int(wanted))

    @property
    def is_probing(self) -> bool:
        return bool(self.kind < _TRIE)

    def array(self, start: int, n: int, dtype: npt.DTypeLike) -> Records:
        try:
            return np.frombuffer(self.content, dtype, n, start)
        except ValueError as error:
            raise self.error("a damaged one") from error

    def words(self, start: int) -> list[str]:
        try:
            words = self.content[start:].decode().split("\0")[:-1]
        except UnicodeDecodeError as error:
            raise self.error("words that are not UTF-8") from error
        n_distinct = len(dict.fromkeys(words))
        if n_distinct < len(words) or n_distinct - self.counts[0] not in (0, 1) or words[0] != "<unk>":
            raise self.error("a damaged one")
        return words

    def check_numbers(self, log10: Floats, *others: Floats) -> None:
        """Raises: LanguageModelError: NaN, or other numbers that are not finite."""
        if np.isnan(log10).any() or not all(np.isfinite(each).all() for each in others):
            raise self.error("a damaged one")

    def error(self, reason: str) -> LanguageModelError:
        return LanguageModelError(f"{self.path}: expected a KenLM binary with its words, got {reason}")


def read_kenlm_trie(path: Path, folder: Path | None = None, report: Report = ignore) -> NgramTable:
    """Read a trie, also quantised or with compressed pointers. folder: for temporary files.

    Raises:
        LanguageModelError: the file cannot be read, has no words, or is a probing table.
    """
    binary = KenlmBinary(path)
    if binary.is_probing:
        raise binary.error("a probing table, which can be searched but not listed")
    try:
        return _TrieReader(binary, folder, report).read()
    except (IndexError, OverflowError) as error:  # numbers that point outside the file
        raise binary.error("a damaged one") from error


class _TrieReader:
    def __init__(self, binary: KenlmBinary, folder: Path | None, report: Report) -> None:
        self._binary = binary
        self._folder = folder
        self._report = report
        self._at = binary.start
        kind = binary.kind - _TRIE
        self._is_quantized, self._is_array = bool(kind & _QUANTIZED), bool(kind & _ARRAY)
        self._bits = (31, 32)
        self._books: list[tuple[Floats, ...]] = []
        self._chopped_bits = 0

    def read(self) -> NgramTable:
        counts = self._binary.counts
        tell_memory(sum(counts), "n-grams", NGRAM_BYTES)
        if self._is_quantized:
            self._read_books()
        unigrams = self._take(counts[0] + 2, _UNIGRAM)
        words = np.arange(counts[0], dtype=np.int32)[:, None]
        first = unigrams["next"][: counts[0] + 1].astype(np.int64)
        log10, backoff = (unigrams[name][: counts[0]].copy() for name in ("log10", "backoff"))
        self._binary.check_numbers(log10, backoff)
        orders = [Ngrams(words, log10, backoff)]
        for order in range(2, len(counts) + 1):
            ngrams, first = self._read_order(order, orders[-1].words, first)
            orders.append(ngrams)
        return NgramTable(self._binary.words(self._at)[: counts[0]], tuple(orders))

    def _read_books(self) -> None:
        version, *bits = self._take(8, np.uint8)[:3].tolist()
        if version != 2:
            raise self._binary.error(f"quantised values of version {version}, not 2")
        self._bits = (bits[0], bits[1])
        n_middle = len(self._binary.counts) - 2
        sizes = [2 ** bits[0], 2 ** bits[1]]
        self._books = [tuple(self._take(n, np.float32) for n in sizes) for _ in range(n_middle)]
        self._books.append((self._take(sizes[0], np.float32),))

    def _read_order(self, order: int, parents: npt.NDArray[np.int32], first: Ints) -> tuple[Ngrams, Ints]:
        counts = self._binary.counts
        n, is_last = counts[order - 1], order == len(counts)
        if first[0] or first[-1] != n or (np.diff(first) < 0).any():
            raise self._binary.error("a damaged one")
        pointer_bits, high = (0, None) if is_last else self._pointers(n, counts[order])
        word_bits = counts[0].bit_length()
        value_bits = self._bits[:1] if is_last else self._bits
        total = word_bits + sum(value_bits) + pointer_bits
        packed = self._take(((n + 1) * total + 7) // 8 + 8, np.uint8)
        words = scratch((n, order), np.int32, self._folder)
        log10, backoff = (scratch(n, np.float32, self._folder) for _ in range(2))
        following = scratch(0 if is_last else n + 1, np.int64, self._folder)
        for rows in blocks(n + 1):
            bits = np.arange(rows.start, rows.stop) * total
            if not is_last:
                at = bits + (total - pointer_bits)
                following[rows] = _field(packed, at, pointer_bits)
                if high is not None:
                    above = np.searchsorted(high, np.arange(rows.start, rows.stop), side="right") - 1
                    following[rows] += above << pointer_bits
            inside = slice(rows.start, min(rows.stop, n))
            bits = bits[: inside.stop - inside.start]
            context = np.searchsorted(first, np.arange(inside.start, inside.stop), side="right") - 1
            words[inside, 0] = _field(packed, bits, word_bits)
            words[inside, 1:] = parents[context]
            values = self._values(packed, bits + word_bits, order)
            log10[inside], backoff[inside] = values[0], 0.0 if is_last else values[1]
            self._binary.check_numbers(log10[inside], backoff[inside])
            if words[inside, 0].max(initial=0) >= counts[0]:
                raise self._binary.error("a damaged one")
            self._report(f"reading {order}-grams", inside.stop, n)
        return Ngrams(words, log10, backoff), following

    def _values(self, packed: npt.NDArray[np.uint8], bits: Ints, order: int) -> tuple[Floats, ...]:
        is_last = order == len(self._binary.counts)
        n_prob, n_backoff = self._bits
        if not self._is_quantized:
            prob = (_field(packed, bits, 31) | 0x80000000).astype(np.uint32).view(np.float32)
            if is_last:
                return (prob,)
            return prob, _field(packed, bits + 31, 32).astype(np.uint32).view(np.float32)
        books = self._books[order - 2]
        if is_last:
            return (books[0][_field(packed, bits, n_prob)],)
        return books[0][_field(packed, bits + n_backoff, n_prob)], books[1][_field(packed, bits, n_backoff)]

    def _pointers(self, n: int, n_next: int) -> tuple[int, Ints | None]:
        """Return the bits of a pointer, and the first records of its high bits."""
        required = n_next.bit_length()
        if not self._is_array:
            return required, None
        if not self._chopped_bits:
            self._chopped_bits = self._binary.content[self._at + 1]
        cut = min(
            range(min(required, self._chopped_bits) + 1),
            key=lambda bits: (n_next >> (required - bits)) * 64 - (n + 1) * bits,
        )
        n_high = (n_next >> (required - cut)) + 1
        start = self._at + -self._at % 8 + 8
        self._at += 8 * (1 + n_high) + 7
        return required - cut, self._binary.array(start, n_high, np.int64)

    def _take(self, n: int, dtype: npt.DTypeLike) -> Records:
        array = self._binary.array(self._at, n, dtype)
        self._at += array.nbytes
        return array


def _field(packed: npt.NDArray[np.uint8], bits: Ints, width: int) -> Ints:
    """Return numbers of up to 57 bits at bits (n,)."""
    around = packed[(bits >> 3)[:, None] + np.arange(8)].view("<u8")[:, 0]
    return ((around >> (bits & 7).astype(np.uint64)) & np.uint64((1 << width) - 1)).astype(np.int64)


class KenlmModel(WordModel):
    """A KenLM probing table over words. States are (N,) int64 numbers of contexts seen so far.

    Raises:
        LanguageModelError: the file cannot be read, or has no words.
        OptionError: the kernels package is not installed, or too old.
    """

    def __init__(self, path: str | Path) -> None:
        binary = KenlmBinary(Path(path))
        if not binary.is_probing:
            raise LanguageModelError(f"{path}: expected a KenLM probing table, got a trie")
        try:
            kernels = load_kernels("kenlm").kenlm
        except ImportError as error:
            raise OptionError(f"KenLM's probing tables need the native kernels: {error}") from error
        fields = [(name, "<f4") for name in ("log10", "backoff", "rest")]
        fields = fields[: 3 if binary.kind == _REST_PROBING else 2]
        unigrams = binary.array(binary.start, binary.counts[0] + 1, fields)
        self._arrays = [unigrams]  # keep the file mapped
        at = binary.start + unigrams.nbytes
        for order, n in enumerate(binary.counts[1:], start=1):
            values = fields[:1] if order + 1 == binary.order else fields
            table = binary.array(at, binary.buckets(order), [("key", "<u8"), *values])
            at += table.nbytes
            self._arrays.append(table)
            # An ARPA file without some contexts has more entries than it says; one bucket at least is free.
            if not n <= sum(np.count_nonzero(table["key"][rows]) for rows in blocks(len(table))) < len(table):
                raise binary.error("a damaged one")
        self._vocabulary = {word: i for i, word in enumerate(binary.words(at))}
        for array in self._arrays:
            for rows in blocks(len(array)):
                binary.check_numbers(
                    *(array[rows][name] for name in array.dtype.names or () if name != "key")
                )
        tables = [kernels.Table(each.ctypes.data, len(each), each.itemsize) for each in self._arrays[1:]]
        self.unknown = 0
        self._end, begin = self._vocabulary.get("</s>", 0), self._vocabulary.get("<s>")
        self._native: sottovoce_kernels.kenlm.Probing = kernels.Probing(
            unigrams.ctypes.data, unigrams.itemsize, tables, self._end
        )
        self._start = 0 if begin is None else self._native.begin(begin)
        self._path = path

    def __reduce__(self) -> tuple[type[KenlmModel], tuple[str | Path]]:
        return KenlmModel, (self._path,)

    @property
    def vocabulary(self) -> Mapping[str, int]:
        return self._vocabulary

    def start(self, n: int) -> Ints:
        return np.full(n, self._start, np.int64)

    def null_context(self, n: int) -> Ints:
        return np.zeros(n, np.int64)

    def score(self, states: Ints, tokens: Ints | None = None) -> tuple[Floats, Ints]:
        if tokens is None:
            words = np.tile(np.arange(self.n_tokens), len(states))
            scores, _ = followed(self._native, states.repeat(self.n_tokens), words)
            return scores.reshape(len(states), -1), states
        return followed(self._native, states, tokens)

    def finish(self, states: Ints) -> Floats:
        return self.score(states, np.full_like(states, self._end))[0]

    def automaton(self) -> Automaton:
        bounds = np.zeros(self.n_tokens, np.float32)  # no word scores above 0
        return Automaton(
            np.arange(self.n_tokens), bounds, self._start, probing=self._native.address, owner=self
        )
