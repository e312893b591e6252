"""Phrase boosting: hotwords as an Aho-Corasick tree over tokens, behind `lm.base.LanguageModel`.

A weight is added for every token of a phrase as it is being spelled, so that short and long phrases get the
same boost at every step of a search, and all of it is subtracted again when the phrase is not completed. An
occurrence of a phrase thus adds its weight times its tokens, once. (Aho and Corasick 1975 for the tree; k2's
and WeNet's context graphs and NeMo's phrase boosting count by tokens too.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from sottovoce.errors import LanguageModelError, cause_of
from sottovoce.lm.base import Automaton
from sottovoce.lm.flat import automaton_of
from sottovoce.lm.table import BackoffTable, backoff_table


@dataclass(frozen=True, slots=True)
class Phrase:
    """A phrase to boost: its tokens, and what each of them adds (natural log; may be negative).

    Raises: LanguageModelError for a phrase without tokens.
    """

    tokens: tuple[int, ...]
    weight: float

    def __post_init__(self) -> None:
        if not self.tokens:
            raise LanguageModelError("phrase: expected at least one token, got an empty phrase")


@dataclass(slots=True)
class _Node:
    """A node of the tree. potential: the largest boost that a phrase through here has got so far."""

    children: dict[int, int] = field(default_factory=dict)
    potential: float = 0.0
    total: float = 0.0
    parent: int = 0


class PhraseBooster:
    """Boosts phrases among n_tokens tokens; states are nodes (N,) int64.

    boundary: a token that separates words. Phrases then count as whole words only: what comes before
    and after must be a boundary or the end of the utterance. Boundaries inside a phrase add nothing.
    Raises: LanguageModelError for a token that is out of range.
    """

    def __init__(self, phrases: Iterable[Phrase], n_tokens: int, *, boundary: int | None = None) -> None:
        self._boundary = boundary
        nodes = _tree(phrases, n_tokens, boundary)
        order = _linked(nodes)
        self._table = _table(nodes, order, n_tokens)
        self._potential = torch.tensor([node.potential for node in nodes])
        self._start = 0 if boundary is None else int(self._table.root_targets[boundary])

    @property
    def n_tokens(self) -> int:
        return self._table.n_tokens

    @property
    def n_nodes(self) -> int:
        return len(self._potential)

    @property
    def stays_on_device(self) -> bool:
        return True

    def to(self, device: torch.device) -> PhraseBooster:
        moved = object.__new__(PhraseBooster)
        moved._boundary, moved._start = self._boundary, self._start
        moved._table, moved._potential = self._table.to(device), self._potential.to(device)
        return moved

    def start(self, n: int) -> Tensor:
        return torch.full((n,), self._start, device=self._potential.device)

    def score(self, states: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if tokens is None:
            return self._table.rows(states)[0], states
        return self._table.follow(states, tokens)

    def finish(self, states: Tensor) -> Tensor:
        """Return the score (N,) that takes back the boost of unfinished phrases; the end is a boundary."""
        if self._boundary is None:
            return -self._potential[states]
        score, ended = self._table.follow(states, torch.full_like(states, self._boundary))
        return score - self._potential[ended]

    def select(self, states: Tensor, rows: Tensor) -> Tensor:
        return states[rows]

    def automaton(self) -> Automaton:
        """Return the tree as arrays, for compiled searches."""
        nodes = torch.arange(self.n_nodes, device=self._potential.device)
        return automaton_of(self._table, self.finish(nodes))


def _tree(phrases: Iterable[Phrase], n_tokens: int, boundary: int | None) -> list[_Node]:
    nodes = [_Node()]
    around = () if boundary is None else (boundary,)
    for phrase in phrases:
        if not 0 <= min(phrase.tokens) <= max(phrase.tokens) < n_tokens:
            raise LanguageModelError(f"phrase: expected tokens from 0 to {n_tokens - 1}, got {phrase.tokens}")
        at = 0
        tokens = (*around, *phrase.tokens, *around)
        n_counted = 0
        for depth, token in enumerate(tokens, start=1):
            if token not in nodes[at].children:
                nodes[at].children[token] = len(nodes)
                nodes.append(_Node())
            at = nodes[at].children[token]
            n_counted += token != boundary  # boundaries add nothing: every word begins with one
            if depth < len(tokens):
                nodes[at].potential = max(nodes[at].potential, phrase.weight * n_counted)
        nodes[at].total += phrase.weight * n_counted
    return nodes


def _linked(nodes: list[_Node]) -> list[int]:
    """Link every node to its longest suffix, breadth first; returns the nodes in that order."""
    order: list[int] = []
    queue = deque([0])
    while queue:
        at = queue.popleft()
        order.append(at)
        for token, child in nodes[at].children.items():
            suffix = nodes[at].parent
            while at and suffix and token not in nodes[suffix].children:
                suffix = nodes[suffix].parent
            nodes[child].parent = nodes[suffix].children.get(token, 0) if at else 0
            nodes[child].total += nodes[nodes[child].parent].total
            queue.append(child)
    return order


def _table(nodes: list[_Node], order: Sequence[int], n_tokens: int) -> BackoffTable:
    """An arc earns the phrases that it completes and the change of potential."""
    keys, weights, targets = [], [], []
    root_weights, root_targets = torch.zeros(n_tokens), torch.zeros(n_tokens, dtype=torch.int64)
    for at in order:
        for token, child in nodes[at].children.items():
            weight = nodes[child].total + nodes[child].potential - nodes[at].potential
            if at == 0:
                root_weights[token], root_targets[token] = weight, child
                continue
            keys.append(at * n_tokens + token)
            weights.append(weight)
            targets.append(child)
    parent = [node.parent for node in nodes]
    lost = [nodes[node.parent].potential - node.potential for node in nodes]
    return backoff_table(
        torch.tensor(keys, dtype=torch.int64),
        torch.tensor(weights, dtype=torch.float32),
        torch.tensor(targets, dtype=torch.int64),
        root=(root_weights, root_targets),
        backoff=torch.tensor(lost),
        parent=torch.tensor(parent, dtype=torch.int64),
    )


def read_phrases(path: str | Path, *, default_weight: float) -> list[tuple[str, float]]:
    """Read phrases of a file, one a line, with an optional weight after a tab; blank lines are skipped.

    Raises: LanguageModelError for a file that is unreadable or without phrases, and a weight that is no
    number.
    """
    phrases: list[tuple[str, float]] = []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LanguageModelError(f"{path}: expected a list of phrases, got {cause_of(error)}") from error
    for number, line in enumerate(lines, start=1):
        text, _, weight = line.partition("\t")
        if not text.strip():
            continue
        try:
            phrases.append((" ".join(text.split()), float(weight) if weight.strip() else default_weight))
        except ValueError as error:
            raise LanguageModelError(f"{path}, line {number}: expected a weight, got {weight!r}") from error
    if not phrases:
        raise LanguageModelError(f"{path}: expected at least one phrase, got none")
    return phrases
