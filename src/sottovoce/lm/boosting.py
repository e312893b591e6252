"""Boosting of phrases: files of phrases, and an Aho-Corasick tree over tokens.

A weight is added for every token of a phrase while it is spelled, and subtracted if the phrase is not
completed, so that short and long phrases get the same boost at every step (Aho and Corasick 1975; so do k2,
WeNet and NeMo). Where tokens mark the beginning of words, the boundary between words is scored implicitly.

A file has a phrase a line, with optional weights and classes:

    Saoirse Ronan
    sottovoce<TAB>3.5
    [drugs] 1.5
    amoxicillin

A heading in brackets begins a class, with the weight of its lines. Invalid lines are skipped with a warning.
"""

from __future__ import annotations

import itertools
import logging
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from sottovoce.errors import LanguageModelError
from sottovoce.lm.base import Automaton, Bools, Doubles, Floats, Ints
from sottovoce.text.files import read_lines
from sottovoce.text.normalize import composed

logger = logging.getLogger(__name__)

_HEADING = re.compile(r"\[(?P<name>[^\[\]]+)\][ \t]*(?P<weight>\S*)")
Hotwords = str | Path | Iterable[str | tuple[str, float]] | Mapping[str, float]
"""A file, phrases, or phrases with weights."""
Used = TypeVar("Used")


class ListedPhrase(NamedTuple):
    """A phrase in NFC, its weight per token, and its position for warnings."""

    text: str
    weight: float
    place: str


def read_phrases(path: str | Path, *, default_weight: float) -> list[ListedPhrase]:
    """Read a file. Raises: LanguageModelError: it is unreadable or has no usable phrase."""
    lines = read_lines(path, "a list of phrases", LanguageModelError)
    parsed = list(_parsed(Path(path), lines, default_weight))
    phrases = [listed for listed in parsed if isinstance(listed, ListedPhrase)]
    faults = [fault for fault in parsed if isinstance(fault, str)]
    if not phrases:
        raise LanguageModelError(faults[0] if faults else f"{path}: expected at least one phrase, got none")
    for fault in faults:
        logger.warning("%s: left out", fault)
    return phrases


def listed_phrases(hotwords: Hotwords | None, *, default_weight: float) -> list[ListedPhrase]:
    """Return the phrases of a file, a list, pairs with weights, or a mapping to weights.

    Raises:
        LanguageModelError: as `read_phrases`, or other entries.
    """
    if hotwords is None:
        return []
    if isinstance(hotwords, str | Path):
        return read_phrases(hotwords, default_weight=default_weight)
    if not isinstance(hotwords, Iterable):
        raise LanguageModelError(f"hotwords: expected a file or a list of phrases, got {hotwords!r:.80}")
    weights: dict[str, float] = {}
    for entry in hotwords.items() if isinstance(hotwords, Mapping) else hotwords:
        try:
            text, weight = (entry, default_weight) if isinstance(entry, str) else entry
            weights[text] = float(weight)
            if not isinstance(text, str) or not math.isfinite(weight):
                raise ValueError
        except (TypeError, ValueError) as error:
            raise LanguageModelError(
                f"hotwords: expected phrases, or phrases with numbers, got {entry!r:.80}"
            ) from error
    return [ListedPhrase(_normal(text), weight, "hotwords") for text, weight in weights.items()]


def usable(
    phrases: Iterable[ListedPhrase], use: Callable[[ListedPhrase], Used]
) -> list[tuple[ListedPhrase, Used]]:
    """Return phrases with what `use` returns of them; its errors become warnings.

    Raises:
        LanguageModelError: no phrase is left.
    """
    used: list[tuple[ListedPhrase, Used]] = []
    faults: list[tuple[ListedPhrase, LanguageModelError]] = []
    for phrase in phrases:
        try:
            used.append((phrase, use(phrase)))
        except LanguageModelError as error:
            faults.append((phrase, error))
    if faults and not used:
        raise faults[0][1]
    for phrase, fault in faults:
        where = "" if phrase.place == "hotwords" else f"{phrase.place}: "
        logger.warning("%s%s: left out", where, fault)
    return used


def _parsed(path: Path, lines: Sequence[str], default_weight: float) -> Iterator[ListedPhrase | str]:
    of_class = default_weight
    for number, line in enumerate(lines, start=1):
        place = f"{path}, line {number}"
        heading = _HEADING.fullmatch(line.strip())
        text, _, after_tab = line.partition("\t")
        written = heading["weight"] if heading else after_tab.strip()
        weight = _weight(written, default_weight if heading else of_class)
        if weight is None:
            yield f"{place}: expected a weight, got {written!r}"
        if heading:
            of_class = default_weight if weight is None else weight
        elif text.strip() and weight is not None:
            yield ListedPhrase(_normal(text), weight, place)


