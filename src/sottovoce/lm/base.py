"""The interface between searches and language models.

N-gram and neural models, phrase boosting and grammars implement it. Log-probabilities are natural logs. N
is the number of rows (hypotheses).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from ctypes import Structure
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable
from weakref import WeakValueDictionary

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


class WordIds(ABC):
    """Ids of words as written, else of an equivalent Unicode form. unknown: that of <unk>."""

    unknown: int

    @property
    @abstractmethod
    def vocabulary(self) -> Mapping[str, int]:
        """Ids by words."""

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


RETAINED_WORDS = 128
"""Least number of words that histories of a stream go back before the settled ones."""
BLOCK_WORDS = 64
"""Long histories are shown to models without whole blocks of this many words, to fit their context."""


class HistoryWord(NamedTuple):
    """A word of a history. in_lexicon: False: it was scored as <unk>."""

    text: str
    in_lexicon: bool = True


class WordHistory:
    """The words of a hypothesis so far: a node of a tree, its last word and the node before, which alone it
    keeps alive.

    n_words: includes forgotten ones.
    """

    __slots__ = ("__weakref__", "_later", "before", "n_words", "word")

    def __init__(self, word: HistoryWord | None = None, before: WordHistory | None = None) -> None:
        self.word = word
        self.before = before
        self.n_words: int = 0 if before is None else before.n_words + 1
        self._later: WeakValueDictionary[HistoryWord, WordHistory] = WeakValueDictionary()

    def after(self, words: Iterable[HistoryWord]) -> WordHistory:
        """Return the history that continues with these words: the same object for the same words."""
        at = self
        for word in words:
            found = at._later.get(word)
            if found is None:
                found = at._later[word] = WordHistory(word, at)
            at = found
        return at

    def with_words(self, texts: Iterable[str]) -> WordHistory:
        """As `after`, with known words of these texts."""
        return self.after(map(HistoryWord, texts))

    def context(self) -> tuple[str, ...]:
        """Return the words that a model is shown: all up to 127, then the last 64 to 127 of them."""
        n_shown = self.n_words if self.n_words < 2 * BLOCK_WORDS else BLOCK_WORDS + self.n_words % BLOCK_WORDS
        shown: list[str] = []
        at: WordHistory | None = self
        while at is not None and at.word is not None and len(shown) < n_shown:
            shown.append(at.word.text)
            at = at.before
        return tuple(reversed(shown))

    def forget_beginning(self) -> None:
        """Drop words more than `RETAINED_WORDS` back."""
        at: WordHistory | None = self
        for _ in range(RETAINED_WORDS):
            at = None if at is None else at.before
        if at is not None:
            at.before = None


class HistoryScorer(Protocol):
    """Scores whole word histories, to replace the word scores of the search."""

    def adjustments(self, histories: Sequence[WordHistory], *, final: bool) -> list[float]:
        """Return the new adjustments to the scores of N hypotheses. final: also score the end of the
        sentence.
        """
        ...

    def bounds(self, histories: Sequence[WordHistory], *, final: bool) -> list[float]:
        """Return upper bounds (N,) of `adjustments` that cost little."""
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


class Automaton(NamedTuple):
    """A language model as arrays: weighted arcs between nodes (the states), with back-off.

    A node without an arc for an id backs off to its parent. Node 0 is the root, which has every id.

    ids: (n_tokens,) the model's ids of the caller's tokens. root_weights, root_targets: (n_ids,). first:
    (n_nodes + 1,) first arc of each node. keys: (n_arcs,) node * n_ids + id, ascending. weights (natural
    logs), targets: (n_arcs,). backoff, parent: (n_nodes,). ends: (n_nodes,) scores of ending, or None: 0.
    silent: id of the word boundary that is scored implicitly before each of the tokens `begins` (n_tokens,)
    bool, or None. callback, trie: scores come from calls, or from a `sottovoce_kernels.trie.Trie`;
    root_weights then bound the score of each id, and there are no other arrays. owner: of the memory behind
    these.
    """

    ids: Ints
    root_weights: Floats
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


class AutomatonModel(Protocol):
    """A model that a CTC search can use."""

    def start(self, n: int) -> Tensor: ...

    def automaton(self) -> Automaton:
        """Return the model as arrays on the CPU."""
        ...


@runtime_checkable
class ContextFreeModel(Protocol):
    def null_context(self, n: int) -> Tensor:
        """Make states (n,) without any context, not even <s>, for unigram scores."""
        ...


CACHE_ENTRY = np.dtype([("key", np.int64), ("score", np.float32), ("target", np.int32)])
END = -1
"""The id of the end."""


class FlatLexicon(NamedTuple):
    """A token tree of words as arrays. Node 0 is the root, node 1 the inside of unknown words.

    keys: (n_nodes - 2,) parent * n_tokens + token of the other nodes, ascending. first_word, n_words:
    (n_nodes,), of the words that end at each node, in `words`. ahead: (n_nodes,) look-ahead. word_scores:
    (n_words,). unknown: the unknown word, or -1. separator: or -1. n_homophones: the most words of one
    spelling. may_begin, may_go_on: (n_tokens,) bool, tokens that begin and continue an unknown word without a
    separator.
    """

    keys: Ints
    words: Ints
    first_word: Ints
    n_words: Ints
    ahead: Floats
    word_scores: Floats
    unknown: int
    separator: int
    n_homophones: int
    may_begin: Bools
    may_go_on: Bools


class PrefixScorer(NamedTuple):
    """The language models, lexicon and boosting of a CTC search over n_tokens labels.

    start: (s,) int64, the state before the first label: the lexicon's node if there is one, then the states
    of the models over its words, then of those over labels. words, tokens: these models and their weights.

    An arc is a way to append a label, and its mark is the word that it ends: 0 none, w + 1 word w; larger
    ones distinguish otherwise equal prefixes.
    """

    n_tokens: int
    start: Ints = np.zeros(0, np.int64)
    words: Sequence[tuple[Automaton, float]] = ()
    tokens: Sequence[tuple[Automaton, float]] = ()
    lexicon: FlatLexicon | None = None

    @property
    def n_arcs(self) -> int:
        """The largest number of arcs of any label in any state."""
        if self.lexicon is None:
            return 1
        n = self.lexicon.n_homophones
        return n if self.lexicon.separator >= 0 else 1 + n + 2 * (self.lexicon.unknown >= 0)

    @property
    def word_separator(self) -> int | None:
        """The label between words, or None. Repeated, or at the beginning, it appends nothing."""
        return None if self.lexicon is None or self.lexicon.separator < 0 else self.lexicon.separator
