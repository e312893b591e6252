"""A lexicon as a token tree: which words a sequence of labels can spell, in batched queries.

Any token set (characters, word pieces, phonemes) and any number of words per spelling. With a separator a
word ends at the separator; without one it may end at any token that completes a spelling.

Node 0 is the root, node 1 the inside of unknown words; the others are numbered level by level, in the
order of their parents and tokens, so that keys are sorted.
"""

from __future__ import annotations

import itertools
import logging
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import LanguageModelError
from sottovoce.lm.arpa import BLANKS, fields_of
from sottovoce.lm.automata import KeyTable
from sottovoce.lm.base import FlatLexicon, Ints
from sottovoce.text.files import read_lines
from sottovoce.text.normalize import composed, ids_by_form, letter_spellings, letters_of

ROOT = 0
UNKNOWN_NODE = 1
"""Inside a word that the lexicon does not have."""


class Spellings:
    """Words and their concatenated tokens.

    names, spelled: of n words. words: (n,) ids. tokens: (n_tokens,). lengths: (n,), without a separator at
    the end.

    Raises:
        LanguageModelError: an empty spelling, a token out of range or a separator inside.
    """

    def __init__(
        self,
        names: Sequence[str],
        spelled: Sequence[Sequence[int]],
        words: Ints,
        *,
        n_tokens: int,
        separator: int | None,
    ) -> None:
        counts = np.fromiter(map(len, spelled), np.int64, len(spelled))
        every = itertools.chain.from_iterable(spelled)
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
            _refuse(names[row], list(spelled[row])[: int(self.lengths[row])], n_tokens)


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
        """Return which nodes (n_nodes,) have children."""
        has = np.zeros(self.n_nodes, np.bool_)
        has[self._parents] = True
        return torch.from_numpy(has)

    def ends(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return words sorted by the node where they end, without repetition, and per node the first of
        its words and their count; those of a node in the order of their spellings.
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
        for begin, end in reversed([*itertools.pairwise(self._first_of_level)]):  # the deepest level first
            np.maximum.at(best, self._parents[begin - 2 : end - 2], best[begin:end])
        best[[ROOT, UNKNOWN_NODE]] = 0.0
        return torch.from_numpy(best)


def _refuse(name: str, tokens: list[int], n_tokens: int) -> NoReturn:
    if not tokens:
        raise LanguageModelError(f"lexicon: expected a spelling of {name!r}, got none")
    raise LanguageModelError(
        f"lexicon: expected {name!r} in tokens from 0 to {n_tokens - 1} without the separator, got {tokens}"
    )


logger = logging.getLogger(__name__)

_MOST_NAMED = 5
"""Words that a warning names."""


@dataclass(frozen=True, slots=True)
class LexiconArcs:
    """nodes: (N, M, A) int64 after each arc. marks: (N, M, A), 0, or w + 1 for the word w that it ends, or
    one more than there are words inside an unknown word. exists: (N, M, A) bool.
    """

    nodes: Tensor
    marks: Tensor
    exists: Tensor


class Lexicon:
    """Words and their spellings over n_tokens tokens.

    spellings: (word, tokens) pairs, many-to-many. A separator at the end of a spelling is dropped. Words
    are normalised to NFC.
    separator: the token between words, or None.
    allow_unknown: other spellings count as one unknown word, the last one of `words`, None; with a
    separator only spellings that are no word's, without one any spelling.
    word_starts: one per token; without a separator an unknown word begins with such a token and ends
    before the next. None: it begins and ends anywhere.

    Raises:
        LanguageModelError: no words, an empty spelling, a token out of range or a separator inside.
    """

    def __init__(
        self,
        spellings: Iterable[tuple[str, Sequence[int]]],
        n_tokens: int,
        *,
        separator: int | None = None,
        allow_unknown: bool = False,
        word_starts: Sequence[bool] | None = None,
    ) -> None:
        self.n_tokens = n_tokens
        self.separator = separator
        self.allow_unknown = allow_unknown
        pairs = list(spellings)
        names = [word if word.isascii() else composed(word) for word, _ in pairs]
        ids = dict(zip(dict.fromkeys(names), range(len(names)), strict=False))
        words = np.fromiter(map(ids.__getitem__, names), np.int64, len(names))
        if not ids:
            raise LanguageModelError("lexicon: expected at least one word, got none")
        every = [tokens for _, tokens in pairs]
        spelled = Spellings(names, every, words, n_tokens=n_tokens, separator=separator)
        tree = TokenTree(spelled, n_tokens)
        self.words: tuple[str | None, ...] = (*ids, *((None,) if allow_unknown else ()))
        self.unknown = len(ids) if allow_unknown else None
        self._lengths = spelled.lengths[np.unique(words, return_index=True)[1]]
        self._tree = tree
        self._device = torch.device("cpu")
        self._children = KeyTable.of(torch.from_numpy(tree.keys), tree.n_nodes, n_tokens)
        self._targets = torch.arange(2, tree.n_nodes)
        self._has_children = tree.has_children()
        self._words, self._first, self._counts = tree.ends()
        self._may_begin, self._may_go_on = _unknown_tokens(n_tokens, word_starts)
        self.n_homophones = int(self._counts.max())

    @property
    def device(self) -> torch.device:
        return self._device

    @cached_property
    def lengths(self) -> Mapping[str, int]:
        """How many tokens the first spelling of each word has."""
        return {word: n for word, n in zip(self.words, self._lengths.tolist(), strict=False) if word}

    @property
    def n_nodes(self) -> int:
        return len(self._counts)

    @property
    def n_arcs(self) -> int:
        if self.separator is not None:
            return self.n_homophones
        return 1 + self.n_homophones + 2 * int(self.allow_unknown)

    def to(self, device: torch.device) -> Lexicon:
        moved = copy(self)
        moved._device = device
        moved._children = self._children.to(device)
        names = ("_targets", "_has_children", "_words", "_first", "_counts", "_may_begin", "_may_go_on")
        for name in names:
            setattr(moved, name, getattr(self, name).to(device))
        return moved

    def arcs(self, nodes: Tensor, tokens: Tensor) -> LexiconArcs:
        """Return the arcs of tokens (N, M) at nodes (N,)."""
        nodes = nodes[:, None].expand(tokens.shape)
        place, found = self._children.find(nodes, tokens)
        children = self._targets[place]
        if self.separator is None:
            return self._open_arcs(nodes, children, found, tokens)
        return self._separated_arcs(nodes, children, found, tokens == self.separator)

    def endings(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return marks (N, E) of the words that an utterance may end with at nodes (N,), and which exist.

        Between words the mark is 0. Inside a word only complete spellings count.
        """
        at_root = nodes == ROOT
        if self.separator is None:
            return torch.zeros_like(nodes)[:, None], at_root[:, None]
        marks, exists = self._marks(nodes)
        exists = exists.clone()
        exists[:, 0] |= at_root
        return marks.masked_fill(at_root[:, None], 0), exists

    def look_ahead(self, word_scores: Tensor) -> Tensor:
        """Return for every node the best score (n_nodes,) of the words below it; 0 at the root.

        Inside an unknown word it is the unknown word's score, so that staying there has a cost.

        word_scores: (n_words,) float32.
        """
        best = self._tree.best_below(word_scores.cpu())
        if self.unknown is not None:
            best[UNKNOWN_NODE] = word_scores[self.unknown]
        return best.to(self._device)

    def spellings_of(self, words: Collection[str]) -> dict[str, list[tuple[int, ...]]]:
        """Return all spellings of those of the words that the lexicon has."""
        ids = torch.tensor([i for i, word in enumerate(self.words) if word in words], dtype=torch.int64)
        keys, targets = self._children.keys.cpu(), self._targets.cpu()
        above = torch.zeros(self.n_nodes, dtype=torch.int64).scatter_(0, targets, keys)
        nodes = torch.arange(self.n_nodes).repeat_interleave(self._counts.cpu())
        is_wanted = torch.isin(self._words.cpu(), ids)
        found: dict[str, list[tuple[int, ...]]] = {}
        for node, word in zip(nodes[is_wanted].tolist(), self._words.cpu()[is_wanted].tolist(), strict=True):
            name, spelled = self.words[word], []
            while node != ROOT:
                spelled.append(int(above[node]) % self.n_tokens)
                node = int(above[node]) // self.n_tokens
            assert name is not None
            found.setdefault(name, []).append(tuple(reversed(spelled)))
        return found

    def flat(self, ahead: Tensor, word_scores: Tensor) -> FlatLexicon:
        """Return the tree as arrays. ahead: (n_nodes,) look-ahead. word_scores: (n_words,)."""
        return FlatLexicon(
            keys=self._children.keys.cpu().numpy(),
            words=self._words.cpu().numpy(),
            first_word=self._first.cpu().numpy(),
            n_words=self._counts.cpu().numpy(),
            ahead=ahead.cpu().float().numpy(),
            word_scores=word_scores.cpu().float().numpy(),
            unknown=-1 if self.unknown is None else self.unknown,
            separator=-1 if self.separator is None else self.separator,
            n_homophones=self.n_homophones,
            may_begin=self._may_begin.cpu().numpy(),
            may_go_on=self._may_go_on.cpu().numpy(),
        )

    def _marks(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the words (…, H) that end at nodes (…), the unknown word if none does, and which exist."""
        which = torch.arange(self.n_homophones, device=nodes.device)
        counts = self._counts[nodes]
        exists = which < counts[..., None]
        place = (self._first[nodes][..., None] + which).masked_fill_(~exists, 0)
        marks = (self._words[place] + 1).masked_fill_(~exists, 0)
        if self.unknown is not None and self.separator is not None:
            is_unknown = (counts == 0) & (nodes != ROOT)
            marks[..., 0].masked_fill_(is_unknown, self.unknown + 1)
            exists = torch.cat(((exists[..., :1] | is_unknown[..., None]), exists[..., 1:]), dim=-1)
        return marks, exists

    def _separated_arcs(self, nodes: Tensor, children: Tensor, found: Tensor, ends: Tensor) -> LexiconArcs:
        marks, complete = self._marks(nodes)
        # A separator after a word ends it; at the beginning or after another there is nothing to end.
        exists = complete & ends[..., None]
        exists[..., 0] |= ~ends & (found | self.allow_unknown)
        after = children.masked_fill(~found, UNKNOWN_NODE).masked_fill_(ends, ROOT)
        return LexiconArcs(
            nodes=after[..., None].expand(marks.shape),
            marks=marks.masked_fill(~ends[..., None], 0),
            exists=exists,
        )

    def _open_arcs(self, nodes: Tensor, children: Tensor, found: Tensor, tokens: Tensor) -> LexiconArcs:
        marks, exists = self._marks(children)
        goes_on = (found & self._has_children[children])[..., None]
        zero = torch.zeros_like(children)[..., None]
        after = [children[..., None], zero.expand(marks.shape)]
        all_marks, all_exist = [zero, marks], [goes_on, exists & found[..., None]]
        if self.unknown is not None:
            begins = (nodes == ROOT) & self._may_begin[tokens]
            can = (begins | ((nodes == UNKNOWN_NODE) & self._may_go_on[tokens]))[..., None]
            after += [zero + UNKNOWN_NODE, zero]
            # The inside of an unknown word has its own mark, to distinguish it from that of a known one.
            all_marks += [zero + self.unknown + 2, zero + self.unknown + 1]
            all_exist += [can, can]
        return LexiconArcs(torch.cat(after, -1), torch.cat(all_marks, -1), torch.cat(all_exist, -1))


def _unknown_tokens(n_tokens: int, word_starts: Sequence[bool] | None) -> tuple[Tensor, Tensor]:
    if word_starts is None:
        return torch.ones(n_tokens, dtype=torch.bool), torch.ones(n_tokens, dtype=torch.bool)
    if len(word_starts) != n_tokens:
        raise LanguageModelError(
            f"word_starts: expected one of {n_tokens} tokens each, got {len(word_starts)}"
        )
    starts = torch.tensor(word_starts, dtype=torch.bool)
    return starts, ~starts


def read_lexicon(path: str | Path, labels: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Read a file of words and spellings: a word, then its labels, separated by spaces or tabs.

    A file without any spelling is a word list, spelled by characters. Words and labels may be in any
    Unicode form. Words that the labels cannot spell are skipped, with a warning. Read are also:

    - CMUdict: comments (`;;;` and ` # `), variants (`READ(1)`), and stress (`EH1`) where labels have none;
    - Kaldi's `lexiconp.txt` (a probability, not used, after the word), and `#1` at the end of a spelling;
    - Kaldi's `words.txt` (a word and its id), a word list without `<eps>`, `<s>`, `#0` and the like.

    Raises:
        LanguageModelError: the file is unreadable, or no word can be spelled.
    """
    lines = read_lines(path, "a lexicon", LanguageModelError)
    rows = [(number, fields_of(line)) for number, line in enumerate(lines, start=1) if line.strip(BLANKS)]
    rows = _plain_rows(rows, set(labels))
    is_list = all(len(fields) == 1 for _, fields in rows)
    ids = ids_by_form(labels)
    spellings: list[tuple[str, tuple[int, ...]]] = []
    faults: list[str] = []
    for number, (word, *spelling) in rows:
        known = [ids[part] for part in spelling if part in ids]
        if known and len(known) == len(spelling):
            spellings.append((word, tuple(known)))
            continue
        parts = letters_of(word) if is_list else _with_marks(spelling, ids)
        unknown = next((part for part in parts if not _part_ways(part, ids)), None)
        if unknown is not None or not parts:
            reason = "no spelling" if unknown is None else f"no label {unknown!r}"
            faults.append(f"{word!r} (line {number}, {reason})")
        elif is_list:
            spellings += [(word, way) for way in letter_spellings(word, ids)]
        else:
            spellings.append((word, tuple(i for part in parts for i in _part_ways(part, ids)[0])))
    if faults:
        named = ", ".join(faults[:_MOST_NAMED]) + (", …" if len(faults) > _MOST_NAMED else "")
        if not spellings:
            raise LanguageModelError(f"{path}: expected words that the labels can spell, got none: {named}")
        count = f"{len(faults)} word{'s' if len(faults) > 1 else ''}"
        logger.warning("%s: %s left out that the labels cannot spell: %s", path, count, named)
    return spellings


_Row = tuple[int, list[str]]
"""The number of a line, a word and its spelling."""
_VARIANT = re.compile(r"(?<=.)\(\d+\)$")
_STRESSED = re.compile(r"[A-Z]+[012]")


def _plain_rows(rows: list[_Row], labels: Collection[str]) -> list[_Row]:
    """Return the rows of CMUdict and Kaldi files without all that is no word and no label."""
    rows = [(number, fields) for number, fields in rows if not fields[0].startswith(";;;")]
    ids = {fields[1] for _, fields in rows if len(fields) == 2}
    if ids and ids == set(map(str, range(len(rows)))):  # words.txt
        return [(number, fields[:1]) for number, fields in rows if not _SYMBOL.fullmatch(fields[0])]
    if rows and all(len(fields) > 2 and _is_probability(fields[1], labels) for _, fields in rows):
        rows = [(number, [fields[0], *fields[2:]]) for number, fields in rows]
    return [
        (number, [_VARIANT.sub("", word), *_phones(spelling, labels)]) for number, (word, *spelling) in rows
    ]


_SYMBOL = re.compile(r"<.+>|#\d+")


def _is_probability(field: str, labels: Collection[str]) -> bool:
    try:
        return field not in labels and 0 < float(field) <= 1
    except ValueError:
        return False


def _phones(spelling: Sequence[str], labels: Collection[str]) -> list[str]:
    if "#" in spelling and "#" not in labels:
        spelling = spelling[: spelling.index("#")]
    if spelling and re.fullmatch(r"#\d+", spelling[-1]) and spelling[-1] not in labels:
        spelling = spelling[:-1]
    return [phone[:-1] if phone not in labels and _STRESSED.fullmatch(phone) else phone for phone in spelling]


def _with_marks(spelling: Sequence[str], ids: Mapping[str, int]) -> list[str]:
    """Attach combining marks that are no labels to the part before them."""
    parts: list[str] = []
    for part in spelling:
        if parts and part not in ids and all(map(unicodedata.combining, part)):
            parts[-1] += part
        else:
            parts.append(part)
    return parts


def _part_ways(part: str, ids: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Return the labels that write a part of a spelling: one label, or those of a letter and its marks."""
    same = next((ids[form] for form in (part, composed(part)) if form in ids), None)
    if same is not None:
        return [(same,)]
    return letter_spellings(part, ids) if len(letters_of(part)) == 1 else []
