"""N-gram models of any order, with KenLM's scores.

ARPA files and KenLM's tries become tries of packed bits in a safetensors file, which is mapped into memory
and cached while the source has the same path, size and modification time.

A path from the root spells an n-gram from its first word. A state is the node of the longest known context;
n-grams of the highest order are no nodes. Node 0 is the root; then follow the unigrams, and order by order,
children of one node ascending by word.

Records of orders 2 and above follow each other without padding, in words of 32 bits, lowest bit first:

- the last word;
- log-probability and, below the highest order, back-off: the bits of a float32, or an index into the order's
  codebook of 256 values (Federico and Bertoldi 2006);
- below the highest order and above the second, the link: the node of the longest known shorter context;
- below the highest order, the low bits of the place of the first child. `high` (n,) int64 has the first
  record of each value of the high bits (Raj and Whittaker 2003).

A last record marks the end of the children. `bounds` has the highest log-probability of each word.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from sottovoce.errors import CheckpointError, LanguageModelError, OptionError, cause_of, expecting
from sottovoce.kernels import load_kernels
from sottovoce.lm.arpa import Ngrams, NgramTable, Report, SmallInts, blocks, ignore, read_arpa, scratch
from sottovoce.lm.base import Automaton, Bools, Floats, Ints, Records, WordModel, followed
from sottovoce.lm.boosting import BackoffTable
from sottovoce.lm.kenlm import MAGIC, KenlmBinary, KenlmModel, read_kenlm_trie
from sottovoce.models.checkpoint.safetensors_file import read_safetensors, write_safetensors
from sottovoce.models.package_index import cache_root

if TYPE_CHECKING:
    import sottovoce_kernels.trie

logger = logging.getLogger(__name__)

LEAST_BYTES = 2**18
"""Smaller files are not cached."""
KIND = "sottovoce n-gram trie 1"
_HEADER = b'{"__metadata__": {"kind": "' + KIND.encode()
MISSING_UNKNOWN_LOG10 = -100.0
"""KenLM's default for files without <unk>."""
SORTED_AT_ONCE = 2**25
"""N-grams whose order fits in memory: 256 MB."""
_LN10 = np.float32(math.log(10))
_CODES = 2**8
_SAMPLE = 2**21
"""Values that stand for all in borders and codebooks."""
Arrays = dict[str, Records]


@dataclass(frozen=True, slots=True)
class PackedRecords:
    """The records of one order. n: without the last one. bits: of each field. weights, backoffs: (256,)
    codebooks, or None.
    """

    words: SmallInts
    high: Ints
    n: int
    bits: tuple[int, ...]
    weights: Floats | None
    backoffs: Floats | None

    def word(self, places: Ints) -> Ints:
        return self._field(places, 0)

    def weight(self, places: Ints) -> Floats:
        return _values(self._field(places, 1), self.weights)

    def backoff(self, places: Ints) -> Floats:
        return _values(self._field(places, 2), self.backoffs)

    def link(self, places: Ints) -> Ints:
        return self._field(places, 3) if self.bits[3] else self.word(places) + 1

    def first(self, places: Ints) -> Ints:
        """Return the places of the first children."""
        high = np.searchsorted(self.high, places, side="right") - 1
        return (high << self.bits[4]) + self._field(places, 4)

    def _field(self, places: Ints, which: int) -> Ints:
        bit = places * sum(self.bits) + sum(self.bits[:which])
        at, words = bit >> 5, self.words.view(np.uint32)
        low, high = words[at].astype(np.int64), words[at + 1].astype(np.int64)
        field: Ints = ((low | high << 32) >> (bit & 31)) & ((1 << self.bits[which]) - 1)
        return field


def _values(fields: Ints, book: Floats | None) -> Floats:
    return fields.astype(np.uint32).view(np.float32) if book is None else book[fields]