def _normal(text: str) -> str:
    return " ".join(composed(text).split())


def _weight(written: str, default: float) -> float | None:
    if not written:
        return default
    try:
        weight = float(written)
    except ValueError:
        return None
    return weight if math.isfinite(weight) else None


@dataclass(frozen=True, slots=True)
class Phrase:
    """The tokens of a phrase, and the weight of each (natural log; may be negative).

    Raises:
        LanguageModelError: no tokens.
    """

    tokens: tuple[int, ...]
    weight: float

    def __post_init__(self) -> None:
        if not self.tokens:
            raise LanguageModelError("phrase: expected at least one token, got an empty phrase")


class BackoffTable(NamedTuple):
    """The arcs of an `Automaton`; see there."""

    first: Ints
    keys: Ints
    weights: Floats
    targets: Ints
    backoff: Floats
    parent: Ints
    root_weights: Floats
    root_targets: Ints

    def follow(self, nodes: Ints, tokens: Ints) -> tuple[Floats, Ints]:
        """Return weights (N,) and next nodes (N,) of tokens (N,) after nodes (N,)."""
        weight, target = np.zeros(len(nodes), np.float32), np.zeros_like(nodes)
        is_open = np.ones(len(nodes), np.bool_)
        for context in self._contexts(nodes):
            wanted = context * len(self.root_weights) + tokens
            place = np.searchsorted(self.keys, wanted).clip(max=len(self.keys) - 1)
            is_arc = (self.keys[place] == wanted) & is_open
            weight = np.where(is_arc, weight + self.weights[place], weight)
            target = np.where(is_arc, self.targets[place], target)
            is_open &= ~is_arc
            weight = np.where(is_open, weight + self.backoff[context], weight)
        weight = np.where(is_open, weight + self.root_weights[tokens], weight)
        return weight, np.where(is_open, self.root_targets[tokens], target)

    def row_weights(self, nodes: Ints) -> Floats:
        """Return the weights (N, V) of every token after nodes (N,)."""
        contexts, paid = list(self._contexts(nodes)), [np.zeros(len(nodes), np.float32)]
        for context in contexts:
            paid.append(paid[-1] + self.backoff[context])
        weight: Floats = self.root_weights + paid[-1][:, None]
        for context, price in zip(reversed(contexts), reversed(paid[:-1]), strict=True):
            first = self.first[context]
            counts = self.first[context + 1] - first
            row = np.arange(len(nodes)).repeat(counts)
            place = (first + counts - counts.cumsum()).repeat(counts) + np.arange(len(row))
            weight[row, self.keys[place] % len(self.root_weights)] = self.weights[place] + price[row]
        return weight

    def _contexts(self, nodes: Ints) -> Iterator[Ints]:
        """Yield nodes (N,), their parents, and so on, until all are the root."""
        while len(self.keys) and nodes.any():
            yield nodes
            nodes = self.parent[nodes]


class PhraseBooster:
    """Boosts phrases among n_tokens tokens; states are nodes (N,) int64.

    boundary: a token that separates words; phrases then only count as whole words, and boundaries add
    nothing.

    Raises:
        LanguageModelError: a token is out of range.
    """

    def __init__(self, phrases: Iterable[Phrase], n_tokens: int, *, boundary: int | None = None) -> None:
        tree = _PhraseTree(list(phrases), n_tokens, boundary)
        self.table = tree.table()
        self.n_tokens, self.n_nodes = n_tokens, len(tree.potential)
        self._start, self.ends = 0, -tree.potential.astype(np.float32)
        if boundary is not None:
            nodes = np.arange(self.n_nodes)
            self._start = int(self.table.root_targets[boundary])
            self.gained, self.after = self.table.follow(nodes, np.full_like(nodes, boundary))
            self.ends = self.gained + self.ends[self.after]

    def start(self, n: int) -> Ints:
        return np.full(n, self._start, np.int64)

    def score(self, states: Ints, tokens: Ints | None = None) -> tuple[Floats, Ints]:
        if tokens is None:
            return self.table.row_weights(states), states
        return self.table.follow(states, tokens)

    def finish(self, states: Ints) -> Floats:
        """Return the scores (N,) that take back unfinished phrases."""
        return self.ends[states]

    def end_word(self, states: Ints) -> tuple[Floats, Ints]:
        """Score the boundary after states (N,); also return the states after it."""
        return self.gained[states], self.after[states]

    def automaton(self) -> Automaton:
        arcs = self.table._asdict()
        return Automaton(np.arange(self.n_tokens), start=self._start, ends=self.ends, **arcs)


