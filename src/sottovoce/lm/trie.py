"""N-gram models as a trie of packed bits in one file, which is mapped into memory.

A path from the root spells an n-gram from its first word; the nodes are the contexts, so a state is the node
of the longest known context. Numbers of nodes: 0 the root, then the unigrams in the order of the words, then
order by order, children of one node ascending by word. N-grams of the highest order are no nodes.

Records of orders 2 and above follow each other without padding, in words of 32 bits, lowest bit first:

- the last word;
- log-probability (natural) and, below the highest order, back-off: an index into the order's codebook of 256
  values (Federico and Bertoldi 2006), or the bits of a float32;
- below the highest order and above the second, the link: the node of the longest known shorter context;
- below the highest order, the low bits of the place of the first child. The high bits are not stored: `high`
  (n,) int64 has the first record of each of their values (Raj and Whittaker 2003, and KenLM's `trie -a`).

A last record without an n-gram marks the end of the children. Unigrams have float32 values and int64 places.
The file is a safetensors file; `bounds` has the highest log-probability of each word in any state.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sottovoce.errors import LanguageModelError, cause_of
from sottovoce.kernels import load_kernels
from sottovoce.lm.arpa import Ngrams, NgramTable, Report, SmallInts, blocks, ignore, scratch
from sottovoce.lm.automata import BackoffTable, KeyTable
from sottovoce.lm.base import Floats, Ints
from sottovoce.models.checkpoint.writing import whole_file

if TYPE_CHECKING:
    import sottovoce_kernels.trie

KIND = "sottovoce n-gram trie 1"
MISSING_UNKNOWN_LOG10 = -100.0
"""log10 probability of unknown words without <unk> in the file: KenLM's default."""
SORTED_AT_ONCE = 2**25
_LN10 = np.float32(math.log(10))
_CODES = 256
_SPECIALS = {"unknown": "unk", "begin": "s", "end": "/s"}
_SAMPLE = 2**21


@dataclass(frozen=True, slots=True)
class Records:
    """The packed records of one order; see the module.

    words: (n,) int32. n_records: without the last one. bits: of a word, a log-probability, a back-off, a
    link, and the low part of a place. weights, backoffs: (256,) codebooks, or None.
    """

    words: Tensor
    high: Tensor
    n_records: int
    bits: tuple[int, int, int, int, int]
    weights: Tensor | None
    backoffs: Tensor | None

    def word(self, places: Tensor) -> Tensor:
        return self._field(places, 0)

    def weight(self, places: Tensor) -> Tensor:
        return _values(self._field(places, 1), self.weights)

    def backoff(self, places: Tensor) -> Tensor:
        return _values(self._field(places, 2), self.backoffs)

    def link(self, places: Tensor) -> Tensor:
        return self._field(places, 3) if self.bits[3] else self.word(places) + 1

    def first(self, places: Tensor) -> Tensor:
        """Return the places of the first children in the records of the next order."""
        high = torch.searchsorted(self.high, places, right=True) - 1
        return (high << self.bits[4]) + self._field(places, 4)

    def _field(self, places: Tensor, which: int) -> Tensor:
        bit = places * sum(self.bits) + sum(self.bits[:which])
        at = bit >> 5
        low, high = self.words[at].long() & 0xFFFFFFFF, self.words[at + 1].long() & 0xFFFFFFFF
        return ((low | high << 32) >> (bit & 31)) & ((1 << self.bits[which]) - 1)


def _values(fields: Tensor, book: Tensor | None) -> Tensor:
    if book is not None:
        return book[fields]
    return fields.to(torch.int32, copy=True).view(torch.float32)  # keeps the lower 32 bits


