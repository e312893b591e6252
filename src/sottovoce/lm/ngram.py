r"""N-gram language models of any order, batched, on any device; ARPA files, plain or gzipped, with a
cache.

ARPA: a `\data\` section with counts, one section per order with lines of log10 probability, words and an
optional log10 back-off, then `\end\`. Scores equal KenLM's: a probability may be `-inf`, a missing
back-off is 0, blank lines are ignored, and of a repeated unigram the first counts (of `<unk>` the last).
Sections need no blank line between them, as in SRILM; spaces may separate fields. Other white space, such
as U+00A0 and U+0085, is part of words.

Memory: 20 bytes per n-gram of the highest order (key, weight, next state), 32 per lower one (also back-off
and its node), and 4 per (node, token) pair of a dense table (`lm.automata.DENSE_ENTRIES`).

Parsed ARPA files are cached in `ngrams`, next to the fetched models, and mapped into memory. An entry is
valid while the file's path, size and modification time match; it is written atomically, and any error
falls back to parsing. Entries of deleted files are removed when another one is written.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sottovoce.errors import LanguageModelError, cause_of
from sottovoce.lm.automata import BackoffTable, KeyTable, automaton_of, backoff_table
from sottovoce.lm.base import Automaton
from sottovoce.models.checkpoint.writing import as_os_error, whole_file
from sottovoce.models.sources.package_index import cache_root
from sottovoce.text.files import text_lines
from sottovoce.text.normalize import composed, indexed_by_form

logger = logging.getLogger(__name__)

BLANKS = " \t\r\n"
"""Separators of fields and lines; other white space may be part of a word."""
_SPECIAL = ("<s>", "</s>", "<unk>")
"""Unigrams that recipes add to files that have them."""


_FIELD = re.compile(r"[^ \t]+")


def fields_of(line: str) -> list[str]:
    return _FIELD.findall(line.strip(BLANKS))


@dataclass(frozen=True, slots=True)
class ArpaNgrams:
    """N-grams of one order: words (n, order) int64 ids, log10 probabilities and back-offs (n,)."""

    words: npt.NDArray[np.int64]
    log10: npt.NDArray[np.float32]
    backoff: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ArpaFile:
    """The vocabulary in the order of the unigrams, and the n-grams of orders 1, 2, …"""

    vocabulary: dict[str, int]
    orders: tuple[ArpaNgrams, ...]


def read_arpa(path: Path) -> ArpaFile:
    """Read an ARPA file, gzipped if the name ends in .gz.

    Raises:
        LanguageModelError: the file is unreadable, has no header, other counts than it says, bad numbers,
            or n-grams of words that are no unigrams.
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
        """Read the counts; also return the title of the next section."""
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
        """Read n-grams; also return the title of the next section."""
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


LEAST_BYTES = 2**18
"""Smaller files are parsed in some hundredths of a second."""
_FORMAT = "1"
_TENSORS = ("weights", "targets", "first", "root_weights", "root_targets", "backoff", "parent")


@dataclass(frozen=True, slots=True)
class CachedNgrams:
    """The words of an n-gram model in the order of their ids, its table, and its order."""

    words: list[str]
    table: BackoffTable
    order: int


def ngram_folder() -> Path:
    return cache_root() / "ngrams"


def read_ngrams(path: Path) -> CachedNgrams | None:
    """Map the valid cache entry of an ARPA file, or return None."""
    try:
        with safe_open(_entry(path), framework="pt") as entry:
            about = entry.metadata() or {}
            if any(about.get(name) != value for name, value in _source(path).items()):
                return None
            tensors = {name: entry.get_tensor(name) for name in entry.keys()}  # noqa: SIM118  # no mapping
        return _ngrams(tensors, about)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        logger.debug("%s: not from the cache (%s)", path, error)
        return None


def write_ngrams(path: Path, ngrams: CachedNgrams) -> None:
    """Write the cache entry of an ARPA file, if the folder is writable."""
    table = ngrams.table
    words = np.frombuffer("\n".join(ngrams.words).encode(), dtype=np.uint8)
    tensors = {name: getattr(table, name).contiguous() for name in _TENSORS}
    tensors |= {"keys": table.arcs.keys.contiguous(), "words": torch.from_numpy(words.copy())}
    try:
        about = _source(path) | {"levels": str(table.n_levels), "order": str(ngrams.order)}
        ngram_folder().mkdir(parents=True, exist_ok=True)
        _remove_orphans()
        with whole_file(_entry(path)) as unfinished, as_os_error():
            save_file(tensors, unfinished, metadata=about)
    except OSError as error:
        logger.debug("%s: not put into the cache (%s)", path, error)