class _PhraseTree:
    """The phrases as a tree, numbered by depth from the root, node 0.

    keys: parent * n_tokens + token of every other node, ascending. potential: (n_nodes,) largest boost so
    far. total: of completed phrases.
    """

    def __init__(self, phrases: Sequence[Phrase], n_tokens: int, boundary: int | None) -> None:
        self._n_tokens = n_tokens
        tokens, lengths = _padded(phrases, n_tokens, boundary)
        counted = np.cumsum((tokens != boundary) if boundary is not None else (tokens >= 0), axis=1)
        earned = np.array([phrase.weight for phrase in phrases])[:, None] * counted
        at = np.zeros(len(phrases), np.int64)  # the node that each phrase has reached
        keys, potential, total, n_nodes = [np.zeros(0, np.int64)], [np.zeros(1)], [np.zeros(1)], 1
        for depth in range(tokens.shape[1]):
            goes_on = lengths > depth
            level, place = np.unique(at[goes_on] * n_tokens + tokens[goes_on, depth], return_inverse=True)
            at[goes_on] = n_nodes + place
            n_nodes += len(level)
            keys.append(level)
            is_end = lengths[goes_on] == depth + 1
            potential.append(np.zeros(len(level)))
            np.maximum.at(potential[-1], place[~is_end], earned[goes_on, depth][~is_end])
            total.append(np.zeros(len(level)))
            np.add.at(total[-1], place[is_end], earned[goes_on, depth][is_end])
        self._keys: Ints = np.concatenate(keys)
        self.potential: Doubles = np.concatenate(potential)
        self._total: Doubles = np.concatenate(total)
        ends = np.cumsum([1, *(len(level) for level in keys[1:])])
        self._levels = [np.arange(first, end) for first, end in itertools.pairwise(ends)]
        self._suffix = self._linked()

    def table(self) -> BackoffTable:
        """Make the arcs, which earn changes of potential."""
        parents, tokens = self._keys // self._n_tokens, self._keys % self._n_tokens
        weights = self._total[1:] + self.potential[1:] - self.potential[parents]
        targets, is_first = np.arange(1, len(self.potential)), parents == 0
        back_off = self._back_off()
        root_weights, root_targets = np.zeros(self._n_tokens), np.zeros(self._n_tokens, np.int64)
        root_weights[tokens[is_first]], root_targets[tokens[is_first]] = weights[is_first], targets[is_first]
        keys = self._keys[~is_first]
        arrays = (
            np.searchsorted(keys, np.arange(len(self.potential) + 1) * self._n_tokens),
            keys,
            weights[~is_first].astype(np.float32),
            targets[~is_first],
            (self.potential[back_off] - self.potential).astype(np.float32),
            back_off,
            root_weights.astype(np.float32),
            root_targets,
        )
        return BackoffTable(*arrays)

    def _back_off(self) -> Ints:
        """Return the nodes (n_nodes,) to back off to: the longest suffixes with additional arcs (the stronger
        failure function of Knuth, Morris and Pratt 1977).
        """
        parents = self._keys // self._n_tokens
        n_arcs = np.bincount(parents, minlength=len(self.potential))
        first = np.cumsum(n_arcs) - n_arcs  # keys are in the order of their nodes
        suffixes = self._suffix.copy()
        for nodes in self._levels:
            while len(nodes):
                at = suffixes[nodes]
                may_skip = (at > 0) & (n_arcs[at] <= n_arcs[nodes])
                nodes, at = nodes[may_skip], at[may_skip]
                row = np.repeat(np.arange(len(nodes)), n_arcs[at])
                arcs = np.arange(len(row)) - np.repeat(np.cumsum(n_arcs[at]) - n_arcs[at], n_arcs[at])
                tokens = self._keys[arcs + np.repeat(first[at], n_arcs[at])] % self._n_tokens
                is_new = ~self._find(nodes[row], tokens)[1]
                adds = np.bincount(row[is_new], minlength=len(nodes)) > 0
                nodes, at = nodes[~adds], at[~adds]
                suffixes[nodes] = suffixes[at]
        return suffixes

    def _linked(self) -> Ints:
        suffix = np.zeros(len(self.potential), np.int64)
        for nodes in self._levels[1:]:
            parents, tokens = self._keys[nodes - 1] // self._n_tokens, self._keys[nodes - 1] % self._n_tokens
            at, is_open = suffix[parents], np.ones(len(nodes), np.bool_)
            while is_open.any():
                child, is_found = self._find(at, tokens)
                suffix[nodes[is_open & is_found]] = child[is_open & is_found]
                is_open &= ~is_found & (at > 0)
                at = suffix[at]
            self._total[nodes] += self._total[suffix[nodes]]
        return suffix

    def _find(self, nodes: Ints, tokens: Ints) -> tuple[Ints, Bools]:
        wanted = nodes * self._n_tokens + tokens
        place = np.searchsorted(self._keys, wanted).clip(max=len(self._keys) - 1)
        return place + 1, self._keys[place] == wanted