@dataclass(frozen=True)
class Trie:
    """A packed n-gram model over n_tokens words, with the interface of `BackoffTable`.

    root_weights, root_backoff, bounds: (n_tokens,) float32. root_first: (n_tokens + 1,) int64, places of the
    first bigrams. records: of orders 2, 3, …. text: the words as bytes, separated by line feeds.
    """

    root_weights: Tensor
    root_backoff: Tensor
    root_first: Tensor
    bounds: Tensor
    records: tuple[Records, ...]
    text: Tensor
    unknown: int
    begin: int
    end: int

    @property
    def n_tokens(self) -> int:
        return len(self.root_weights)

    @property
    def order(self) -> int:
        return len(self.records) + 1

    @property
    def n_ngrams(self) -> int:
        return self.n_tokens + sum(records.n_records for records in self.records)

    @property
    def starts(self) -> list[int]:
        sizes = [1, *([self.n_tokens] if self.records else [])]
        sizes += [records.n_records for records in self.records[:-1]]
        return list(itertools.accumulate(sizes))

    def words(self) -> list[str]:
        return self.text.numpy().tobytes().decode().split("\n")

    def follow(self, nodes: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (N,) float32 and next nodes (N,) of tokens (N,) after nodes (N,).

        Needs the kernels package; `table` does not.
        """
        assert self.native is not None, "a trie that is searched in place"
        nodes, tokens = nodes.contiguous(), tokens.contiguous()
        scores, after = torch.empty(nodes.shape), torch.empty_like(nodes)
        addresses = (each.data_ptr() for each in (nodes, tokens, scores, after))
        self.native.follow(nodes.numel(), *addresses)
        return scores, after

    @cached_property
    def native(self) -> sottovoce_kernels.trie.Trie | None:
        """The trie as the native library reads it; None without the library."""
        try:
            kernels = load_kernels("trie").trie
        except ImportError:
            return None
        roots = (self.root_weights, self.root_backoff, self.root_first, self.bounds)
        records = [
            kernels.Records(
                start,
                each.n_records,
                each.words.data_ptr(),
                each.high.data_ptr(),
                len(each.high),
                None if each.weights is None else each.weights.data_ptr(),
                None if each.backoffs is None else each.backoffs.data_ptr(),
                each.bits,
            )
            for start, each in zip(self.starts[1:], self.records, strict=True)
        ]
        addresses = [each.data_ptr() for each in roots]
        native: sottovoce_kernels.trie.Trie = kernels.Trie(self.n_tokens, self.end, addresses, records)
        return native

    def row_weights(self, nodes: Tensor) -> Tensor:
        tokens = torch.arange(self.n_tokens)
        rows = nodes.repeat_interleave(self.n_tokens)
        return self.follow(rows, tokens.repeat(len(nodes)))[0].view(len(nodes), -1)

    def table(self) -> BackoffTable:
        starts, n_tokens = self.starts, self.n_tokens
        keys, weights, targets = [], [], []
        backoffs, parents = [torch.zeros(1)], [torch.zeros(1, dtype=torch.int64)]
        for level in range(len(self.records)):
            backoffs.append(self._backoff(level, self._all(level)))
            parents.append(self._link(level, self._all(level)))
        backoff, parent = torch.cat(backoffs), torch.cat(parents)
        table = self._table([], [], [], backoff, parent)
        for level, records in enumerate(self.records):
            every = torch.arange(records.n_records)
            first = self._first(level, torch.arange(len(self._all(level)) + 1))
            context = starts[level] + torch.arange(len(first) - 1).repeat_interleave(first.diff())
            words = records.word(every)
            keys.append(context * n_tokens + words)
            weights.append(records.weight(every))
            is_last = level + 1 == len(self.records)
            targets.append(table.follow(parent[context], words)[1] if is_last else starts[level + 1] + every)
            table = self._table(keys, weights, targets, backoff, parent)
        return table

    def _table(
        self,
        keys: list[Tensor],
        weights: list[Tensor],
        targets: list[Tensor],
        backoff: Tensor,
        parent: Tensor,
    ) -> BackoffTable:
        none = torch.zeros(0, dtype=torch.int64)
        all_keys = torch.cat([none, *keys])
        root_targets = torch.arange(self.n_tokens) + 1
        return BackoffTable(
            arcs=KeyTable.of(all_keys, len(parent), self.n_tokens),
            weights=torch.cat([none.float(), *weights]),
            targets=torch.cat([none, *targets]),
            first=torch.searchsorted(all_keys, torch.arange(len(parent) + 1) * self.n_tokens),
            root_weights=self.root_weights,
            root_targets=root_targets if self.records else torch.zeros_like(root_targets),
            backoff=backoff,
            parent=parent,
            n_levels=self.order,
        )

    def _all(self, level: int) -> Tensor:
        return torch.arange(self.records[level - 1].n_records if level else self.n_tokens)

    def _first(self, level: int, places: Tensor) -> Tensor:
        return self.records[level - 1].first(places) if level else self.root_first[places]

    def _backoff(self, level: int, places: Tensor) -> Tensor:
        return self.records[level - 1].backoff(places) if level else self.root_backoff[places]

    def _link(self, level: int, places: Tensor) -> Tensor:
        return self.records[level - 1].link(places) if level else torch.zeros_like(places)


Arrays = dict[str, npt.NDArray[np.generic]]


@dataclass(slots=True)
class _Level:
    """The n-grams of an order above 1, sorted.

    keys: (n,) place of the context * n_tokens + last word. weights, backoff: natural logs. links: (n,) as in
    the records. The highest order has no back-off and no links.
    """

    keys: Ints
    weights: Floats
    backoff: Floats | None = None
    links: Ints | None = None


def build_trie(
    table: NgramTable, *, bits: int = 32, folder: Path | None = None, report: Report = ignore
) -> tuple[Arrays, dict[str, str]]:
    """Sort and pack n-grams; return the arrays and the metadata of a file.

    bits: of log-probabilities and back-offs, 8 or 32. folder: for temporary files, if the n-grams are many.
    Contexts that are no n-grams are added; they score as backing off does, as in KenLM.

    Raises:
        LanguageModelError: an n-gram that stands twice.
    """
    table = _with_unknown(table)
    n_tokens, roots = len(table.words), table.orders[0]
    levels = _Sorter(table, folder, report).levels()
    starts = np.cumsum([1, n_tokens, *(len(level.keys) for level in levels)]).tolist()
    sizes = [n_tokens, *(len(level.keys) for level in levels[:-1])][: len(levels)]
    firsts = [_firsts(*each, n_tokens, folder) for each in zip(levels, sizes, strict=True)]
    arrays: Arrays = {
        "text": np.array(bytearray("\n".join(table.words).encode()), np.uint8),
        "root_weights": roots.log10 * _LN10,
        "root_backoff": roots.backoff * _LN10,
        "root_first": firsts[0] if firsts else np.zeros(n_tokens + 1, np.int64),
    }
    bounds = roots.log10 * _LN10
    rises = max(float(roots.backoff.max()), 0.0) * math.log(10)
    bits_of = []
    for place, level in enumerate(levels):
        books = {} if bits == 32 else _quantized(level)
        first = firsts[place + 1] if place + 1 < len(levels) else None
        packed, widths = _packed(level, first, books, n_tokens, starts[place + 1] if place else 1, folder)
        arrays |= {f"{name}_{place + 2}": array for name, array in {**packed, **books}.items()}
        bits_of.append([len(level.keys), *widths])
        for rows in blocks(len(level.keys)):
            np.maximum.at(bounds, level.keys[rows] % n_tokens, level.weights[rows])
        if level.backoff is not None:
            rises += max(float(level.backoff.max()), 0.0)
        report("packing", place + 1, len(levels))
    arrays["bounds"] = bounds + np.float32(rises)
    about = {"kind": KIND, "records": json.dumps(bits_of)}
    ids = {word: place for place, word in enumerate(table.words) if word[:1] == "<"}
    ids = {"<unk>": ids.get("<UNK>", -1)} | ids
    return arrays, about | {name: str(ids.get(f"<{word}>", -1)) for name, word in _SPECIALS.items()}


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
        self._root_weights = table.orders[0].log10 * _LN10
        self._root_backoff = table.orders[0].backoff * _LN10
        self._folder = folder
        self._report = report
        self._levels: list[_Level] = []

    def levels(self) -> list[_Level]:
        while len(self._levels) + 1 < len(self._orders):
            ngrams = self._orders[len(self._levels) + 1]
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
        """Add contexts to the n-grams of their order, without a probability, and forget its level."""
        self._levels.pop()
        old = self._orders[contexts.shape[1] - 1]
        self._orders[contexts.shape[1] - 1] = Ngrams(
            words=np.concatenate((old.words, contexts)),
            log10=np.concatenate((old.log10, np.full(len(contexts), np.nan, np.float32))),
            backoff=np.concatenate((old.backoff, np.zeros(len(contexts), np.float32))),
        )

    def _contexts(self, words: SmallInts) -> Ints:
        places = words[:, 0].astype(np.int64)
        for level, word in zip(self._levels, words.T[1:], strict=True):
            exists = places >= 0
            places[exists] = self._find(level, places[exists], word[exists])
        return places

    def _find(self, level: _Level, contexts: Ints, words: SmallInts | Ints) -> Ints:
        """Return the places of n-grams, -1 for missing ones."""
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
        keys = scratch(n, np.int64, self._folder)
        weights = scratch(n, np.float32, self._folder)
        is_last = order == len(self._orders)
        backoff = None if is_last else scratch(n, np.float32, self._folder)
        links = None if is_last else scratch(n, np.int64, self._folder)
        last = -1
        for rows in blocks(n):
            chosen = sorting[rows]
            block = contexts[chosen]
            if last == block[0] or (block[1:] == block[:-1]).any():
                raise LanguageModelError(f"expected each {order}-gram once, got one twice")
            last = int(block[-1])
            keys[rows] = block
            weights[rows] = ngrams.log10[chosen] * _LN10
            if backoff is not None and links is not None:
                backoff[rows] = ngrams.backoff[chosen] * _LN10
                self._link(block, weights[rows], links[rows])
        return _Level(keys, weights, backoff, links)

    def _link(self, keys: Ints, weights: Floats, links: Ints) -> None:
        """Fill in links (n,), and weights (n,) that are NaN."""
        contexts, words = np.divmod(keys, self._n_tokens)
        shorter: Ints = np.zeros(len(keys), np.int64)
        paid = self._root_backoff
        if self._levels and self._levels[-1].links is not None and self._levels[-1].backoff is not None:
            shorter, paid = self._levels[-1].links[contexts], self._levels[-1].backoff
        backed_off, links[:] = self._follow(shorter, words)
        absent = np.isnan(weights)
        weights[absent] = (paid[contexts] + backed_off)[absent]

    def _follow(self, nodes: Ints, words: Ints) -> tuple[Floats, Ints]:
        starts = np.cumsum([1, self._n_tokens, *(len(level.keys) for level in self._levels)])
        nodes, targets = nodes.copy(), words + 1
        weights = np.zeros(len(words), np.float32)
        is_open = np.ones(len(words), np.bool_)
        for place in reversed(range(len(self._levels))):
            here = np.flatnonzero(is_open & (nodes >= starts[place]))
            contexts = nodes[here] - starts[place]
            found = self._find(self._levels[place], contexts, words[here])
            exists = found >= 0
            hit, missed = here[exists], here[~exists]
            weights[hit] += self._levels[place].weights[found[exists]]
            targets[hit] = starts[place + 1] + found[exists]
            is_open[hit] = False
            shorter = self._levels[place - 1] if place else None
            if shorter is None or shorter.backoff is None or shorter.links is None:
                weights[missed] += self._root_backoff[contexts[~exists]]
                nodes[missed] = 0
            else:
                weights[missed] += shorter.backoff[contexts[~exists]]
                nodes[missed] = shorter.links[contexts[~exists]]
        weights[is_open] += self._root_weights[words[is_open]]
        return weights, targets


def _sorting(keys: Ints, folder: Path | None) -> Ints:
    """Return the indices that sort keys (n,), at most about `SORTED_AT_ONCE` of them at once in memory."""
    n_parts = -(-len(keys) // SORTED_AT_ONCE)
    if n_parts <= 1:
        return keys.argsort()
    sample = np.sort(keys[:: len(keys) // _SAMPLE + 1])
    edges = [0, *(int(sample[len(sample) * part // n_parts]) for part in range(1, n_parts)), 2**63 - 1]
    order, n_sorted = scratch(len(keys), np.int64, folder), 0
    for low, high in itertools.pairwise(edges):
        parts = [rows.start + _between(keys[rows], low, high) for rows in blocks(len(keys))]
        part = np.concatenate(parts)
        order[n_sorted : n_sorted + len(part)] = part[keys[part].argsort()]
        n_sorted += len(part)
    return order


def _between(keys: Ints, low: int, high: int) -> Ints:
    return np.flatnonzero((keys >= low) & (keys < high))


def _firsts(level: _Level, n_contexts: int, n_tokens: int, folder: Path | None) -> Ints:
    first = scratch(n_contexts + 1, np.int64, folder)
    for rows in blocks(len(first)):
        first[rows] = np.searchsorted(level.keys, np.arange(rows.start, rows.stop) * n_tokens)
    return first


def _quantized(level: _Level) -> dict[str, Floats]:
    """Replace values by those of codebooks, which are returned."""
    books = {"weights": _codebook(level.weights)}
    _replace(level.weights, books["weights"])
    if level.backoff is not None:
        books["backoffs"] = _codebook(level.backoff)
        _replace(level.backoff, books["backoffs"])
    return books


def _codebook(values: Floats) -> Floats:
    """Return 256 ascending values that approximate many: 0 and -inf exactly, and the means of bins.

    The bins are as wide as the cube root of the density asks for (Panter and Dite 1951), then moved to their
    means (Lloyd 1982).
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


def _replace(values: Floats, book: Floats) -> None:
    borders = (book[1:] + book[:-1]) / 2
    for rows in blocks(len(values)):
        values[rows] = book[np.searchsorted(borders, values[rows])]


def _packed(
    level: _Level,
    first: Ints | None,
    books: Mapping[str, Floats],
    n_tokens: int,
    n_nodes: int,
    folder: Path | None,
) -> tuple[Arrays, list[int]]:
    """Pack the records of a level; return them and their fields' bits.

    first: the places of the first children, and their end. n_nodes: of shorter contexts, for the links; 1: no
    links.
    """
    n = len(level.keys)
    value_bits = 8 if books else 32
    widths = [max((n_tokens - 1).bit_length(), 1), value_bits, 0, 0, 0]
    high: Ints = np.zeros(1, np.int64)
    if first is not None:
        n_children = int(first[-1])
        low_bits = min(range(33), key=lambda bits: n * bits + 64 * (n_children >> bits))
        widths[2:] = [value_bits, (n_nodes - 1).bit_length(), low_bits]
        high = np.searchsorted(first, np.arange((n_children >> low_bits) + 1) << low_bits)
    n_bytes = ((n + 1) * sum(widths) + 7) // 8
    words = scratch(n_bytes // 4 + 3, np.int32, folder)
    words[-3:] = 0
    packed = words.view(np.uint8)
    for rows in blocks(n + 1):
        inside = slice(rows.start, min(rows.stop, n))
        columns = [level.keys[inside] % n_tokens, _codes(level.weights[inside], books.get("weights"))]
        if first is not None and level.backoff is not None and level.links is not None:
            columns += [_codes(level.backoff[inside], books.get("backoffs")), level.links[inside]]
            columns.append(first[rows] & ((1 << widths[4]) - 1))
        block = _bits(columns, widths, rows.stop - rows.start)
        start = rows.start * sum(widths) // 8
        packed[start : start + len(block)] = block
    return {"words": words, "high": high}, widths


def _codes(values: Floats, book: Floats | None) -> Ints:
    if book is None:
        return values.view(np.uint32).astype(np.int64)
    return np.searchsorted(book, values)


def _bits(columns: Sequence[Ints], widths: Sequence[int], n: int) -> npt.NDArray[np.uint8]:
    """Pack columns (n,) of widths in bits, lowest bit first; missing values at the end are 0."""
    spread = np.zeros((n, sum(widths)), np.uint8)
    place = 0
    for column, width in zip(columns, widths, strict=False):  # the highest order has two columns
        values = column.astype("<i8").view(np.uint8).reshape(-1, 8)
        bits = np.unpackbits(values, axis=1, count=width, bitorder="little") if width else None
        if bits is not None:
            spread[: len(bits), place : place + width] = bits
        place += width
    return np.packbits(spread.ravel(), bitorder="little")


def write_trie(path: Path, arrays: Arrays, about: Mapping[str, str]) -> None:
    """Write a safetensors file without copying the arrays, as safetensors' own writer does.

    Raises:
        OSError: the file cannot be written.
    """
    names = {np.dtype(np.int64): "I64", np.dtype(np.float32): "F32", np.dtype(np.int32): "I32"}
    header: dict[str, object] = {"__metadata__": dict(about)}
    end = 0
    placed = sorted(arrays, key=lambda name: -arrays[name].itemsize)  # aligned
    for name in placed:
        array = arrays[name]
        span = [end, end + array.nbytes]
        header[name] = {"dtype": names.get(array.dtype, "U8"), "shape": array.shape, "data_offsets": span}
        end = span[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in placed:
            for start in range(0, len(arrays[name]), 2**22):
                file.write(np.ascontiguousarray(arrays[name][start : start + 2**22]).data)


def is_trie(path: Path) -> bool:
    """Return whether a file begins as `write_trie` writes it.

    Raises:
        LanguageModelError: the file cannot be read.
    """
    start = b'{"__metadata__": {"kind": "' + KIND.encode()
    try:
        with path.open("rb") as file:
            return file.read(8 + len(start))[8:] == start
    except OSError as error:
        raise LanguageModelError(f"{path}: expected a language model, got {cause_of(error)}") from error


def open_trie(path: Path) -> tuple[Trie, dict[str, str]]:
    """Map a file into memory; also return its metadata.

    Raises:
        LanguageModelError: the file is no trie, or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
        return trie_of(tensors, about), about
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        reason = cause_of(error) if isinstance(error, OSError) else f"a damaged one ({error})"
        raise LanguageModelError(f"{path}: expected an n-gram trie, got {reason}") from error


def trie_of(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> Trie:
    """Raises: KeyError, ValueError: tensors or metadata that are missing."""
    records = []
    for order, (n_records, *bits) in enumerate(json.loads(about["records"]), start=2):
        word, weight, backoff, link, low = bits
        arrays = tensors[f"words_{order}"], tensors[f"high_{order}"]
        weights, backoffs = (tensors.get(f"{name}_{order}") for name in ("weights", "backoffs"))
        records.append(Records(*arrays, n_records, (word, weight, backoff, link, low), weights, backoffs))
    unknown, begin, end = (int(about[name]) for name in ("unknown", "begin", "end"))
    return Trie(
        root_weights=tensors["root_weights"],
        root_backoff=tensors["root_backoff"],
        root_first=tensors["root_first"],
        bounds=tensors["bounds"],
        records=tuple(records),
        text=tensors["text"],
        unknown=unknown,
        begin=begin,
        end=end,
    )