class NgramModel(WordModel):
    """A back-off n-gram model; states are (N,) int64 nodes.

    arrays, about: as `build_trie` makes them.

    Raises:
        KeyError, ValueError: missing arrays or metadata.
    """

    def __init__(self, arrays: Mapping[str, Records], about: Mapping[str, str]) -> None:
        self.about = about
        self._arrays = arrays
        self.unknown, self._begin, self._end = (int(about[name]) for name in ("unknown", "begin", "end"))
        self.records = [
            PackedRecords(
                arrays[f"words_{order}"],
                arrays[f"high_{order}"],
                n,
                tuple(bits),
                arrays.get(f"weights_{order}"),
                arrays.get(f"backoffs_{order}"),
            )
            for order, (n, *bits) in enumerate(json.loads(about["records"]), start=2)
        ]
        sizes = [len(self._roots), *(each.n for each in self.records)]
        self.starts = list(itertools.accumulate([1, *sizes[:-1]]))
        """The first node of each order, and the number of nodes."""

    @classmethod
    def load(cls, path: str | Path) -> NgramModel:
        """Load a trie, an ARPA file (.gz too) or a KenLM trie.

        Raises:
            LanguageModelError: the file cannot be read.
        """
        path = Path(path)
        if _kind(path) == "trie":
            return _opened(path)
        is_large = path.stat().st_size >= LEAST_BYTES
        cached = _cached(path) if is_large else None
        if cached is not None:
            return cached
        table = read_ngrams(path)
        try:
            arrays, about = build_trie(table)
        except LanguageModelError as error:
            raise LanguageModelError(f"{path}: {error}") from error
        if is_large:
            _put_into_cache(path, arrays, about)
        return cls(arrays, about)

    @cached_property
    def vocabulary(self) -> Mapping[str, int]:
        words = self._arrays["text"].tobytes().decode().split("\n")
        return dict(zip(words, range(len(words)), strict=True)) | {"<unk>": self.unknown}

    def check(self) -> None:
        """Check the lengths, order and ranges that a search relies on; reads the whole model.

        Raises:
            KeyError, ValueError: the first that is wrong.
        """
        n, sizes = self.n_tokens, [self.n_tokens, *(each.n for each in self.records)]
        lengths = {"root_weights": n, "root_backoff": n, "root_first": n + 1, "bounds": n}
        for order, (each, start) in enumerate(zip(self.records, self.starts[1:], strict=True), start=2):
            value_bits, low_bits, is_last = each.bits[1], each.bits[4], order == len(sizes)
            links = 0 if is_last or order == 2 else (start - 1).bit_length()
            bits = (_bits_of(n), value_bits, 0 if is_last else value_bits, links, 0 if is_last else low_bits)
            if each.bits != bits or value_bits not in (8, 32) or low_bits > 32:
                raise ValueError(f"records of order {order}: expected fields of {bits} bits, got {each.bits}")
            lengths[f"words_{order}"] = _n_words(each.n, each.bits)
            lengths[f"high_{order}"] = 1 if is_last else (sizes[order] >> low_bits) + 1
            if value_bits == 8:
                lengths |= {f"weights_{order}": _CODES} | ({} if is_last else {f"backoffs_{order}": _CODES})
        numbers = {"text": "uint8", "words": "int32", "high": "int64", "root_first": "int64"}
        for name, array in self._arrays.items():
            dtype = numbers.get(name, numbers.get(name.partition("_")[0], "float32"))
            length = len(array) if name == "text" and array.ndim else lengths.pop(name)
            if array.dtype != dtype or array.shape != (length,):
                raise ValueError(f"{name}: expected {dtype} ({length},), got {array.dtype} {array.shape}")
        if lengths:
            raise KeyError(next(iter(lengths)))
        words = list(self.vocabulary)
        if len(words) < n or _special(words[:n]) != {name: self.about[name] for name in _SPECIAL}:
            raise ValueError(f"words: expected {n} and the places of {', '.join(_SPECIAL.values())}")
        if not (self._roots < math.inf).all() or not np.isfinite(self._arrays["root_backoff"]).all():
            raise ValueError("unigrams: expected numbers, got others")
        highest = self._roots.copy()
        for level, each in enumerate(self.records):
            self._check_records(level, sizes[level], each, highest)
        if not (self._arrays["bounds"] >= highest).all():
            raise ValueError("bounds: expected at least each word's highest log-probability, got less")

    def _check_records(self, level: int, n_contexts: int, records: PackedRecords, highest: Floats) -> None:
        """Check the records below the contexts of a level; raise highest (n_tokens,) to their weights."""
        begins, end = np.zeros(records.n + 1, np.bool_), 0
        if records.high[0] or (np.diff(records.high) < 0).any():
            raise ValueError(f"high_{level + 2}: expected ascending numbers from 0, got others")
        for rows in blocks(n_contexts + 1):
            first = self._first(level, np.arange(rows.start, rows.stop))
            if first[0] < end or (np.diff(first) < 0).any() or first[-1] > records.n:
                raise ValueError(f"order {level + 2}: expected the children of contexts in order, got others")
            begins[first], end = True, int(first[-1])
        if not begins[0] or end != records.n:
            raise ValueError(f"order {level + 2}: expected {records.n} children, got {end}")
        last = -1
        for rows in blocks(records.n):
            places = np.arange(rows.start, rows.stop)
            words, weights = records.word(places), records.weight(places)
            if words.max() >= len(highest) or not ((np.diff(words, prepend=last) > 0) | begins[rows]).all():
                raise ValueError(f"order {level + 2}: expected words in order, got others")
            is_valid: Bools = weights < math.inf
            if level + 1 < len(self.records):
                is_valid &= np.isfinite(records.backoff(places))
                is_valid &= records.link(places) < self.starts[level + 1]
            if not is_valid.all():
                raise ValueError(f"order {level + 2}: expected numbers and links to shorter contexts")
            np.maximum.at(highest, words, weights)
            last = words[-1]

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "native"}

    @property
    def n_tokens(self) -> int:
        return len(self._roots)

    @property
    def _roots(self) -> Floats:
        return self._arrays["root_weights"]

    def table(self) -> BackoffTable:
        """Return the model as arcs between its nodes, for accelerators: 20 to 40 bytes an n-gram."""
        nodes, n_tokens, n_arcs = np.arange(self.starts[-1]), self.n_tokens, 0
        first, words, weights = [np.zeros_like(nodes[:1])], [nodes[:0]], [self._roots[:0]]
        for level, below in enumerate(self.records):
            start, end = self.starts[level : level + 2]
            first.append(n_arcs + self._first(level, np.arange(end - start)))
            words.append(below.word(np.arange(below.n)))
            weights.append(below.weight(np.arange(below.n)))
            n_arcs += below.n
        first.append(np.array([n_arcs]))
        counts, ids = np.diff(np.concatenate(first)), np.concatenate(words)
        contexts = nodes.repeat(counts)
        targets = np.arange(n_arcs) + n_tokens + 1
        backoff, parent = self._shorter(nodes)
        roots = np.arange(n_tokens) + 1 if self.records else np.zeros(n_tokens, np.int64)
        arcs = (np.concatenate(first), contexts * n_tokens + ids, np.concatenate(weights), targets)
        table = BackoffTable(*arcs, backoff, parent, self._roots, roots)
        is_last = targets >= len(nodes)
        _, targets[is_last] = table.follow(parent[contexts[is_last]], ids[is_last])
        return table

    def start(self, n: int) -> Ints:
        return np.full(n, self._begin + 1 if self.records else 0, np.int64)

    def null_context(self, n: int) -> Ints:
        return np.zeros(n, np.int64)

    def score(self, states: Ints, tokens: Ints | None = None) -> tuple[Floats, Ints]:
        if tokens is None:
            return self._rows(states)[0], states
        if self.native is not None:
            return followed(self.native, states, tokens)
        distinct, place = np.unique(states, return_inverse=True)
        weights, targets = self._rows(distinct)
        return weights[place, tokens], targets[place, tokens]

    def finish(self, states: Ints) -> Floats:
        """Return the log-probability (N,) of </s>; 0 for a model without it."""
        if self._end < 0:
            return np.zeros(len(states), np.float32)
        return self.score(states, np.full_like(states, self._end))[0]

    def automaton(self) -> Automaton:
        """Raises: OptionError: the kernels package is not installed."""
        if self.native is None:
            raise OptionError("the CTC search needs the native kernels (pip install ./kernels)")
        bounds, start = self._arrays["bounds"], int(self.start(1)[0])
        return Automaton(np.arange(self.n_tokens), bounds, start, trie=self.native, owner=self)

    @cached_property
    def native(self) -> sottovoce_kernels.trie.Trie | None:
        """The trie for the native library; None without the library."""
        try:
            kernels = load_kernels("trie").trie
        except ImportError:
            return None
        names = ("root_weights", "root_backoff", "root_first", "bounds")
        records = [
            kernels.Records(
                start,
                each.n,
                each.words.ctypes.data,
                each.high.ctypes.data,
                len(each.high),
                *(None if book is None else book.ctypes.data for book in (each.weights, each.backoffs)),
                each.bits,
            )
            for start, each in zip(self.starts[1:], self.records, strict=True)
        ]
        addresses = [self._arrays[name].ctypes.data for name in names]
        native: sottovoce_kernels.trie.Trie = kernels.Trie(self.n_tokens, self._end, addresses, records)
        return native

    def _rows(self, nodes: Ints) -> tuple[Floats, Ints]:
        """Return log-probabilities (N, n_tokens) of all words after nodes (N,), and the nodes there."""
        contexts, paid = [nodes], [np.zeros(len(nodes), np.float32)]
        for _ in self.records:
            backoff, shorter = self._shorter(contexts[-1])
            contexts.append(shorter)
            paid.append(paid[-1] + backoff)
        weights: Floats = self._roots + paid[-1][:, None]
        first_nodes = np.arange(self.n_tokens) + 1
        targets = np.tile(first_nodes if self.records else first_nodes * 0, (len(nodes), 1))
        for context, price in zip(reversed(contexts), reversed(paid), strict=True):
            for level, rows, places in self._levels(context):
                first = self._first(level, places)
                counts = self._first(level, places + 1) - first
                begin = (first + counts - counts.cumsum()).repeat(counts)
                row = rows.repeat(counts)
                place, below = begin + np.arange(len(row)), self.records[level]
                words = below.word(place)
                weights[row, words] = below.weight(place) + price[row]
                if level + 1 < len(self.records):
                    targets[row, words] = self.starts[level + 1] + place
        return weights, targets

    def _levels(self, nodes: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        for level, (start, end) in enumerate(itertools.pairwise(self.starts)):
            rows = np.flatnonzero((nodes >= start) & (nodes < end))
            if len(rows):
                yield level, rows, nodes[rows] - start

    def _shorter(self, nodes: Ints) -> tuple[Floats, Ints]:
        """Return the back-offs (N,) of nodes (N,), and where they lead."""
        backoffs, links = np.zeros(len(nodes), np.float32), np.zeros_like(nodes)
        for level, rows, places in self._levels(nodes):
            above = self.records[level - 1]
            backoffs[rows] = above.backoff(places) if level else self._arrays["root_backoff"][places]
            links[rows] = above.link(places) if level else 0
        return backoffs, links

    def _first(self, level: int, places: Ints) -> Ints:
        return self.records[level - 1].first(places) if level else self._arrays["root_first"][places]


def load_ngram(lm: str | Path | WordModel) -> WordModel:
    """Load a trie, an ARPA file (.gz too) or a KenLM binary; return a model as is.

    Raises:
        LanguageModelError: the file cannot be read.
    """
    if isinstance(lm, WordModel):
        return lm
    if _kind(Path(lm)) == "kenlm" and KenlmBinary(Path(lm)).is_probing:
        return KenlmModel(lm)
    return NgramModel.load(lm)


def read_ngrams(path: Path, folder: Path | None = None, report: Report = ignore) -> NgramTable:
    """Read an ARPA file (.gz too) or a KenLM trie. folder: for temporary files.

    Raises:
        LanguageModelError: the file cannot be read, or is a trie already.
    """
    kind = _kind(path)
    if kind == "trie":
        raise LanguageModelError(f"{path}: expected an ARPA file or a KenLM binary, got a .trie already")
    return read_kenlm_trie(path, folder, report) if kind == "kenlm" else read_arpa(path, folder, report)


def _kind(path: Path) -> Literal["trie", "kenlm", "arpa"]:
    with expecting(path, "a language model", LanguageModelError, (OSError,)), path.open("rb") as file:
        start = file.read(8 + len(_HEADER))
    if start[8:] == _HEADER:
        return "trie"
    return "kenlm" if start.startswith(MAGIC[:32]) else "arpa"


def _opened(path: Path) -> NgramModel:
    try:
        about, arrays = read_safetensors(path)
        model = NgramModel(arrays, about)
        model.check()
        return model
    except (OSError, CheckpointError, LookupError, TypeError, ValueError) as error:
        reason = cause_of(error) if isinstance(error, OSError) else f"a damaged one ({error})"
        raise LanguageModelError(f"{path}: expected an n-gram trie, got {reason}") from error


def ngram_folder() -> Path:
    return cache_root() / "ngrams"


def _entry(path: Path) -> Path:
    name = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return ngram_folder() / f"{name[:32]}.trie"


def _source(path: Path) -> dict[str, str]:
    status, whole = path.stat(), str(path.resolve())
    return {"path": whole, "bytes": str(status.st_size), "changed_ns": str(status.st_mtime_ns)}


def _cached(path: Path) -> NgramModel | None:
    try:
        model = _opened(_entry(path))
        return model if _source(path).items() <= model.about.items() else None
    except (OSError, LanguageModelError) as error:
        logger.debug("%s: not from the cache (%s)", path, error)
        return None


def _put_into_cache(path: Path, arrays: Arrays, about: Mapping[str, str]) -> None:
    try:
        ngram_folder().mkdir(parents=True, exist_ok=True)
        for entry in ngram_folder().glob("*"):  # of files that are gone
            with suppress(OSError, CheckpointError):
                source = read_safetensors(entry)[0].get("path", "")
                if entry.suffix != ".trie" or not Path(source).exists():
                    entry.unlink()
        write_trie(_entry(path), arrays, {**about, **_source(path)})
    except OSError as error:
        logger.debug("%s: not put into the cache (%s)", path, error)


@dataclass(slots=True)
class _Level:
    """The sorted n-grams of an order.

    keys: (n,) place of the context * n_tokens + last word. weights, backoff: natural logs. The highest order
    has no back-off and no links: (0,).
    """

    keys: Ints
    weights: Floats
    backoff: Floats
    links: Ints


def build_trie(
    table: NgramTable, *, bits: int = 32, folder: Path | None = None, report: Report = ignore
) -> tuple[Arrays, dict[str, str]]:
    """Sort and pack n-grams; return the arrays and the metadata of a file.

    bits: of log-probabilities and back-offs, 8 or 32. folder: for temporary files. Missing contexts are
    added; they score as backing off does, as in KenLM.

    Raises:
        LanguageModelError: an n-gram that stands twice.
    """
    table = _with_unknown(table)
    n_tokens = len(table.words)
    roots, *levels = _Sorter(table, folder, report).levels()
    starts = np.cumsum([1, n_tokens, *(len(level.keys) for level in levels)]).tolist()
    sizes = [n_tokens, *(len(level.keys) for level in levels)]
    firsts = [_firsts(level, n, n_tokens, folder) for level, n in zip(levels, sizes, strict=False)]
    arrays: Arrays = {
        "text": np.array(bytearray("\n".join(table.words).encode()), np.uint8),
        "root_weights": roots.weights,
        "root_backoff": roots.backoff,
        "root_first": firsts[0] if firsts else np.zeros(n_tokens + 1, np.int64),
    }
    bounds = roots.weights.copy()
    rises = max(float(table.orders[0].backoff.max()), 0.0) * math.log(10)
    bits_of = []
    for place, level in enumerate(levels):
        books = {} if bits == 32 else _quantized(level)
        first = firsts[place + 1] if place + 1 < len(levels) else None
        packed, widths = _packed(level, first, books, n_tokens, starts[place + 1] if place else 1, folder)
        arrays |= {f"{name}_{place + 2}": array for name, array in {**packed, **books}.items()}
        bits_of.append([len(level.keys), *widths])
        for rows in blocks(len(level.keys)):
            np.maximum.at(bounds, level.keys[rows] % n_tokens, level.weights[rows])
        rises += max(float(level.backoff.max(initial=0.0)), 0.0)
        report("packing", place + 1, len(levels))
    arrays["bounds"] = bounds + np.float32(rises)
    return arrays, {"kind": KIND, "records": json.dumps(bits_of)} | _special(table.words)


_SPECIAL = {"unknown": "<unk>", "begin": "<s>", "end": "</s>"}


def _special(words: Sequence[str]) -> dict[str, str]:
    """Return the ids of special words for a file's metadata; -1: none."""
    ids = {word: place for place, word in enumerate(words) if word[:1] == "<"}
    ids = {"<unk>": ids.get("<UNK>", -1)} | ids
    return {name: str(ids.get(word, -1)) for name, word in _SPECIAL.items()}


def _with_unknown(table: NgramTable) -> NgramTable:
    if {"<unk>", "<UNK>"} & set(table.words):
        return table
    roots, last = table.orders[0], len(table.words)
    unknown = Ngrams(
        words=np.append(roots.words, np.array([[last]], np.int32), axis=0),
        log10=np.append(roots.log10, np.float32(MISSING_UNKNOWN_LOG10)),
        backoff=np.append(roots.backoff, np.float32(0)),
    )
    return NgramTable([*table.words, "<unk>"], (unknown, *table.orders[1:]))


class _Sorter:
    def __init__(self, table: NgramTable, folder: Path | None, report: Report) -> None:
        self._orders = list(table.orders)
        self._n_tokens = len(table.words)
        self._folder = folder
        self._report = report
        roots, keys = table.orders[0], np.arange(len(table.words))
        self._levels = [_Level(keys, roots.log10 * _LN10, roots.backoff * _LN10, np.zeros_like(keys))]

    def levels(self) -> list[_Level]:
        while len(self._levels) < len(self._orders):
            ngrams = self._orders[len(self._levels)]
            contexts = scratch(len(ngrams.log10), np.int64, self._folder)
            missing = []
            for rows in blocks(len(contexts)):
                contexts[rows] = self._contexts(ngrams.words[rows, :-1])
                missing.append(ngrams.words[rows, :-1][contexts[rows] < 0])
                self._report(f"sorting {ngrams.words.shape[1]}-grams", rows.stop, len(contexts))
            if any(map(len, missing)):
                self._add(np.unique(np.concatenate(missing), axis=0))
            else:
                self._levels.append(self._level(ngrams, contexts))
        return self._levels

    def _add(self, contexts: SmallInts) -> None:
        self._levels.pop()
        old = self._orders[contexts.shape[1] - 1]
        self._orders[contexts.shape[1] - 1] = Ngrams(
            words=np.concatenate((old.words, contexts)),
            log10=np.concatenate((old.log10, np.full(len(contexts), np.nan, np.float32))),
            backoff=np.concatenate((old.backoff, np.zeros(len(contexts), np.float32))),
        )

    def _contexts(self, words: SmallInts) -> Ints:
        places = words[:, 0].astype(np.int64)
        for level, word in zip(self._levels[1:], words.T[1:], strict=True):
            exists = places >= 0
            places[exists] = self._find(level, places[exists], word[exists])
        return places

    def _find(self, level: _Level, contexts: Ints, words: SmallInts | Ints) -> Ints:
        if not len(level.keys):
            return np.full(len(contexts), -1)
        wanted = contexts * self._n_tokens + words
        order = wanted.argsort()  # a sorted search is kind to the cache
        places = np.empty(len(wanted), np.int64)
        places[order] = np.searchsorted(level.keys, wanted[order])
        places.clip(max=len(level.keys) - 1, out=places)
        return np.where(level.keys[places] == wanted, places, -1)

    def _level(self, ngrams: Ngrams, contexts: Ints) -> _Level:
        n, order = ngrams.words.shape
        for rows in blocks(n):
            contexts[rows] = contexts[rows] * self._n_tokens + ngrams.words[rows, -1]
        sorting = _sorting(contexts, self._folder)
        n_inner = 0 if order == len(self._orders) else n
        keys, links = scratch(n, np.int64, self._folder), scratch(n_inner, np.int64, self._folder)
        weights, backoff = (scratch(size, np.float32, self._folder) for size in (n, n_inner))
        last = -1
        for rows in blocks(n):
            chosen = sorting[rows]
            block = contexts[chosen]
            if last == block[0] or (block[1:] == block[:-1]).any():
                raise LanguageModelError(f"expected each {order}-gram once, got one twice")
            last = int(block[-1])
            keys[rows] = block
            weights[rows] = ngrams.log10[chosen] * _LN10
            if n_inner:
                backoff[rows] = ngrams.backoff[chosen] * _LN10
                self._link(block, weights[rows], links[rows])
        return _Level(keys, weights, backoff, links)

    def _link(self, keys: Ints, weights: Floats, links: Ints) -> None:
        """Fill in links (n,), and weights (n,) that are NaN."""
        contexts, words = np.divmod(keys, self._n_tokens)
        above = self._levels[-1]
        backed_off, links[:] = self._follow(above.links[contexts], words)
        absent = np.isnan(weights)
        weights[absent] = (above.backoff[contexts] + backed_off)[absent]

    def _follow(self, nodes: Ints, words: Ints) -> tuple[Floats, Ints]:
        starts = np.cumsum([0, 1, *(len(level.keys) for level in self._levels)])
        nodes, targets = nodes.copy(), np.zeros(len(words), np.int64)
        weights, is_open = np.zeros(len(words), np.float32), np.ones(len(words), np.bool_)
        for place in reversed(range(len(self._levels))):
            here = np.flatnonzero(is_open & (nodes >= starts[place]))
            contexts = nodes[here] - starts[place]
            records = self._find(self._levels[place], contexts, words[here])
            exists = records >= 0
            hit, missed, above = here[exists], here[~exists], self._levels[place - 1]
            weights[hit] += self._levels[place].weights[records[exists]]
            targets[hit] = starts[place + 1] + records[exists]
            is_open[hit] = False
            weights[missed] += above.backoff[contexts[~exists]]
            nodes[missed] = above.links[contexts[~exists]]
        return weights, targets


def _sorting(keys: Ints, folder: Path | None) -> Ints:
    n_parts = -(-len(keys) // SORTED_AT_ONCE)
    if n_parts <= 1:
        return keys.argsort()
    sample = np.sort(keys[:: len(keys) // _SAMPLE + 1])
    edges = [0, *(int(sample[len(sample) * part // n_parts]) for part in range(1, n_parts)), 2**63 - 1]
    order, n_sorted = scratch(len(keys), np.int64, folder), 0
    for low, high in itertools.pairwise(edges):
        parts = [
            rows.start + np.flatnonzero((keys[rows] >= low) & (keys[rows] < high))
            for rows in blocks(len(keys))
        ]
        part = np.concatenate(parts)
        order[n_sorted : n_sorted + len(part)] = part[keys[part].argsort()]
        n_sorted += len(part)
    return order


def _firsts(level: _Level, n_contexts: int, n_tokens: int, folder: Path | None) -> Ints:
    first = scratch(n_contexts + 1, np.int64, folder)
    for rows in blocks(len(first)):
        first[rows] = np.searchsorted(level.keys, np.arange(rows.start, rows.stop) * n_tokens)
    return first


def _quantized(level: _Level) -> dict[str, Floats]:
    books = {}
    for name, values in (("weights", level.weights), ("backoffs", level.backoff)):
        if name == "weights" or len(level.links):
            book = books[name] = _codebook(values)
            borders = (book[1:] + book[:-1]) / 2
            for rows in blocks(len(values)):
                values[rows] = book[np.searchsorted(borders, values[rows])]
    return books


def _codebook(values: Floats) -> Floats:
    """Return 256 ascending values: 0, -inf and the means of bins, which are as wide as the cube root of the
    density asks for (Panter and Dite 1951), then moved to their means (Lloyd 1982).
    """
    sample = np.sort(values[:: len(values) // _SAMPLE + 1])
    exact = [value for value in (-np.inf, 0.0) if (sample == value).any()]
    rest = sample[~np.isin(sample, exact)].astype(np.float64)
    n_free = _CODES - len(exact)
    means = np.unique(rest)
    if len(means) > n_free:
        sums = np.concatenate(([0.0], rest.cumsum()))
        density, borders = np.histogram(rest, n_free)
        widths = np.concatenate(([0.0], np.cbrt(density).cumsum()))
        borders = np.interp(np.linspace(0, widths[-1], n_free + 1), widths, borders)
        edges = np.concatenate(([0], np.searchsorted(rest, borders[1:-1]), [len(rest)]))
        for _ in range(20):
            counts = np.diff(edges)
            means = np.diff(sums[edges])[counts > 0] / counts[counts > 0]
            inner = np.searchsorted(rest, (means[1:] + means[:-1]) / 2)
            edges = np.concatenate(([0], inner, [len(rest)]))
    book = np.unique(np.concatenate((exact, means)).astype(np.float32))
    return np.pad(book, (0, _CODES - len(book)), mode="edge") if len(book) else np.zeros(_CODES, np.float32)


def _packed(
    level: _Level,
    first: Ints | None,
    books: Mapping[str, Floats],
    n_tokens: int,
    n_nodes: int,
    folder: Path | None,
) -> tuple[Arrays, list[int]]:
    """Pack the records of a level; return them and their fields' bits.

    first: places of the first children and their end, or None. n_nodes: of shorter contexts; 1: no links.
    """
    n = len(level.keys)
    value_bits = 8 if books else 32
    widths = [_bits_of(n_tokens), value_bits, 0, 0, 0]
    high: Ints = np.zeros(1, np.int64)
    if first is not None:
        n_children = int(first[-1])
        low_bits = min(range(33), key=lambda bits: n * bits + 64 * (n_children >> bits))
        widths[2:] = [value_bits, (n_nodes - 1).bit_length(), low_bits]
        high = np.searchsorted(first, np.arange((n_children >> low_bits) + 1) << low_bits)
    words = scratch(_n_words(n, widths), np.int32, folder)
    words[-3:] = 0
    packed = words.view(np.uint8)
    for rows in blocks(n + 1):
        inside = slice(rows.start, min(rows.stop, n))
        columns = [level.keys[inside] % n_tokens, _codes(level.weights[inside], books.get("weights"))]
        if first is not None:
            columns += [_codes(level.backoff[inside], books.get("backoffs")), level.links[inside]]
            columns.append(first[rows] & ((1 << widths[4]) - 1))
        block = _bits(columns, widths, rows.stop - rows.start)
        start = rows.start * sum(widths) // 8
        packed[start : start + len(block)] = block
    return {"words": words, "high": high}, widths


def _bits_of(n_tokens: int) -> int:
    return max((n_tokens - 1).bit_length(), 1)


def _n_words(n: int, widths: Sequence[int]) -> int:
    """Return the words of 32 bits of n records and the end, two more for reads of 64 bits."""
    return ((n + 1) * sum(widths) + 7) // 8 // 4 + 3


def _codes(values: Floats, book: Floats | None) -> Ints:
    if book is None:
        return values.view(np.uint32).astype(np.int64)
    return np.searchsorted(book, values)


def _bits(columns: Sequence[Ints], widths: Sequence[int], n: int) -> npt.NDArray[np.uint8]:
    """Pack columns (n,) of widths in bits, lowest bit first; missing values are 0."""
    spread = np.zeros((n, sum(widths)), np.uint8)
    place = 0
    for column, width in zip(columns, widths, strict=False):  # the highest order has two columns
        if width:
            values = column.astype("<i8").view(np.uint8).reshape(-1, 8)
            bits = np.unpackbits(values, axis=1, count=width, bitorder="little")
            spread[: len(bits), place : place + width] = bits
        place += width
    return np.packbits(spread.ravel(), bitorder="little")


def write_trie(path: Path, arrays: Arrays, about: Mapping[str, str]) -> None:
    """Write a safetensors file in which the arrays are aligned. Raises: OSError."""
    placed = sorted(arrays, key=lambda name: -arrays[name].itemsize)
    write_safetensors(path, {name: arrays[name] for name in placed}, about)
