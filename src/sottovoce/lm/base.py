"""The interface between searches and language models. Log-probabilities are natural logs. N is the number of
rows (hypotheses).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from ctypes import Structure
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sottovoce.text.normalize import composed, indexed_by_form

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Records = npt.NDArray[Any]


class LanguageModel(Protocol):
    """A batched language model over n_tokens ids; the states of N hypotheses are (N,) int64."""

    @property
    def n_tokens(self) -> int: ...

    def start(self, n: int) -> Ints: ...

    def score(self, states: Ints, tokens: Ints | None = None) -> tuple[Floats, Ints]:
        """Score the next token of every hypothesis.

        tokens None: log_probs (N, n_tokens) float32 of every next token, and `states` unchanged. tokens (N,)
        int64: log_probs (N,) of these tokens, and the states after them.
        """
        ...

    def finish(self, states: Ints) -> Floats:
        """Return the log-probability (N,) of ending here."""
        ...


class NativeModel(Protocol):
    """A model of the native kernels, which reads and writes at addresses."""

    def follow(self, n: int, states: int, words: int, scores: int, following: int) -> None: ...


def followed(native: NativeModel, states: Ints, words: Ints) -> tuple[Floats, Ints]:
    """Return the scores (N,) of words (N,) after states (N,), and the states after them."""
    given = np.ascontiguousarray(states), np.ascontiguousarray(words)
    scores, after = np.empty(len(states), np.float32), np.empty(len(states), np.int64)
    native.follow(len(states), *(each.ctypes.data for each in (*given, scores, after)))
    return scores, after


class Automaton(NamedTuple):
    """A language model as weighted arcs between nodes (the states).

    A node without an arc for an id backs off to its parent. Node 0 is the root, which has every id.

    ids: (n_tokens,) ids of the caller's tokens. root_weights, root_targets: (n_ids,). first: (n_nodes + 1,)
    first arc of each node. keys: (n_arcs,) node * n_ids + id, ascending. weights, targets: (n_arcs,).
    backoff, parent: (n_nodes,). ends: (n_nodes,) scores of ending, or None: 0. silent: id that is scored
    before each of the tokens `begins` (n_tokens,) bool, or None. trie, probing: instead of arcs; root_weights
    then bound the score of each id. owner: of the memory.
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
    trie: Structure | None = None
    probing: int | None = None
    owner: object = None

    def over(self, ids: Ints) -> Automaton:
        """Return the model over other tokens: ids (n_tokens,) of those here."""
        return self._replace(ids=self.ids[ids], begins=None if self.begins is None else self.begins[ids])


class WordModel(ABC):
    """An n-gram model over a vocabulary: a `LanguageModel` whose words are found in any Unicode form. Callers
    fold case. unknown: id of <unk>.
    """

    unknown: int

    @property
    @abstractmethod
    def vocabulary(self) -> Mapping[str, int]: ...
    @property
    def n_tokens(self) -> int:
        return len(self.vocabulary)

    @abstractmethod
    def start(self, n: int) -> Ints: ...

    @abstractmethod
    def null_context(self, n: int) -> Ints:
        """Make states (n,) without any context, not even <s>."""

    @abstractmethod
    def score(self, states: Ints, tokens: Ints | None = None) -> tuple[Floats, Ints]: ...

    @abstractmethod
    def finish(self, states: Ints) -> Floats: ...

    @abstractmethod
    def automaton(self) -> Automaton: ...

    def __contains__(self, word: str) -> bool:
        return self._id(word) is not None

    def ids(self, words: Sequence[str]) -> list[int]:
        places = map(self._id, words)
        return [self.unknown if each is None else each for each in places]

    @cached_property
    def _by_form(self) -> Mapping[str, str]:
        return indexed_by_form(self.vocabulary)

    def _id(self, word: str) -> int | None:
        place = self.vocabulary.get(word)
        if place is None and not word.isascii():
            normal = composed(word)
            place = self.vocabulary.get(self._by_form.get(normal, normal))
        return place
