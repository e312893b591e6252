"""Phrases that count as whole words only, over tokens that carry the space before a word themselves.

A token of Whisper begins a word by its leading space, or ends one by a full stop; a word piece of a CTC model
begins one by its mark. So what lies between words is no token; it is score silently before and after such
tokens.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sottovoce.lm.base import Automaton
from sottovoce.lm.boosting import Phrase, PhraseBooster

_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "IDEOGRAPHIC")
"""Scripts that write no spaces, by the beginnings of their characters' names: each character stands alone."""


class Edges(NamedTuple):
    """Which tokens (n_tokens,) bool begin with, and which end with, a character outside words."""

    before: Tensor
    after: Tensor

    @classmethod
    def of(cls, texts: Sequence[str]) -> Edges:
        """Make the edges of all tokens from their texts; pieces of characters ("\\ufffd") count as
        letters.
        """
        before = [not text or not _is_inside(text[0]) for text in texts]
        after = [not text or not _is_inside(text[-1]) for text in texts]
        return cls(torch.tensor(before), torch.tensor(after))


def _is_inside(character: str) -> bool:
    if character == "\ufffd":
        return True
    is_letter = character.isalnum() or unicodedata.category(character).startswith("M")
    return is_letter and not unicodedata.name(character, "").startswith(_UNSPACED)


class WholeWordBooster:
    """A `PhraseBooster` of whole words; states are (N,) int64: its node, and beyond them those after a word.

    phrases: over tokens below len(edges.before).
    Raises: LanguageModelError as `PhraseBooster`.
    """

    def __init__(self, phrases: Iterable[Phrase], edges: Edges) -> None:
        self._edges = edges
        self._boundary = len(edges.before)
        ends, begins = edges.after.tolist(), edges.before.tolist()
        apart = [
            Phrase(_with_boundaries(phrase.tokens, ends, begins, self._boundary), phrase.weight)
            for phrase in phrases
        ]
        self._inside = PhraseBooster(apart, self._boundary + 1, boundary=self._boundary)

    @property
    def n_tokens(self) -> int:
        return self._boundary

    def to(self, device: torch.device) -> WholeWordBooster:
        moved = object.__new__(WholeWordBooster)
        moved._edges = Edges(self._edges.before.to(device), self._edges.after.to(device))
        moved._boundary, moved._inside = self._boundary, self._inside.to(device)
        return moved

    def automaton(self) -> Automaton | None:
        """Return the model as arrays, for compiled searches; None where tokens end words by themselves."""
        if bool(self._edges.after.any()):
            return None
        begins = self._edges.before.cpu().numpy()
        ids = np.arange(self.n_tokens)
        return self._inside.automaton()._replace(ids=ids, silent=self._boundary, begins=begins)

    def start(self, n: int) -> Tensor:
        return self._inside.start(n)

    def score(self, states: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        ended, nodes = self._after_word(states)
        gained, next_nodes = self._between(nodes, states < self._inside.n_nodes)
        if tokens is None:
            plain = self._inside.score(nodes)[0][:, :-1]
            apart = self._inside.score(next_nodes)[0][:, :-1] + gained[:, None]
            return torch.where(self._edges.before, apart, plain) + ended[:, None], states
        is_apart = self._edges.before[tokens]
        score, nodes = self._inside.score(torch.where(is_apart, next_nodes, nodes), tokens)
        total = score + ended + gained.masked_fill(~is_apart, 0.0)
        return total, nodes + self._inside.n_nodes * self._edges.after[tokens]

    def finish(self, states: Tensor) -> Tensor:
        """Return the score (N,) that takes back the boost of unfinished phrases."""
        ended, nodes = self._after_word(states)
        return ended + self._inside.finish(nodes)

    def select(self, states: Tensor, rows: Tensor) -> Tensor:
        return states[rows]

    def _after_word(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Score the word boundary where the last token ended with it."""
        n_nodes = self._inside.n_nodes
        return self._between(states % n_nodes, states >= n_nodes)

    def _between(self, nodes: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        """Score the word boundary at rows `where` (N,) bool: (N,), and the nodes after it."""
        gained, moved = self._inside.end_word(nodes)
        return gained.masked_fill(~where, 0.0), torch.where(where, moved, nodes)


def _with_boundaries(
    tokens: Sequence[int], ends: Sequence[bool], begins: Sequence[bool], boundary: int
) -> tuple[int, ...]:
    """Tokens of a phrase with one boundary between words. ends, begins: of every token, edges of words."""
    found = list(tokens[:1])
    for last, token in itertools.pairwise(tokens):
        found += [boundary, token] if ends[last] or begins[token] else [token]
    return tuple(found)
