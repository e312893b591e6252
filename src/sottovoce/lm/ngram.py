"""N-gram language models of any order, batched, on any device; behind `lm.base.LanguageModel`.

Memory: 20 bytes per n-gram of the highest order (key, weight, next state) and 32 per lower one (the
back-off and its node besides), plus 4 per (node, token) pair where the model is small enough for a
spelled-out table (`lm.table.DENSE_ENTRIES`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.errors import LanguageModelError
from sottovoce.lm.arpa import ArpaFile, ArpaNgrams, read_arpa
from sottovoce.lm.base import Automaton
from sottovoce.lm.flat import automaton_of
from sottovoce.lm.ngram_cache import LEAST_BYTES, CachedNgrams, read_ngrams, write_ngrams
from sottovoce.lm.table import BackoffTable, backoff_table
from sottovoce.text.normalize import composed, indexed_by_form

_LN10 = math.log(10)
MISSING_UNKNOWN_LOG10 = -100.0
"""log10 probability of unknown words where a file has no <unk>: KenLM's default."""

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class NgramModel:
    """A back-off n-gram model; its tokens are the words of its vocabulary.

    States are (N,) int64: the node of the longest context that the model has. Words are looked up as
    they are written, else in an equivalent Unicode form: a caller that wants another case folds it first.
    Unknown words take the id of <unk>.
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
        """Read an ARPA file, plain or .gz; a large one that was read before is mapped from the cache.

        Raises: LanguageModelError for a file that cannot be read; see `read_arpa`.
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
            table = _Builder(file, n_tokens).table()
        except _MissingContextError:
            table = _Builder(_with_contexts(file), n_tokens).table()
        return cls(vocabulary, table, len(file.orders))

    @property
    def n_tokens(self) -> int:
        return self._table.n_tokens

    @property
    def stays_on_device(self) -> bool:
        return True

    @property
    def n_bytes(self) -> int:
        """Memory of its tensors."""
        return self._table.n_bytes

    def ids(self, words: Sequence[str]) -> list[int]:
        """Return ids of words, in any Unicode form; unknown ones get that of <unk>."""
        found = (self._id(word) for word in words)
        return [self.unknown if each is None else each for each in found]

    def __contains__(self, word: str) -> bool:
        return self._id(word) is not None

    @cached_property
    def _by_form(self) -> Mapping[str, str]:
        return indexed_by_form(self.vocabulary)

    def _id(self, word: str) -> int | None:
        """Return the id of a word, or of its other Unicode form; None if the model holds neither."""
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
        """Make states (n,) without any word before, <s> neither."""
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

    def select(self, states: Tensor, rows: Tensor) -> Tensor:
        return states[rows]

    def automaton(self) -> Automaton:
        """Return the model as arrays, for compiled searches."""
        parent = self._table.parent
        return automaton_of(self._table, self.finish(torch.arange(len(parent), device=parent.device)))


def _with_oov_word(vocabulary: dict[str, int]) -> dict[str, int]:
    """Name the out-of-vocabulary word <unk>; where a file has none it comes after all others."""
    for name in ("<UNK>", "<unk>"):
        if name in vocabulary:
            vocabulary["<unk>"] = vocabulary[name]
    vocabulary.setdefault("<unk>", len(vocabulary))
    return vocabulary


class _MissingContextError(Exception):
    """The context of an n-gram is no n-gram itself."""


def _with_contexts(file: ArpaFile) -> ArpaFile:
    """Add contexts that are missing in a pruned file; they score what backing off gives, as in KenLM."""
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