def _entry(path: Path) -> Path:
    name = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return ngram_folder() / f"{name[:32]}.safetensors"


def _source(path: Path) -> dict[str, str]:
    """Return what identifies a file and its version; raise OSError if it is not readable."""
    status = path.stat()
    return {
        "format": _FORMAT,
        "path": str(path.resolve()),
        "bytes": str(status.st_size),
        "changed_ns": str(status.st_mtime_ns),
    }


def _ngrams(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> CachedNgrams:
    words = tensors["words"].numpy().tobytes().decode().split("\n")
    n_tokens, n_nodes = len(tensors["root_weights"]), len(tensors["parent"])
    table = BackoffTable(
        arcs=KeyTable.of(tensors["keys"], n_nodes, n_tokens),
        n_levels=int(about["levels"]),
        **{name: tensors[name] for name in _TENSORS},
    )
    return CachedNgrams(words, table, int(about["order"]))


def _remove_orphans() -> None:
    for entry in ngram_folder().glob("*.safetensors"):
        with suppress(OSError, SafetensorError):
            with safe_open(entry, framework="pt") as opened:
                source = (opened.metadata() or {}).get("path", "")
            if not Path(source).exists():
                entry.unlink()


_LN10 = math.log(10)
MISSING_UNKNOWN_LOG10 = -100.0
"""log10 probability of unknown words without <unk> in the file: KenLM's default."""


class NgramModel:
    """A back-off n-gram model; its tokens are the words of its vocabulary.

    States are (N,) int64: the node of the longest known context. Words are looked up as written, else in
    an equivalent Unicode form; callers fold case. Unknown words get the id of <unk>.
    """

    def __init__(self, vocabulary: Mapping[str, int], table: BackoffTable, order: int) -> None:
        self.vocabulary = vocabulary
        self.order = order
        self.unknown = vocabulary["<unk>"]
        self._table = table
        self._end = vocabulary.get("</s>")
        self._begin = 0
        if "<s>" in vocabulary:
            self._begin = int(table.root_targets[vocabulary["<s>"]])

    @classmethod
    def from_arpa(cls, path: str | Path) -> NgramModel:
        """Read an ARPA file, plain or .gz; large ones are cached.

        Raises:
            LanguageModelError: the file cannot be read; see `read_arpa`.
        """
        path = Path(path)
        cached = read_ngrams(path)
        if cached is not None:
            vocabulary = dict(zip(cached.words, range(len(cached.words)), strict=True))
            return cls(_with_oov_word(vocabulary), cached.table, cached.order)
        file = read_arpa(path)
        model = cls.from_file(file)
        if path.stat().st_size >= LEAST_BYTES:
            write_ngrams(path, CachedNgrams(list(file.vocabulary), model._table, model.order))
        return model

    @classmethod
    def from_file(cls, file: ArpaFile) -> NgramModel:
        vocabulary = _with_oov_word(dict(file.vocabulary))
        n_tokens = max(vocabulary.values()) + 1
        try:
            table = _table(file, n_tokens)
        except _MissingContextError:
            table = _table(_with_contexts(file), n_tokens)
        return cls(vocabulary, table, len(file.orders))

    @property
    def n_tokens(self) -> int:
        return self._table.n_tokens

    def ids(self, words: Sequence[str]) -> list[int]:
        """Return ids of words, in any Unicode form; unknown ones get that of <unk>."""
        found = [self.vocabulary.get(word, -1) for word in words]
        for i in [i for i, each in enumerate(found) if each < 0]:
            other = self._id(words[i])
            found[i] = self.unknown if other is None else other
        return found

    def __contains__(self, word: str) -> bool:
        return self._id(word) is not None

    @cached_property
    def _by_form(self) -> Mapping[str, str]:
        return indexed_by_form(self.vocabulary)

    def _id(self, word: str) -> int | None:
        found = self.vocabulary.get(word)
        if found is None and not word.isascii():
            normal = composed(word)
            found = self.vocabulary.get(self._by_form.get(normal, normal))
        return found

    def to(self, device: torch.device) -> NgramModel:
        return NgramModel(self.vocabulary, self._table.to(device), self.order)

    def start(self, n: int) -> Tensor:
        """Make states (n,) after <s>."""
        return torch.full((n,), self._begin, device=self._table.parent.device)

    def null_context(self, n: int) -> Tensor:
        """Make states (n,) without any context, not even <s>."""
        return torch.zeros(n, dtype=torch.int64, device=self._table.parent.device)

    def score(self, states: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if tokens is None:
            return self._table.row_weights(states), states
        return self._table.follow(states, tokens)

    def finish(self, states: Tensor) -> Tensor:
        """Return the log-probability (N,) of </s>; 0 for a model without it."""
        if self._end is None:
            return torch.zeros(states.shape, device=states.device)
        return self._table.follow(states, torch.full_like(states, self._end))[0]

    def automaton(self) -> Automaton:
        return automaton_of(self._table, end=self._end)


def _with_oov_word(vocabulary: dict[str, int]) -> dict[str, int]:
    """Name the out-of-vocabulary word <unk>; without one in the file, append it."""
    for name in ("<UNK>", "<unk>"):
        if name in vocabulary:
            vocabulary["<unk>"] = vocabulary[name]
    vocabulary.setdefault("<unk>", len(vocabulary))
    return vocabulary


class _MissingContextError(Exception):
    """An n-gram whose context is no n-gram."""


def _with_contexts(file: ArpaFile) -> ArpaFile:
    """Add missing contexts of a pruned file; they score as backing off does, as in KenLM."""
    orders = list(file.orders)
    for order in range(len(orders) - 1, 1, -1):
        shorter = orders[order - 1]
        present = {row.tobytes() for row in shorter.words}
        contexts = np.unique(orders[order].words[:, :-1], axis=0)
        missing = np.array([row.tobytes() not in present for row in contexts], dtype=np.bool_)
        n_added = int(missing.sum())
        orders[order - 1] = ArpaNgrams(
            words=np.concatenate((shorter.words, contexts[missing])),
            log10=np.concatenate((shorter.log10, np.full(n_added, np.nan, np.float32))),
            backoff=np.concatenate((shorter.backoff, np.zeros(n_added, np.float32))),
        )
    return ArpaFile(file.vocabulary, tuple(orders))


def _table(file: ArpaFile, n_tokens: int) -> BackoffTable:
    """Number the contexts of a file as nodes, and link them to their shorter contexts.

    Node 0 is the empty context, nodes 1 … are the unigrams, then order by order; n-grams of the highest
    order are arcs without a node.
    """
    unigrams = file.orders[0]
    words, n_nodes = torch.from_numpy(unigrams.words[:, 0]), len(unigrams.words) + 1
    root_weights = torch.full((n_tokens,), MISSING_UNKNOWN_LOG10)
    root_weights[words] = torch.from_numpy(unigrams.log10)
    root_targets = torch.zeros(n_tokens, dtype=torch.int64)
    if len(file.orders) > 1:
        root_targets[words] = words + 1
    nothing = torch.zeros(0, dtype=torch.int64)
    table = backoff_table(
        nothing,
        nothing.float(),
        nothing,
        root=(root_weights, root_targets),
        backoff=torch.cat((torch.zeros(1), torch.from_numpy(unigrams.backoff))),
        parent=torch.zeros(n_nodes, dtype=torch.int64),
    )
    for order, ngrams in enumerate(file.orders[1:], start=2):
        table = _with_order(table, ngrams, is_last=order == len(file.orders))
    return replace(
        table,
        weights=table.weights * _LN10,
        root_weights=table.root_weights * _LN10,
        backoff=table.backoff * _LN10,
    )


def _with_order(table: BackoffTable, ngrams: ArpaNgrams, *, is_last: bool) -> BackoffTable:
    """Add the n-grams of the next order to the table of all shorter ones; weights are log10."""
    words, weights = torch.from_numpy(ngrams.words), torch.from_numpy(ngrams.log10)
    context = _contexts(table, words[:, :-1])
    keys = context * table.n_tokens + words[:, -1]
    if len(torch.unique(keys)) < len(keys):
        raise LanguageModelError(f"ARPA file: expected each {words.shape[1]}-gram once, got one twice")
    backed_off, targets = table.follow(context, words[:, -1])
    weights = torch.where(weights.isnan(), backed_off, weights)
    parent, backoff = table.parent, table.backoff
    if not is_last:
        parent = torch.cat((parent, targets))
        backoff = torch.cat((backoff, torch.from_numpy(ngrams.backoff)))
        targets = len(table.parent) + torch.arange(len(words))
    return backoff_table(
        torch.cat((table.arcs.keys, keys)),
        torch.cat((table.weights, weights)),
        torch.cat((table.targets, targets)),
        root=(table.root_weights, table.root_targets),
        backoff=backoff,
        parent=parent,
    )


def _contexts(table: BackoffTable, words: Tensor) -> Tensor:
    """Return the nodes (n,) of contexts (n, order - 1)."""
    nodes = words[:, 0] + 1
    for word in words[:, 1:].T:
        place, found = table.arcs.find(nodes, word)
        if not bool(found.all()):
            raise _MissingContextError
        nodes = table.targets[place]
    return nodes
