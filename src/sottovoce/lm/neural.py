"""Word-level neural language models in a CTC search: delayed fusion and final rescoring.

A search scores words by an n-gram as they end. Every N frames, and at the end, a neural model's scores of
whole word histories replace the n-gram's (delayed fusion: Hori et al. 2025, arXiv 2501.09258). The adjustment
is a function of the history alone, so nothing is ever added twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import torch

from sottovoce.lm.fusion import TensorModel

History = tuple[str, ...]
CACHED_HISTORIES = 2000
"""Histories whose scores are cached, unless more are scored at once; a large model stores a quarter of a
megabyte for each.
"""
CACHE_FACTOR = 16
"""The cache holds at least this many times the histories scored at once, so that beams of a batch do not
evict each other.
"""


class WordLanguageModel(Protocol):
    """A language model over words as text."""

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> Mapping[tuple[History, str], float]:
        """Return natural log-probabilities of words after histories of words; pairs: at least one, each
        once.
        """
        ...

    def score_ends(self, histories: Sequence[History]) -> Mapping[History, float]:
        """Return natural log-probabilities of the sentence's end after histories, at least one."""
        ...

    def begin(self) -> None:
        """Begin a new batch of utterances: caches of the last one may be dropped."""
        ...


class VocabularyModel(TensorModel, Protocol):
    """A `LanguageModel` whose tokens are words."""

    def ids(self, words: Sequence[str]) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class ReplacedModel:
    """The word model of the search and its weight there; words that are not in `words` were <unk>."""

    model: VocabularyModel
    weight: float
    words: frozenset[str]

    def ids(self, words: Sequence[str]) -> list[int]:
        return self.model.ids([word if word in self.words else "<unk>" for word in words])


@dataclass(frozen=True, slots=True)
class _CachedHistory:
    """Scores of a history: sums of its words' neural and n-gram scores, and the n-gram's state."""

    neural: float
    ngram: float
    state: int


class NeuralRescorer:
    """Replaces a search's word scores by a neural model's: a `HistoryScorer`.

    weight: times the neural log-probability. replaces: the model whose scores are subtracted; None: none.
    Each (history, word) is scored once however many beams and utterances share it. Scores are cached until
    `forget`, or until there are too many, as in a stream without end: then only the latest ones stay.
    Threads may share it: they score one after the other, and what another forgot is scored again.
    cache_size: histories that are never too many.
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
        self._cache: dict[History, _CachedHistory] = {}
        self._ends: dict[History, float] = {}
        self._lock = Lock()

    def adjustments(self, histories: Sequence[History], *, final: bool) -> list[float]:
        with self._lock:
            return self._adjustments(histories, final=final)

    def _adjustments(self, histories: Sequence[History], *, final: bool) -> list[float]:
        self._score(histories)
        entries = [self._cache[history] for history in histories]
        values = [self._weight * each.neural - each.ngram for each in entries]
        if final:
            self._score_ends(histories)
            values = [v + self._ends[history] for v, history in zip(values, histories, strict=True)]
        self._drop_old(histories)
        return values

    @property
    def n_cached(self) -> int:
        """Number of cached histories."""
        return len(self._cache)

    def forget(self) -> None:
        """Drop all scores, before the next batch of utterances."""
        with self._lock:
            self._cache.clear()
            self._ends.clear()
            self._model.begin()

    def _score(self, histories: Sequence[History]) -> None:
        """Score every uncached prefix of the histories, shorter ones first, all of a length at once."""
        if () not in self._cache:
            start = 0 if self._replaces is None else int(self._replaces.model.start(1)[0])
            self._cache[()] = _CachedHistory(0.0, 0.0, start)
        new = self._uncached(histories)
        if not new:
            return
        scores = self._model.score_words([(history[:-1], history[-1]) for history in sorted(new, key=len)])
        for length in sorted({len(history) for history in new}):
            level = [history for history in new if len(history) == length]
            before = [self._cache[history[:-1]] for history in level]
            ngrams = self._ngram(before, [history[-1] for history in level])
            for history, parent, (ngram, state) in zip(level, before, ngrams, strict=True):
                neural = parent.neural + scores[history[:-1], history[-1]]
                self._cache[history] = _CachedHistory(neural, parent.ngram + ngram, state)

    def _uncached(self, histories: Sequence[History]) -> set[History]:
        """Uncached histories and their prefixes, down to one that is cached."""
        new: set[History] = set()
        for history in set(histories):
            while history not in self._cache and history not in new:
                new.add(history)
                history = history[:-1]
        return new

    def _drop_old(self, histories: Sequence[History]) -> None:
        """Drop all but the current histories, which later ones continue, once the cache is too large."""
        current = set(histories)
        if len(self._cache) <= max(self._cache_size, CACHE_FACTOR * len(current)):
            return
        self._cache = {history: self._cache[history] for history in {(), *current}}
        self._ends.clear()
        self._model.begin()

    def _ngram(self, before: Sequence[_CachedHistory], words: Sequence[str]) -> list[tuple[float, int]]:
        if self._replaces is None:
            return [(0.0, 0)] * len(words)
        model, weight = self._replaces.model, self._replaces.weight
        states = torch.tensor([each.state for each in before])
        scores, after = model.score(states, torch.tensor(self._replaces.ids(words)))
        return list(zip((scores * weight).tolist(), after.tolist(), strict=True))

    def _score_ends(self, histories: Sequence[History]) -> None:
        new = [history for history in dict.fromkeys(histories) if history not in self._ends]
        if not new:
            return
        ends = self._model.score_ends(new)
        for history in new:
            self._ends[history] = self._weight * ends[history]
        if self._replaces is not None:
            states = torch.tensor([self._cache[history].state for history in new])
            taken = self._replaces.model.finish(states) * self._replaces.weight
            for history, value in zip(new, taken.tolist(), strict=True):
                self._ends[history] -= value
