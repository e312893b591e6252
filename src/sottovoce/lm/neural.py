"""Word-level neural language models in a CTC search: delayed fusion and final rescoring.

A search scores words by an n-gram as they end. Every N frames, and at the end, a neural model's scores of
whole word histories take the place of the n-gram's (delayed fusion: Hori et al. 2025, arXiv 2501.09258).
What is added is a function of the history alone, so that nothing is ever added twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from sottovoce.lm.fusion import TensorModel

History = tuple[str, ...]
MOST_KEPT = 2000
"""Histories whose scores are kept, unless so many are asked for at once; a large model keeps a quarter of a
megabyte for each."""
TIMES_ASKED = 16
"""At least so many times those asked for at once are kept, so that beams of a batch do not drive each other
out."""


class WordLanguageModel(Protocol):
    """A language model over words as text."""

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> Mapping[tuple[History, str], float]:
        """Natural log-probabilities of words after histories of words; some pairs, each asked for once."""
        ...

    def score_ends(self, histories: Sequence[History]) -> Mapping[History, float]:
        """Natural log-probabilities of the sentence's end after histories, at least one."""
        ...

    def begin(self) -> None:
        """A new batch of utterances begins: what was kept for the last one may be forgotten."""
        ...


class VocabularyModel(TensorModel, Protocol):
    """A `LanguageModel` that knows its words by name."""

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
class _Known:
    """What a history has been given: its words' neural and n-gram scores, and the n-gram's state."""

    neural: float
    ngram: float
    state: int


class NeuralRescorer:
    """Replaces a search's word scores by a neural model's: a `HistoryScorer`.

    weight: times the neural log-probability. replaces: what to take out, None to keep everything.
    Each (history, word) is scored once however many beams and utterances share it; scores are kept until
    `forget`, or until there are too many, as in a stream without end: then those alone that were asked for
    last. most_kept: histories that are never too many.
    """

    def __init__(
        self,
        model: WordLanguageModel,
        weight: float,
        *,
        replaces: ReplacedModel | None = None,
        most_kept: int = MOST_KEPT,
    ) -> None:
        self._model = model
        self._weight = weight
        self._most_kept = most_kept
        self._replaces = replaces
        self._known: dict[History, _Known] = {}
        self._ends: dict[History, float] = {}

    def adjustments(self, histories: Sequence[History], *, final: bool) -> list[float]:
        self._learn(histories)
        known = [self._known[history] for history in histories]
        values = [self._weight * each.neural - each.ngram for each in known]
        if final:
            self._learn_ends(histories)
            values = [v + self._ends[history] for v, history in zip(values, histories, strict=True)]
        self._drop_old(histories)
        return values

    @property
    def n_kept(self) -> int:
        """Histories whose scores are kept."""
        return len(self._known)

    def forget(self) -> None:
        """Drop all scores: before the next batch of utterances."""
        self._known.clear()
        self._ends.clear()
        self._model.begin()

    def _learn(self, histories: Sequence[History]) -> None:
        """Score every beginning of the histories that is new, shorter ones first, all of a length at once."""
        if () not in self._known:
            start = 0 if self._replaces is None else int(self._replaces.model.start(1)[0])
            self._known[()] = _Known(0.0, 0.0, start)
        new = self._unknown(histories)
        if not new:
            return
        scores = self._model.score_words([(history[:-1], history[-1]) for history in sorted(new, key=len)])
        for length in sorted({len(history) for history in new}):
            level = [history for history in new if len(history) == length]
            before = [self._known[history[:-1]] for history in level]
            ngrams = self._ngram(before, [history[-1] for history in level])
            for history, parent, (ngram, state) in zip(level, before, ngrams, strict=True):
                neural = parent.neural + scores[history[:-1], history[-1]]
                self._known[history] = _Known(neural, parent.ngram + ngram, state)

    def _unknown(self, histories: Sequence[History]) -> set[History]:
        """The histories and their beginnings down to one that is known: beyond it nothing is needed."""
        new: set[History] = set()
        for history in set(histories):
            while history not in self._known and history not in new:
                new.add(history)
                history = history[:-1]
        return new

    def _drop_old(self, histories: Sequence[History]) -> None:
        """What comes goes on from the histories of now: scores of others are kept while there is room."""
        asked = set(histories)
        if len(self._known) <= max(self._most_kept, TIMES_ASKED * len(asked)):
            return
        self._known = {history: self._known[history] for history in {(), *asked}}
        self._ends.clear()
        self._model.begin()

    def _ngram(self, before: Sequence[_Known], words: Sequence[str]) -> list[tuple[float, int]]:
        if self._replaces is None:
            return [(0.0, 0)] * len(words)
        model, weight = self._replaces.model, self._replaces.weight
        states = torch.tensor([each.state for each in before])
        scores, after = model.score(states, torch.tensor(self._replaces.ids(words)))
        return list(zip((scores * weight).tolist(), after.tolist(), strict=True))

    def _learn_ends(self, histories: Sequence[History]) -> None:
        new = [history for history in dict.fromkeys(histories) if history not in self._ends]
        if not new:
            return
        ends = self._model.score_ends(new)
        for history in new:
            self._ends[history] = self._weight * ends[history]
        if self._replaces is not None:
            states = torch.tensor([self._known[history].state for history in new])
            taken = self._replaces.model.finish(states) * self._replaces.weight
            for history, value in zip(new, taken.tolist(), strict=True):
                self._ends[history] -= value