class _Builder:
    """Numbers the contexts of an ARPA file as nodes and links them to their shorter contexts.

    Node 0 is the empty context, nodes 1 … those of the unigrams, then order by order; n-grams of the
    highest order are arcs without a node.
    """

    def __init__(self, file: ArpaFile, n_tokens: int) -> None:
        self._n_tokens = n_tokens
        first = file.orders[0]
        n_words = len(first.words)
        self._root_weights = np.full(n_tokens, MISSING_UNKNOWN_LOG10, dtype=np.float32)
        self._root_weights[first.words[:, 0]] = first.log10
        has_nodes = len(file.orders) > 1
        self._root_targets: Ids = np.zeros(n_tokens, dtype=np.int64)
        if has_nodes:
            self._root_targets[first.words[:, 0]] = first.words[:, 0] + 1
        self._backoff: Floats = np.concatenate((np.zeros(1, np.float32), first.backoff))
        self._parent: Ids = np.zeros(n_words + 1, dtype=np.int64)
        self._keys: Ids = np.zeros(0, dtype=np.int64)
        self._weights: Floats = np.zeros(0, dtype=np.float32)
        self._targets: Ids = np.zeros(0, dtype=np.int64)
        for order, ngrams in enumerate(file.orders[1:], start=2):
            self._add(ngrams.words, ngrams.log10, ngrams.backoff, is_last=order == len(file.orders))

    def table(self) -> BackoffTable:
        return backoff_table(
            torch.from_numpy(self._keys),
            torch.from_numpy(self._weights) * _LN10,
            torch.from_numpy(self._targets),
            root=(torch.from_numpy(self._root_weights) * _LN10, torch.from_numpy(self._root_targets)),
            backoff=torch.from_numpy(self._backoff) * _LN10,
            parent=torch.from_numpy(self._parent),
        )

    def _add(self, words: Ids, log10: Floats, backoff: Floats, *, is_last: bool) -> None:
        context, last = self._contexts(words[:, :-1]), words[:, -1]
        keys = context * self._n_tokens + last
        if len(np.unique(keys)) < len(keys):
            raise LanguageModelError(f"ARPA file: expected each {words.shape[1]}-gram once, got one twice")
        implied = np.isnan(log10)
        if implied.any():
            log10 = log10.copy()
            log10[implied] = self._backed_off(context[implied], last[implied])
        shorter = self._follow(self._parent[context], last)
        targets = shorter
        if not is_last:
            targets = len(self._parent) + np.arange(len(words))
            self._parent = np.concatenate((self._parent, shorter))
            self._backoff = np.concatenate((self._backoff, backoff))
        self._insert(keys, log10, targets)

    def _insert(self, keys: Ids, weights: Floats, targets: Ids) -> None:
        joined = np.concatenate((self._keys, keys))
        order = np.argsort(joined, kind="stable")
        self._keys = joined[order]
        self._weights = np.concatenate((self._weights, weights))[order]
        self._targets = np.concatenate((self._targets, targets))[order]

    def _find(self, nodes: Ids, words: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        wanted = nodes * self._n_tokens + words
        place = np.searchsorted(self._keys, wanted).clip(max=max(len(self._keys) - 1, 0))
        if not len(self._keys):
            return np.zeros_like(wanted), np.zeros(len(wanted), dtype=np.bool_)
        return place, self._keys[place] == wanted

    def _contexts(self, words: Ids) -> Ids:
        """Nodes of contexts (n, k)."""
        nodes = words[:, 0] + 1
        for i in range(1, words.shape[1]):
            place, found = self._find(nodes, words[:, i])
            if not found.all():
                raise _MissingContextError
            nodes = self._targets[place]
        return nodes

    def _backed_off(self, nodes: Ids, words: Ids) -> Floats:
        """log10 of words after nodes that have no arc for them."""
        total = self._backoff[nodes]
        nodes, open_ = self._parent[nodes], np.ones(len(words), dtype=np.bool_)
        while open_.any():
            is_root = open_ & (nodes == 0)
            total = np.where(is_root, total + self._root_weights[words], total)
            open_ &= ~is_root
            place, found = self._find(nodes, words)
            found &= open_
            if found.any():
                total = np.where(found, total + self._weights[place], total)
            open_ &= ~found
            total = np.where(open_, total + self._backoff[nodes], total)
            nodes = np.where(open_, self._parent[nodes], nodes)
        return total.astype(np.float32)

    def _follow(self, nodes: Ids, words: Ids) -> Ids:
        """Nodes of the longest known suffixes of the contexts plus a word each."""
        result = self._root_targets[words]
        open_ = nodes > 0
        while open_.any():
            place, found = self._find(nodes, words)
            found &= open_
            if found.any():
                result = np.where(found, self._targets[place], result)
            nodes = self._parent[nodes]
            open_ = open_ & ~found & (nodes > 0)
        return result
