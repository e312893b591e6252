"""Neural word language models in a CTC search: delayed fusion and final rescoring.

A search scores words by an n-gram as they end. Every N frames, and at the end, a neural model's scores of
whole word histories replace the n-gram's (delayed fusion: Hori et al. 2025, arXiv 2501.09258). The
adjustment is a function of the history, so nothing is added twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol
from weakref import WeakKeyDictionary

import torch

from sottovoce.lm.base import HistoryWord, LanguageModel, WordHistory

History = tuple[str, ...]
CACHED_HISTORIES = 2000
"""Words that a model scores before its caches are dropped; a large model stores a quarter of a megabyte
for each.
"""
CACHE_FACTOR = 16
"""The caches hold at least this many times the histories scored at once, so that beams of a batch do not
evict each other.
"""


class WordLanguageModel(Protocol):
    def score_words(self, pairs: Sequence[tuple[History, str]]) -> Mapping[tuple[History, str], float]:
        """Return natural log-probabilities of words after histories of words; at least one pair, no
        repetition.
        """
        ...

    def score_ends(self, histories: Sequence[History]) -> Mapping[History, float]:
        """Return natural log-probabilities of the sentence's end after histories, at least one."""
        ...

    def begin(self) -> None:
        """Begin a new batch of utterances: caches may be dropped."""
        ...


class VocabularyModel(LanguageModel, Protocol):
    def ids(self, words: Sequence[str]) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class ReplacedModel:
    """The word model of the search, and its weight there."""

    model: VocabularyModel
    weight: float

    def ids(self, words: Sequence[HistoryWord]) -> list[int]:
        """Return the ids that the search scored: words outside the lexicon were <unk>."""
        return self.model.ids([word.text if word.in_lexicon else "<unk>" for word in words])


@dataclass(frozen=True, slots=True)
class _ScoredHistory:
    """Sums of a history's neural and n-gram word scores, and the n-gram's state."""

    neural: float
    ngram: float
    state: int


class NeuralRescorer:
    """Replaces a search's word scores by a neural model's: a thread-safe `HistoryScorer`.

    Each (history, word) is scored once, and scores live as long as their histories. The model's caches are
    dropped at `forget` and after `cache_size` words, as in endless streams.

    weight: factor on the neural log-probability. replaces: the model whose scores are subtracted, or None.
    """

    def __init__(
        self,
        model: WordLanguageModel,
        weight: float,
        *,
        replaces: ReplacedModel | None = None,
        cache_size: int = CACHED_HISTORIES,
    ) -> None:
        self._model = model
        self._weight = weight
        self._cache_size = cache_size
        self._replaces = replaces
        self._scored: WeakKeyDictionary[WordHistory, _ScoredHistory] = WeakKeyDictionary()
        self._ends: WeakKeyDictionary[WordHistory, float] = WeakKeyDictionary()
        self._n_requested = 0
        self._lock = Lock()

    def adjustments(self, histories: Sequence[WordHistory], *, final: bool) -> list[float]:
        with self._lock:
            self._score(histories)
            entries = [self._scored[history] for history in histories]
            values = [self._weight * each.neural - each.ngram for each in entries]
            if final:
                self._score_ends(histories)
                values = [v + self._ends[history] for v, history in zip(values, histories, strict=True)]
            if self._n_requested > max(self._cache_size, CACHE_FACTOR * len(histories)):
                self._begin()
            return values

    @property
    def n_cached(self) -> int:
        return len(self._scored)

    def forget(self) -> None:
        with self._lock:
            self._begin()

    def _begin(self) -> None:
        self._model.begin()
        self._n_requested = 0

    def _score(self, histories: Sequence[WordHistory]) -> None:
        """Score histories and their prefixes, shorter ones first, all of a length at once."""
        levels = self._unscored(histories)
        pairs = {each: _pair(each) for level in levels for each in level if each.before is not None}
        scores: Mapping[tuple[History, str], float] = {}
        if pairs:
            requested = list(dict.fromkeys(pairs.values()))
            self._n_requested += len(requested)
            scores = self._model.score_words(requested)
        for level in levels:
            ngrams = self._ngram(level)
            for history, (ngram, state) in zip(level, ngrams, strict=True):
                if history.before is None:
                    self._scored[history] = _ScoredHistory(0.0, 0.0, state)
                    continue
                past = self._scored[history.before]
                neural = past.neural + scores[pairs[history]]
                self._scored[history] = _ScoredHistory(neural, past.ngram + ngram, state)

    def _unscored(self, histories: Sequence[WordHistory]) -> list[list[WordHistory]]:
        """Return histories without a score, and their unscored prefixes, by length."""
        new: dict[WordHistory, int] = {}
        for history in histories:
            at: WordHistory | None = history
            while at is not None and at not in self._scored and at not in new:
                new[at] = at.n_words
                at = at.before
        lengths = sorted(set(new.values()))
        return [[history for history, n in new.items() if n == length] for length in lengths]

    def _ngram(self, histories: Sequence[WordHistory]) -> list[tuple[float, int]]:
        """Score the last words of histories of one length by the replaced model; also return its states."""
        if self._replaces is None:
            return [(0.0, 0)] * len(histories)
        model, weight = self._replaces.model, self._replaces.weight
        states, words, found = [], [], []
        for history in histories:
            if history.before is None or history.word is None:
                found.append((0.0, int(model.start(1)[0])))
                continue
            states.append(self._scored[history.before].state)
            words.append(history.word)
        if words:
            scores, after = model.score(torch.tensor(states), torch.tensor(self._replaces.ids(words)))
            found += list(zip((scores * weight).tolist(), after.tolist(), strict=True))
        return found

    def _score_ends(self, histories: Sequence[WordHistory]) -> None:
        new = [history for history in dict.fromkeys(histories) if history not in self._ends]
        if not new:
            return
        contexts = [history.context() for history in new]
        ends = self._model.score_ends(list(dict.fromkeys(contexts)))
        for history, context in zip(new, contexts, strict=True):
            self._ends[history] = self._weight * ends[context]
        if self._replaces is not None:
            states = torch.tensor([self._scored[history].state for history in new])
            taken = self._replaces.model.finish(states) * self._replaces.weight
            for history, value in zip(new, taken.tolist(), strict=True):
                self._ends[history] -= value


def _pair(history: WordHistory) -> tuple[History, str]:
    """Split a history into the words before the last, and the last."""
    assert history.before is not None
    assert history.word is not None
    return history.before.context(), history.word.text