def _padded(phrases: Sequence[Phrase], n_tokens: int, boundary: int | None) -> tuple[Ints, Ints]:
    around = () if boundary is None else (boundary,)
    rows = [(*around, *phrase.tokens, *around) for phrase in phrases]
    tokens = np.zeros((len(rows), max(map(len, rows), default=0)), np.int64)
    for row, phrase, spelled in zip(tokens, phrases, rows, strict=True):
        if not 0 <= min(phrase.tokens) <= max(phrase.tokens) < n_tokens:
            raise LanguageModelError(f"phrase: expected tokens from 0 to {n_tokens - 1}, got {phrase.tokens}")
        row[: len(spelled)] = spelled
    return tokens, np.array([len(row) for row in rows], np.int64)


_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "IDEOGRAPHIC")
"""Beginnings of the names of characters in scripts without spaces."""


class Edges(NamedTuple):
    """Which tokens (n_tokens,) bool begin, and which end, outside words."""

    before: Bools
    after: Bools

    @classmethod
    def of(cls, texts: Sequence[str]) -> Edges:
        r"""Make the edges of the texts of tokens; incomplete characters ("\ufffd") are letters."""
        before = [not text or not _is_inside(text[0]) for text in texts]
        after = [not text or not _is_inside(text[-1]) for text in texts]
        return cls(np.array(before, np.bool_), np.array(after, np.bool_))


def _is_inside(character: str) -> bool:
    if character == "\ufffd":
        return True
    is_letter = character.isalnum() or unicodedata.category(character).startswith("M")
    return is_letter and not unicodedata.name(character, "").startswith(_UNSPACED)


class WholeWordBooster:
    """A `PhraseBooster` of whole words over tokens with edges; states (N,) int64: its nodes, then those after
    a word.
    """

    def __init__(self, phrases: Iterable[Phrase], edges: Edges) -> None:
        self.edges = edges
        self.n_tokens = boundary = len(edges.before)
        ends, begins = edges.after.tolist(), edges.before.tolist()
        apart = []
        for phrase in phrases:
            tokens = list(phrase.tokens[:1])
            for last, token in itertools.pairwise(phrase.tokens):
                tokens += [boundary, token] if ends[last] or begins[token] else [token]
            apart.append(Phrase(tuple(tokens), phrase.weight))
        self.inside = PhraseBooster(apart, boundary + 1, boundary=boundary)

    def automaton(self) -> Automaton:
        """Return the model of tokens that do not end words by themselves."""
        begins, ids = self.edges.before, np.arange(self.n_tokens)
        return self.inside.automaton()._replace(ids=ids, silent=self.n_tokens, begins=begins)

    def start(self, n: int) -> Ints:
        return self.inside.start(n)

    def score(self, states: Ints, tokens: Ints | None = None) -> tuple[Floats, Ints]:
        ended, nodes = self._after_word(states)
        gained, next_nodes = self._between(nodes, states < self.inside.n_nodes)
        if tokens is None:
            plain = self.inside.score(nodes)[0][:, :-1]
            apart = self.inside.score(next_nodes)[0][:, :-1] + gained[:, None]
            return np.where(self.edges.before, apart, plain) + ended[:, None], states
        is_apart = self.edges.before[tokens]
        score, nodes = self.inside.score(np.where(is_apart, next_nodes, nodes), tokens)
        total = score + ended + np.where(is_apart, gained, np.float32(0))
        return total, nodes + self.inside.n_nodes * self.edges.after[tokens]

    def finish(self, states: Ints) -> Floats:
        ended, nodes = self._after_word(states)
        return ended + self.inside.finish(nodes)

    def _after_word(self, states: Ints) -> tuple[Floats, Ints]:
        n_nodes = self.inside.n_nodes
        return self._between(states % n_nodes, states >= n_nodes)

    def _between(self, nodes: Ints, where: Bools) -> tuple[Floats, Ints]:
        gained, moved = self.inside.end_word(nodes)
        return np.where(where, gained, np.float32(0)), np.where(where, moved, nodes)


def word_counter(score: float, *, separators: Sequence[bool], starts: Sequence[bool]) -> Automaton:
    """Make a model that adds a score for every word; nodes: the inside of a word, and between words.

    separators: (n_tokens,) tokens between words. starts: (n_tokens,) those that begin a word.
    """
    is_apart, n = np.array(separators), len(separators)
    inside, between = ((begins & ~is_apart) * np.float32(score) for begins in (np.array(starts), True))
    after = is_apart.astype(np.int64)
    return Automaton(
        np.arange(n),
        root_weights=inside,
        start=1,
        root_targets=after,
        first=np.array([0, 0, n]),
        keys=np.arange(n, 2 * n),
        weights=between,
        targets=after,
        backoff=np.zeros(2, np.float32),
        parent=np.zeros(2, np.int64),
    )
