"""The interface between searches and language models.

N-gram and neural models, phrase boosting and grammars implement it. Log-probabilities are natural logs. N
is the number of rows (hypotheses).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from ctypes import Structure
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sottovoce.text.normalize import composed, indexed_by_form

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Records = npt.NDArray[Any]
"""Arrays of named fields."""


class LanguageModel(Protocol):
    """A batched language model over n_tokens ids; the states of N hypotheses are (N,) int64.

    Searches select and reorder rows of states; larger data (a KV cache) stays in the model.
    """

    @property
    def n_tokens(self) -> int: ...

    def start(self, n: int) -> Tensor: ...

    def score(self, states: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Score the next token of every hypothesis.

        tokens None: log_probs (N, n_tokens) of every next token, and `states` unchanged. tokens (N,)
        int64: log_probs (N,) of these tokens, and the states after them.
        """
        ...

    def finish(self, states: Tensor) -> Tensor:
        """Return the log-probability (N,) of ending here."""
        ...


class CallbackLm(NamedTuple):
    """A language model that the native search calls by address, with a cache of its results.

    cache: (2 ** n,) `CACHE_ENTRY`, an open-addressing table by key (state + 1, id + 1); key 0 is free.
    address: of a C function (int64 state, int64 id, int64 place) -> int64: the score's float32 bits in the
    upper half, the next state in the lower; id `END` scores the end. It takes the GIL, and writes to the
    cache at `place`, the free entry that the caller found, or after it.
    """

    cache: Records
    address: int


CACHE_ENTRY = np.dtype([("key", np.int64), ("score", np.float32), ("target", np.int32)])
END = -1
"""The id of the end."""


class Automaton(NamedTuple):
    """A language model as arrays: weighted arcs between nodes (the states), with back-off.

    A node without an arc for an id backs off to its parent. Node 0 is the root, which has every id.

    ids: (n_tokens,) the model's ids of the caller's tokens. root_weights, root_targets: (n_ids,). start: the
    first state. first: (n_nodes + 1,) first arc of each node. keys: (n_arcs,) node * n_ids + id, ascending.
    weights (natural logs), targets: (n_arcs,). backoff, parent: (n_nodes,). ends: (n_nodes,) scores of
    ending, or None: 0. silent: id of the word boundary that is scored implicitly before each of the tokens
    `begins` (n_tokens,) bool, or None. callback, trie: scores come from calls, or from a
    `sottovoce_kernels.trie.Trie`; root_weights then bound the score of each id, and there are no other
    arrays. owner: of the memory behind these.
    """

    ids: Ints
    root_weights: Floats
    start: int = 0
    root_targets: Ints | None = None
    first: Ints | None = None
    keys: Ints | None = None
    weights: Floats | None = None
    targets: Ints | None = None
    backoff: Floats | None = None
    parent: Ints | None = None
    ends: Floats | None = None
    silent: int | None = None
    begins: Bools | None = None
    callback: CallbackLm | None = None
    trie: Structure | None = None
    owner: object = None

    def over(self, ids: Ints) -> Automaton:
        """Return the model over other tokens. ids: (n_tokens,) the token here of each of them."""
        return self._replace(ids=self.ids[ids], begins=None if self.begins is None else self.begins[ids])


class WordModel(ABC):
    """An n-gram model over a vocabulary, with the interface of `LanguageModel`.

    Words are looked up as written, else in an equivalent Unicode form; callers fold case. unknown: id of
    <unk>.
    """

    unknown: int

    @property
    @abstractmethod
    def vocabulary(self) -> Mapping[str, int]:
        """Ids by words."""

    @property
    def n_tokens(self) -> int:
        return len(self.vocabulary)

    @abstractmethod
    def start(self, n: int) -> Tensor: ...

    @abstractmethod
    def null_context(self, n: int) -> Tensor:
        """Make states (n,) without any context, not even <s>, for unigram scores."""

    @abstractmethod
    def score(self, states: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def finish(self, states: Tensor) -> Tensor: ...

    @abstractmethod
    def automaton(self) -> Automaton: ...

    def __contains__(self, word: str) -> bool:
        return self._id(word) is not None

    def ids(self, words: Sequence[str]) -> list[int]:
        found = map(self._id, words)
        return [self.unknown if each is None else each for each in found]

    @cached_property
    def _by_form(self) -> Mapping[str, str]:
        return indexed_by_form(self.vocabulary)

    def _id(self, word: str) -> int | None:
        found = self.vocabulary.get(word)
        if found is None and not word.isascii():
            normal = composed(word)
            found = self.vocabulary.get(self._by_form.get(normal, normal))
        return found
