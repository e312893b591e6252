"""KenLM's binary files, version 5, with their words: tries are converted, probing tables are asked.

A trie spells n-grams from their last word and can be listed. A probing table holds hashes of n-grams, so it
answers one pair of state and word at a time; answers are kept in a table that the native search reads without
a call. The words stand at the end of a binary, in the order of their ids, each before a null byte. Layout:
`lm/binary_format.hh`, `trie.hh`, `search_hashed.hh` of KenLM.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.errors import LanguageModelError, cause_of
from sottovoce.lm.arpa import NGRAM_BYTES, Ngrams, NgramTable, Report, blocks, ignore, scratch, tell_memory
from sottovoce.lm.base import CACHE_ENTRY, END, Automaton, CallbackLm, Floats, Ints, Records, WordModel

_LN10 = math.log(10)
_FREE = 0
_CACHE_SIZE = 2**20
_CALL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_ENTRY, _CELL, _BITS = struct.Struct("=fi"), struct.Struct("=q"), struct.Struct("=i4x")
"""Score and state of a table entry; the same as one number; the bits of the score alone."""
MAGIC = b"mmap lm http://kheafield.com/code format version 5\n"
_SANITY = struct.Struct("<56s3f3IQ")
_FIXED = struct.Struct("<B3xfI?3xI")
_REST_PROBING, _TRIE, _QUANTIZED, _ARRAY = 1, 2, 1, 2
"""The kinds of models are 0, 1 and, for tries, 2 plus those of quantised values and compressed pointers."""
_UNIGRAM = np.dtype([("log10", "<f4"), ("backoff", "<f4"), ("next", "<u8")])
_NO_EXTENSION = 0x80000000
"""The bits of the back-off, -0.0, of an n-gram that begins no longer one."""
_HASH = (8978948897894561157, 17894857484156487943)


class KenlmBinary:
    """The header of a file. Raises: LanguageModelError: it cannot be read, or is of another version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            magic, *numbers, one = _SANITY.unpack_from(self.content)
            fixed = _FIXED.unpack_from(self.content, _SANITY.size)
            self.order, self.multiplier, self.kind, has_words, _ = fixed
            counts = _SANITY.size + _FIXED.size
            self.counts: tuple[int, ...] = struct.unpack_from(f"<{self.order}Q", self.content, counts)
        except (OSError, ValueError, struct.error) as error:
            raise self.error(cause_of(error) if isinstance(error, OSError) else "a damaged one") from error
        if magic.rstrip(b"\0") != MAGIC or one != 1 or numbers != [0.0, 1.0, -0.5, 1, 2**32 - 1, 0]:
            raise self.error("another version of its format")
        if not has_words:
            raise self.error("one without")
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
        """Raises: LanguageModelError: the file ends before."""
        try:
            return np.frombuffer(self.content, dtype, n, start)
        except ValueError as error:
            raise self.error("a damaged one") from error

    def words(self, start: int) -> list[str]:
        """Raises: LanguageModelError: other words than the header says."""
        try:
            words = self.content[start:].decode().split("\0")[:-1]
        except UnicodeDecodeError as error:
            raise self.error("words that are not UTF-8") from error
        if not words or words[0] != "<unk>" or len(words) not in (self.counts[0], self.counts[0] + 1):
            raise self.error("a damaged one")
        return words

    def error(self, reason: str) -> LanguageModelError:
        return LanguageModelError(f"{self.path}: expected a KenLM binary with its words, got {reason}")


def read_kenlm_trie(path: Path, folder: Path | None = None, report: Report = ignore) -> NgramTable:
    """Read a trie, also with quantised values or compressed pointers. folder: for temporary files.

    Raises:
        LanguageModelError: the file cannot be read, has no words, or is a probing table.
    """
    binary = KenlmBinary(path)
    if binary.is_probing:
        raise binary.error("a probing table, which can be searched but not listed")
    return _TrieReader(binary, folder, report).read()


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
        """Read the n-grams that add a word before those of the previous order."""
        counts = self._binary.counts
        n, is_last = counts[order - 1], order == len(counts)
        if first[-1] != n or (np.diff(first) < 0).any():
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
        """Return the bits of a pointer in a record, and the first record of each value of its high bits."""
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
    """Return the numbers of up to 57 bits that begin at bits (n,)."""
    around = packed[(bits >> 3)[:, None] + np.arange(8)].view("<u8")[:, 0]
    found: Ints = ((around >> (bits & 7).astype(np.uint64)) & np.uint64((1 << width) - 1)).astype(np.int64)
    return found


@dataclass(frozen=True, slots=True)
class _State:
    """Words, the latest first, and the back-offs of the contexts of 1, 2, … of them."""

    words: tuple[int, ...]
    backoffs: tuple[float, ...]


