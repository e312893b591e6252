"""Neural word language models in a CTC search: delayed fusion and final rescoring.

A search scores words by an n-gram as they end. Every N frames, and at the end, a neural model's scores of
whole word histories replace the n-gram's (delayed fusion: Hori et al. 2025, arXiv 2501.09258). The
adjustment is a function of the history, so nothing is added twice.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol
from weakref import WeakKeyDictionary

import torch

from sottovoce.lm.base import HistoryWord, LanguageModel, WordHistory

History = tuple[str, ...]


class WordLanguageModel(Protocol):
    def score_words(self, pairs: Sequence[tuple[History, str]]) -> Mapping[tuple[History, str], float]:
        """Return natural log-probabilities of words after histories; at least one pair, none twice."""
        ...

    def score_ends(self, histories: Sequence[History]) -> Mapping[History, float]:
        """Return natural log-probabilities of the sentence's end after histories, at least one."""
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


class NeuralRescorer:
    """Replaces a search's word scores by a neural model's: a thread-safe `HistoryScorer`.

    Each (history, word) is scored once, and scores live as long as their histories.

    weight: factor on the neural log-probability. replaces: the model whose scores are subtracted, or None.
    """

    def __init__(
        self, model: WordLanguageModel, weight: float, *, replaces: ReplacedModel | None = None
    ) -> None:
        self._model = model
        self._weight = weight
        self._replaces = replaces
        self._neural: WeakKeyDictionary[WordHistory, float] = WeakKeyDictionary()
        self._ends: WeakKeyDictionary[WordHistory, float] = WeakKeyDictionary()
        self._ngrams: WeakKeyDictionary[WordHistory, tuple[float, int]] = WeakKeyDictionary()
        """Sums of the replaced scores, and the model's states."""
        self._lock = Lock()

    @property
    def n_cached(self) -> int:
        return len(self._neural)

    def adjustments(self, histories: Sequence[WordHistory], *, final: bool) -> list[float]:
        with self._lock:
            replaced = self._replaced(histories, final=final)
            self._score(histories)
            neural = [self._neural[history] for history in histories]
            if final:
                self._score_ends(histories)
                neural = [n + self._ends[history] for n, history in zip(neural, histories, strict=True)]
            return [self._weight * n - taken for n, taken in zip(neural, replaced, strict=True)]

    def bounds(self, histories: Sequence[WordHistory], *, final: bool) -> list[float]:
        """Return the adjustments if the model were certain of every word that it has not scored."""
        if self._weight < 0:
            return [math.inf] * len(histories)
        with self._lock:
            replaced = self._replaced(histories, final=final)
            return [
                self._weight * self._so_far(history) - taken
                for history, taken in zip(histories, replaced, strict=True)
            ]

    def _so_far(self, history: WordHistory) -> float:
        at: WordHistory | None = history
        while at is not None and at not in self._neural:
            at = at.before
        return 0.0 if at is None else self._neural[at]

    def _score(self, histories: Sequence[WordHistory]) -> None:
        levels = _by_length(histories, self._neural)
        pairs = {each: _pair(each) for level in levels for each in level if each.before is not None}
        scores = self._model.score_words(list(dict.fromkeys(pairs.values()))) if pairs else {}
        for history in (history for level in levels for history in level):
            before = 0.0 if history.before is None else self._neural[history.before]
            self._neural[history] = before + (scores[pairs[history]] if history in pairs else 0.0)

    def _score_ends(self, histories: Sequence[WordHistory]) -> None:
        contexts = {history: history.context() for history in histories if history not in self._ends}
        if contexts:
            ends = self._model.score_ends(list(dict.fromkeys(contexts.values())))
            self._ends.update({history: ends[context] for history, context in contexts.items()})

    def _replaced(self, histories: Sequence[WordHistory], *, final: bool) -> list[float]:
        if self._replaces is None:
            return [0.0] * len(histories)
        model, weight = self._replaces.model, self._replaces.weight
        for level in _by_length(histories, self._ngrams):
            if level[0].before is None:
                self._ngrams.update({history: (0.0, int(model.start(1)[0])) for history in level})
                continue
            past = [self._ngrams[history.before] for history in level if history.before is not None]
            words = self._replaces.ids([history.word for history in level if history.word is not None])
            scores, after = model.score(torch.tensor([state for _, state in past]), torch.tensor(words))
            for history, (total, _), score, state in zip(
                level, past, scores.tolist(), after.tolist(), strict=True
            ):
                self._ngrams[history] = (total + weight * score, state)
        found = [self._ngrams[history] for history in histories]
        if not final or not found:
            return [total for total, _ in found]
        ends = model.finish(torch.tensor([state for _, state in found])).tolist()
        return [total + weight * end for (total, _), end in zip(found, ends, strict=True)]


def _by_length(histories: Sequence[WordHistory], known: Container[WordHistory]) -> list[list[WordHistory]]:
    """Return the unknown ones among histories and their prefixes by length, the shortest first."""
    new: dict[WordHistory, int] = {}
    for history in histories:
        at: WordHistory | None = history
        while at is not None and at not in known and at not in new:
            new[at] = at.n_words
            at = at.before
    lengths = sorted(set(new.values()))
    return [[history for history, n in new.items() if n == length] for length in lengths]


def _pair(history: WordHistory) -> tuple[History, str]:
    assert history.before is not None
    assert history.word is not None
    return history.before.context(), history.word.text
