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
from torch import Tensor

from sottovoce.text.normalize import composed, indexed_by_form

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Records = npt.NDArray[Any]


class LanguageModel(Protocol):
    """A batched language model over n_tokens ids; the states of N hypotheses are (N,) int64."""

    @property
    def n_tokens(self) -> int: ...

    def start(self, n: int) -> Tensor: ...

    def score(self, states: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Score the next token of every hypothesis.

        tokens None: log_probs (N, n_tokens) of every next token, and `states` unchanged. tokens (N,) int64:
        log_probs (N,) of these tokens, and the states after them.
        """
        ...

    def finish(self, states: Tensor) -> Tensor:
        """Return the log-probability (N,) of ending here."""
        ...


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
    def start(self, n: int) -> Tensor: ...

    @abstractmethod
    def null_context(self, n: int) -> Tensor:
        """Make states (n,) without any context, not even <s>."""

    @abstractmethod
    def score(self, states: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def finish(self, states: Tensor) -> Tensor: ...

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