class _ProbingTable:
    def __init__(self, binary: KenlmBinary) -> None:
        self._content, self.order = binary.content, binary.order
        size = 12 if binary.kind == _REST_PROBING else 8
        self._unigrams, self._size = binary.start, size
        self._tables: list[tuple[int, int, int]] = []
        at = binary.start + (binary.counts[0] + 1) * size
        for order in range(1, binary.order):
            entry = 8 + (4 if order + 1 == binary.order else size)
            self._tables.append((at, binary.buckets(order), entry))
            at += binary.buckets(order) * entry
        self.words = binary.words(at)

    def null_context(self) -> _State:
        return _State((), ())

    def begin(self, word: int) -> _State:
        return _State((word,), (self._read(self._unigrams + word * self._size, True)[1],))

    def follow(self, state: _State, word: int) -> tuple[float, _State]:
        """Return the log10 probability of a word, and the next state."""
        log10, backoff, may_extend = self._read(self._unigrams + word * self._size, True)
        backoffs, n_kept, n_matched, key = [backoff], int(may_extend), 1, word
        for place, before in enumerate(state.words):
            key = (key * _HASH[0] ^ (1 + before) * _HASH[1]) & 0xFFFFFFFFFFFFFFFF
            has_backoff = place + 2 < self.order
            at = self._find(place, key)
            if at is None:
                break
            log10, backoff, may_extend = self._read(at, has_backoff)
            n_matched += 1
            if has_backoff:
                backoffs.append(backoff)
                n_kept = place + 2 if may_extend else n_kept
        words = (word, *state.words)[:n_kept]
        return log10 + sum(state.backoffs[n_matched - 1 :]), _State(words, tuple(backoffs[:n_kept]))

    def _find(self, place: int, key: int) -> int | None:
        start, n_buckets, entry = self._tables[place]
        bucket = key % n_buckets
        while found := _KEY.unpack_from(self._content, start + bucket * entry)[0]:
            if found == key:
                return start + bucket * entry + 8
            bucket = (bucket + 1) % n_buckets
        return None

    def _read(self, at: int, has_backoff: bool) -> tuple[float, float, bool]:
        if not has_backoff:
            return -abs(_VALUE.unpack_from(self._content, at)[0]), 0.0, False
        log10, backoff = _VALUES.unpack_from(self._content, at)
        bits = _KEPT.unpack_from(self._content, at + 4)[0]
        return -abs(log10), backoff, bits != _NO_EXTENSION


_KEY, _VALUE, _VALUES, _KEPT = (struct.Struct(form) for form in ("<Q", "<f", "<ff", "<I"))


class KenlmModel(WordModel):
    """A KenLM probing table over words. States are (N,) int64 indices of contexts seen so far.

    Raises:
        LanguageModelError: the file cannot be read, or has no words.
    """

    def __init__(self, path: str | Path) -> None:
        binary = KenlmBinary(Path(path))
        if not binary.is_probing:
            raise LanguageModelError(f"{path}: expected a KenLM probing table, got a trie")
        self._table = _ProbingTable(binary)
        self.unknown = 0
        first = self._table.null_context()
        if "<s>" in self.vocabulary:
            first = self._table.begin(self.vocabulary["<s>"])
        self._states = [first]
        self._indices = {first: 0}
        self._end = self.vocabulary.get("</s>", 0)
        self._cache = np.zeros(_CACHE_SIZE, CACHE_ENTRY)  # pages that are never touched take no memory
        self._cells = self._cache.view(np.int64).data
        """The cache as numbers: of each entry the key, and all else as one."""
        self._lock = Lock()
        """Threads call at any time: a state gets one index, a cache position one entry."""
        self.n_cached = 0
        """Pairs of state and word in the cache."""
        self._callback = _CALL(self._answer)  # kept alive here, as native code only has its address

    @cached_property
    def vocabulary(self) -> Mapping[str, int]:
        return {word: i for i, word in enumerate(self._table.words)}

    def start(self, n: int) -> Tensor:
        return torch.zeros(n, dtype=torch.int64)

    def null_context(self, n: int) -> Tensor:
        with self._lock:
            return torch.full((n,), self._index_of(self._table.null_context()))

    def score(self, states: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if tokens is None:
            every = range(self.n_tokens)
            rows = [[self._follow(state, word)[0] for word in every] for state in states.tolist()]
            return torch.tensor(rows, device=states.device).view(len(states), self.n_tokens), states
        found = [self._follow(*pair) for pair in zip(states.tolist(), tokens.tolist(), strict=True)]
        scores = torch.tensor([score for score, _ in found], device=states.device)
        return scores, torch.tensor([after for _, after in found], dtype=torch.int64, device=states.device)

    def finish(self, states: Tensor) -> Tensor:
        scores = [self._follow(state, self._end)[0] for state in states.tolist()]
        return torch.tensor(scores, device=states.device)

    def automaton(self) -> Automaton:
        """Return the model as a `CallbackLm`; no word scores above 0."""
        n_words = self.n_tokens
        address = ctypes.cast(self._callback, ctypes.c_void_p).value
        assert address is not None
        return Automaton(
            ids=np.arange(n_words, dtype=np.int64),
            root_weights=np.zeros(n_words, np.float32),
            callback=CallbackLm(self._cache, address),
            owner=self,
        )

    def _answer(self, state: int, word: int, place: int) -> int:
        with self._lock:
            score, index = self._compute(state, self._end if word == END else word)
            entry = _ENTRY.pack(score, index)
            if self.n_cached < _CACHE_SIZE // 2:
                self._keep(((state + 1) << 32) | (word + 1), place, _CELL.unpack(entry)[0])
        bits: int = _BITS.unpack(entry)[0]
        return (bits << 32) | index

    def _keep(self, key: int, place: int, entry: int) -> None:
        """Write to the cache. The entry is complete before its key is: others read without a lock."""
        cells = self._cells
        while cells[2 * place] not in (_FREE, key):  # another thread added entries while this one waited
            place = (place + 1) & (_CACHE_SIZE - 1)
        if cells[2 * place] == _FREE:
            self.n_cached += 1
            cells[2 * place + 1] = entry
            cells[2 * place] = key

    def _follow(self, state: int, word: int) -> tuple[float, int]:
        with self._lock:
            return self._compute(state, word)

    def _compute(self, state: int, word: int) -> tuple[float, int]:
        log10, after = self._table.follow(self._states[state], word)
        return log10 * _LN10, self._index_of(after)

    def _index_of(self, state: _State) -> int:
        index = self._indices.setdefault(state, len(self._states))
        if index == len(self._states):
            self._states.append(state)
        return index
