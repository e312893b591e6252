"""A lexicon as a tree of tokens: which words a sequence of labels can spell.

With a separator a word ends there, without one at any token that completes a spelling. Node 0 is the root,
node 1 the inside of unknown words; the others are numbered level by level, ascending by parent and token.
"""

from __future__ import annotations

import itertools
import logging
import operator
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from sottovoce.errors import LanguageModelError
from sottovoce.lm.arpa import BLANKS, fields_of
from sottovoce.lm.base import Floats, Ints
from sottovoce.text.files import read_lines
from sottovoce.text.normalize import composed, ids_by_form, letter_spellings, letters_of

logger = logging.getLogger(__name__)

ROOT = 0
UNKNOWN_NODE = 1


class Lexicon:
    """Words and their spellings over n_tokens tokens.

    spellings: (word, tokens) pairs, many-to-many; words are normalised to NFC. separator: the token between
    words, or None. allow_unknown: other spellings count as one unknown word, the last one of `words`, None.
    word_starts: one per token; without a separator an unknown word begins with such a token and ends before
    the next; None: anywhere.

    keys: (n_nodes - 2,) parent * n_tokens + token of the nodes from 2 on. first_word, n_words_of: (n_nodes,),
    of the words in `words_of` that end there. n_homophones: the most words of one spelling. may_begin,
    may_go_on: (n_tokens,) bool, of unknown words without a separator.

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
        pairs = list(spellings)
        names = [word if word.isascii() else composed(word) for word, _ in pairs]
        ids = dict(zip(dict.fromkeys(names), range(len(names)), strict=False))
        if not ids:
            raise LanguageModelError("lexicon: expected at least one word, got none")
        self.words: tuple[str | None, ...] = (*ids, *((None,) if allow_unknown else ()))
        self.unknown = len(ids) if allow_unknown else None
        starts = np.ones(n_tokens, np.bool_) if word_starts is None else np.array(word_starts, np.bool_)
        self.may_begin, self.may_go_on = starts, starts if word_starts is None else ~starts
        self._spelled = np.fromiter(map(ids.__getitem__, names), np.int64, len(names))
        tokens, first, lengths = self._checked(names, [each for _, each in pairs])
        self._lengths: Ints = lengths[np.unique(self._spelled, return_index=True)[1]]
        self._grow(tokens, first, lengths)

    def _checked(self, names: Sequence[str], spelled: Sequence[Sequence[int]]) -> tuple[Ints, Ints, Ints]:
        counts = np.fromiter(map(len, spelled), np.int64, len(spelled))
        tokens = np.fromiter(itertools.chain.from_iterable(spelled), np.int64, int(counts.sum()))
        first = counts.cumsum() - counts
        is_separator = tokens == (-1 if self.separator is None else self.separator)
        has_end = counts > 0
        has_end[has_end] = is_separator[(first + counts - 1)[has_end]]
        lengths: Ints = counts - has_end
        is_separator[(first + lengths)[has_end]] = False
        is_wrong = is_separator | (tokens < 0) | (tokens >= self.n_tokens)
        wrong = np.searchsorted(first, is_wrong.nonzero()[0], side="right") - 1
        for row in np.union1d(wrong, (lengths == 0).nonzero()[0])[:1]:
            name, spelling = names[row], list(spelled[row])[: int(lengths[row])]
            if not spelling:
                raise LanguageModelError(f"lexicon: expected a spelling of {name!r}, got none")
            raise LanguageModelError(
                f"lexicon: expected {name!r} in tokens from 0 to {self.n_tokens - 1} without the separator, "
                f"got {spelling}"
            )
        return tokens, first, lengths

    def _grow(self, tokens: Ints, first: Ints, lengths: Ints) -> None:
        at = np.zeros(len(lengths), np.int64)
        levels: list[Ints] = []
        self._first_of_level = [2]
        for depth in range(int(lengths.max(initial=0))):
            rows = (lengths > depth).nonzero()[0]
            level, place = np.unique(
                at[rows] * self.n_tokens + tokens[first[rows] + depth], return_inverse=True
            )
            at[rows] = self._first_of_level[-1] + place
            self._first_of_level.append(self._first_of_level[-1] + len(level))
            levels.append(level)
        self.keys: Ints = np.concatenate(levels)
        self._ends: Ints = at
        self.n_nodes = len(self.keys) + 2
        # Words by the node where they end, each once; those of a node in the order of their spellings.
        pairs = at * len(self.words) + self._spelled
        once = np.sort(np.unique(pairs, return_index=True)[1])
        order = once[np.argsort(at[once], kind="stable")]
        self.words_of: Ints = self._spelled[order]
        self.n_words_of: Ints = np.bincount(at[order], minlength=self.n_nodes)
        self.first_word: Ints = self.n_words_of.cumsum() - self.n_words_of
        self.n_homophones = int(self.n_words_of.max())

    @cached_property
    def lengths(self) -> Mapping[str, int]:
        """The number of tokens of each word's first spelling."""
        return {word: n for word, n in zip(self.words, self._lengths.tolist(), strict=False) if word}

    def look_ahead(self, word_scores: Floats) -> Floats:
        """Return the best score (n_nodes,) of the words below each node.

        It is 0 at the root; the node of unknown words has their score.
        """
        parents = self.keys // self.n_tokens
        best = np.full(self.n_nodes, -np.inf, np.float32)
        np.maximum.at(best, self._ends, word_scores[self._spelled])
        for begin, end in reversed([*itertools.pairwise(self._first_of_level)]):  # the deepest level first
            np.maximum.at(best, parents[begin - 2 : end - 2], best[begin:end])
        best[ROOT] = 0.0
        best[UNKNOWN_NODE] = 0.0 if self.unknown is None else word_scores[self.unknown]
        return best

    def spellings_of(self, words: Collection[str]) -> dict[str, list[tuple[int, ...]]]:
        ids = [i for i, word in enumerate(self.words) if word in words]
        nodes = np.arange(self.n_nodes).repeat(self.n_words_of)
        is_wanted = np.isin(self.words_of, ids)
        spellings: dict[str, list[tuple[int, ...]]] = {}
        for node, word in zip(nodes[is_wanted].tolist(), self.words_of[is_wanted].tolist(), strict=True):
            name, spelled = self.words[word], []
            while node != ROOT:
                node, token = divmod(int(self.keys[node - 2]), self.n_tokens)
                spelled.append(token)
            assert name is not None
            spellings.setdefault(name, []).append(tuple(reversed(spelled)))
        return spellings


