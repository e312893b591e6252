"""The tree of a lexicon's spellings as arrays, made level by level for all words at once.

Node 0 is the root, node 1 the inside of words that the lexicon does not have; the others come level by level,
those of a level in the order of their parents and tokens, so that children come after their parents and keys
are sorted. What the search asks of it, this does not know.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import LanguageModelError
from sottovoce.lm.base import Ints

ROOT = 0
UNKNOWN_NODE = 1
"""Inside a word that the lexicon does not have."""


class Spellings:
    """Words and their tokens, end to end. words: (n,) ids. tokens: (n_tokens,). lengths: (n,), a separator at
    the end not counted.

    Raises: LanguageModelError for an empty spelling, a token out of range or a separator inside.
    """

    def __init__(
        self, named: Sequence[tuple[str, Sequence[int]]], words: Ints, n_tokens: int, separator: int | None
    ) -> None:
        counts = np.fromiter((len(tokens) for _, tokens in named), np.int64, len(named))
        every = itertools.chain.from_iterable(tokens for _, tokens in named)
        self.words = words
        self.tokens: Ints = np.fromiter(every, np.int64, int(counts.sum()))
        self.first: Ints = counts.cumsum() - counts
        is_separator = self.tokens == (-1 if separator is None else separator)
        has_end = counts > 0
        has_end[has_end] = is_separator[(self.first + counts - 1)[has_end]]
        self.lengths: Ints = counts - has_end
        is_separator[(self.first + self.lengths)[has_end]] = False
        is_wrong = is_separator | (self.tokens < 0) | (self.tokens >= n_tokens)
        wrong = np.searchsorted(self.first, is_wrong.nonzero()[0], side="right") - 1
        for row in np.union1d(wrong, (self.lengths == 0).nonzero()[0])[:1]:
            name, tokens = named[row]
            _refuse(name, list(tokens)[: int(self.lengths[row])], n_tokens)


class TokenTree:
    """All spellings from one root. keys: (n_arcs,) int64 ascending: parent · n_tokens + token of each node
    from 2 on.
    """

    def __init__(self, spelled: Spellings, n_tokens: int) -> None:
        self._words = spelled.words
        at = np.zeros(len(spelled.words), np.int64)
        levels: list[Ints] = []
        self._first_of_level = [2]
        for depth in range(int(spelled.lengths.max(initial=0))):
            rows = (spelled.lengths > depth).nonzero()[0]
            keys = at[rows] * n_tokens + spelled.tokens[spelled.first[rows] + depth]
            level, place = np.unique(keys, return_inverse=True)
            at[rows] = self._first_of_level[-1] + place
            self._first_of_level.append(self._first_of_level[-1] + len(level))
            levels.append(level)
        self.keys: Ints = np.concatenate([np.zeros(0, np.int64), *levels])
        self._parents: Ints = self.keys // n_tokens
        self._ends: Ints = at

    @property
    def n_nodes(self) -> int:
        return len(self.keys) + 2

    def has_children(self) -> Tensor:
        """Return which nodes (n_nodes,) have any."""
        has = np.zeros(self.n_nodes, np.bool_)
        has[self._parents] = True
        return torch.from_numpy(has)

    def ends(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return words sorted by the node where they end, each once, and per node the first of its words and
        their count; those of a node in the order of their spellings.
        """
        pairs = self._ends * (int(self._words.max(initial=0)) + 1) + self._words
        once = np.sort(np.unique(pairs, return_index=True)[1])
        order = once[np.argsort(self._ends[once], kind="stable")]
        counts = np.bincount(self._ends[order], minlength=self.n_nodes)
        first = torch.from_numpy(counts.cumsum() - counts)
        return torch.from_numpy(self._words[order]), first, torch.from_numpy(counts)

    def best_below(self, word_scores: Tensor) -> Tensor:
        """Return the best score (n_nodes,) of the words below each node; 0 at the root.

        word_scores: (n_words,) float32.
        """
        best = np.full(self.n_nodes, -np.inf, np.float32)
        np.maximum.at(best, self._ends, word_scores.numpy()[self._words])
        for begin, end in self._levels():
            np.maximum.at(best, self._parents[begin - 2 : end - 2], best[begin:end])
        best[[ROOT, UNKNOWN_NODE]] = 0.0
        return torch.from_numpy(best)

    def _levels(self) -> Iterator[tuple[int, int]]:
        """Nodes of each level, the deepest first."""
        yield from reversed([*itertools.pairwise(self._first_of_level)])


def _refuse(name: str, tokens: list[int], n_tokens: int) -> NoReturn:
    if not tokens:
        raise LanguageModelError(f"lexicon: expected a spelling of {name!r}, got none")
    raise LanguageModelError(
        f"lexicon: expected {name!r} in tokens from 0 to {n_tokens - 1} without the separator, got {tokens}"
    )