_MOST_NAMED = 5
"""Words of a warning."""
_Row = tuple[int, list[str]]
"""The number of a line or entry, a word and its spelling."""


def read_lexicon(path: str | Path, labels: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Read a file of words and their labels, separated by spaces or tabs; or of words alone, spelled by
    characters.

    Words that the labels cannot spell are skipped, with a warning. Also read are:

    - CMUdict: comments (`;;;` and ` # `), variants (`READ(1)`), and stress (`EH1`) where labels have none;
    - Kaldi's `lexiconp.txt` (with probabilities), and `#1` at the end of a spelling;
    - Kaldi's `words.txt`, without `<eps>`, `<s>`, `#0` and the like.

    Raises:
        LanguageModelError: the file is unreadable, or no word can be spelled.
    """
    lines = read_lines(path, "a lexicon", LanguageModelError)
    rows = [(number, fields_of(line)) for number, line in enumerate(lines, start=1) if line.strip(BLANKS)]
    return _spelled(str(path), _plain_rows(rows, set(labels)), labels)


Spelling = Sequence[int] | Sequence[str]
"""Label ids, or names of labels."""
Entries = Iterable[str | tuple[str, Spelling]] | Mapping[str, Spelling | Sequence[Spelling]]


def listed_spellings(entries: Entries, labels: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the spellings of words (by characters), of pairs of words and spellings, or of a mapping of
    words to a spelling or several.

    Words that the labels cannot spell are skipped, with a warning.

    Raises:
        LanguageModelError: other entries, or no word can be spelled.
    """
    if not isinstance(entries, Iterable):
        raise LanguageModelError(
            f"lexicon: expected a file, words, or words with labels, got {entries!r:.80}"
        )
    by_id: list[tuple[str, tuple[int, ...]]] = []
    rows: list[_Row] = []
    for number, entry in enumerate(entries.items() if isinstance(entries, Mapping) else entries, start=1):
        try:
            word, spelled = (entry, ()) if isinstance(entry, str) else entry
            several = [fields_of(spelled)] if isinstance(spelled, str) else list(spelled)
            if not several or isinstance(several[0], str) or not isinstance(several[0], Sequence):
                several = [several]
            for way in several:
                if all(isinstance(part, str) for part in way):
                    rows.append((number, [composed(word), *way]))
                else:
                    by_id.append((composed(word), tuple(map(operator.index, way))))
        except (TypeError, ValueError) as error:
            raise LanguageModelError(
                f"lexicon: expected words, or words with their labels, got {entry!r:.80}"
            ) from error
    return by_id + _spelled("lexicon", rows, labels, "entry")


def _spelled(
    source: str, rows: Sequence[_Row], labels: Sequence[str], unit: str = "line"
) -> list[tuple[str, tuple[int, ...]]]:
    is_list = unit == "entry" or all(len(fields) == 1 for _, fields in rows)
    ids = ids_by_form(labels)
    spellings: list[tuple[str, tuple[int, ...]]] = []
    faults: list[str] = []
    for number, (word, *spelling) in rows:
        known = [ids[part] for part in spelling if part in ids]
        if known and len(known) == len(spelling):
            spellings.append((word, tuple(known)))
            continue
        parts = letters_of(word) if is_list and not spelling else _with_marks(spelling, ids)
        unknown = next((part for part in parts if not _part_ways(part, ids)), None)
        if unknown is not None or not parts:
            reason = "no spelling" if unknown is None else f"no label {unknown!r}"
            faults.append(f"{word!r} ({unit} {number}, {reason})")
        elif is_list and not spelling:
            spellings += [(word, way) for way in letter_spellings(word, ids)]
        else:
            spellings.append((word, tuple(i for part in parts for i in _part_ways(part, ids)[0])))
    if faults:
        named = ", ".join(faults[:_MOST_NAMED]) + (", …" if len(faults) > _MOST_NAMED else "")
        if not spellings:
            raise LanguageModelError(f"{source}: expected words that the labels can spell, got none: {named}")
        count = f"{len(faults)} word{'s' if len(faults) > 1 else ''}"
        logger.warning("%s: %s left out that the labels cannot spell: %s", source, count, named)
    return spellings


_VARIANT = re.compile(r"(?<=.)\(\d+\)$")
_STRESSED = re.compile(r"[A-Z]+[012]")


def _plain_rows(rows: list[_Row], labels: Collection[str]) -> list[_Row]:
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
    parts: list[str] = []
    for part in spelling:
        if parts and part not in ids and all(map(unicodedata.combining, part)):
            parts[-1] += part
        else:
            parts.append(part)
    return parts


def _part_ways(part: str, ids: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Return the labels of a letter and its marks, or of one label."""
    same = next((ids[form] for form in (part, composed(part)) if form in ids), None)
    if same is not None:
        return [(same,)]
    return letter_spellings(part, ids) if len(letters_of(part)) == 1 else []
