"""Delayed fusion of a neural language model over words (Hori et al. 2025, arXiv 2501.09258): every N frames
of a search, and at the end, its scores of whole word histories replace the n-gram's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from sottovoce.errors import LanguageModelError
from sottovoce.lm.base import Ints, WordModel

History = tuple[str, ...]
RETAINED_WORDS = 128
"""Words that histories keep before the settled ones."""
BLOCK_WORDS = 64
"""Models are shown long histories without whole blocks of so many words."""


class HistoryWord(NamedTuple):
    """A word of a history. in_lexicon: False if it is scored as <unk>."""

    text: str
    in_lexicon: bool = True


class WordHistory:
    """The words of a hypothesis so far: the last word and the node before, which alone it keeps alive.
    n_words: with forgotten ones.
    """

    __slots__ = ("__weakref__", "_later", "before", "n_words", "word")

    def __init__(self, word: HistoryWord | None = None, before: WordHistory | None = None) -> None:
        self.word = word
        self.before = before
        self.n_words: int = 0 if before is None else before.n_words + 1
        self._later: WeakValueDictionary[HistoryWord, WordHistory] = WeakValueDictionary()

    def after(self, words: Iterable[HistoryWord]) -> WordHistory:
        """Return the history that continues with words: the same object for the same words."""
        at = self
        for word in words:
            later = at._later.get(word)
            if later is None:
                later = at._later[word] = WordHistory(word, at)
            at = later
        return at

    def context(self) -> History:
        """Return the up to 127 words that a model is shown; of more, the last 64 to 127."""
        n_shown = self.n_words if self.n_words < 2 * BLOCK_WORDS else BLOCK_WORDS + self.n_words % BLOCK_WORDS
        shown: list[str] = []
        at: WordHistory | None = self
        while at is not None and at.word is not None and len(shown) < n_shown:
            shown.append(at.word.text)
            at = at.before
        return tuple(reversed(shown))

    def forget_beginning(self) -> None:
        at: WordHistory | None = self
        for _ in range(RETAINED_WORDS):
            at = None if at is None else at.before
        if at is not None:
            at.before = None


@runtime_checkable
class WordLanguageModel(Protocol):
    """A language model over words, without states. Calls come one at a time."""

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> Mapping[tuple[History, str], float]:
        """Return natural log-probabilities of words after histories; no pair twice, at least one."""
        ...

    def score_ends(self, histories: Sequence[History]) -> Mapping[History, float]:
        """Return natural log-probabilities of the sentence's end after at least one history."""
        ...


State = TypeVar("State")


@runtime_checkable
class StatefulModel(Protocol[State]):
    """A language model over words, with states of any type; lists have N entries, scores are natural logs."""

    def start(self) -> State:
        """Return the state before a sentence."""
        ...

    def score(self, states: Sequence[State], words: Sequence[str]) -> tuple[Sequence[float], Sequence[State]]:
        """Return the log-probabilities of words after states, and the states after them."""
        ...

    def finish(self, states: Sequence[State]) -> Sequence[float]:
        """Return the log-probabilities of ending after states."""
        ...


class StatefulWords(Generic[State]):
    """A `WordLanguageModel` of a `StatefulModel`. most_states: that are kept between calls."""

    def __init__(self, model: StatefulModel[State], *, most_states: int = 4096) -> None:
        self._model = model
        self._most_states = most_states
        self._states: dict[History, State] = {(): model.start()}

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> Mapping[tuple[History, str], float]:
        return dict(zip(pairs, self._scored(pairs), strict=True))

    def score_ends(self, histories: Sequence[History]) -> Mapping[History, float]:
        ends = self._model.finish(self._after(histories))
        _check_count("finish", len(histories), ends)
        return dict(zip(histories, ends, strict=True))

    def _scored(self, pairs: Sequence[tuple[History, str]]) -> Sequence[float]:
        result = self._model.score(self._after([past for past, _ in pairs]), [word for _, word in pairs])
        if not isinstance(result, tuple | list) or len(result) != 2:
            got = type(result).__name__
            raise LanguageModelError(f"neural_lm: score: expected log-probabilities and states, got {got}")
        scores, states = result
        for each in result:
            _check_count("score", len(pairs), each)
        self._states.update({(*past, word): state for (past, word), state in zip(pairs, states, strict=True)})
        return scores

    def _after(self, histories: Sequence[History]) -> list[State]:
        prefixes = {past[:n] for past in histories for n in range(1, len(past) + 1)}
        missing = prefixes - self._states.keys()
        if len(self._states) + len(missing) > self._most_states:
            self._states = {(): self._states[()]}
            missing = prefixes
        for _, level in itertools.groupby(sorted(missing, key=len), key=len):
            self._scored([(past[:-1], past[-1]) for past in level])
        return [self._states[past] for past in histories]


def _check_count(method: str, n_expected: int, values: Sequence[object]) -> None:
    if len(values) != n_expected:
        raise LanguageModelError(
            f"neural_lm: {method}: expected {n_expected} values in each list, got {len(values)}"
        )


def _check_numbers(scores: Mapping[Any, float]) -> None:
    if any(map(math.isnan, scores.values())):
        raise LanguageModelError("neural_lm: expected log-probabilities, got NaN")


class NeuralRescorer:
    """Replaces a search's word scores by a neural model's; thread-safe. Each word after a history is scored
    once.

    weight: factor on the neural log-probability. replaces: word models of the search, whose scores times
    their weights are subtracted.
    """

    def __init__(
        self, model: WordLanguageModel, weight: float, *, replaces: Sequence[tuple[WordModel, float]] = ()
    ) -> None:
        self._model = model
        self._weight = weight
        self._replaces = replaces
        self._neural: WeakKeyDictionary[WordHistory, float] = WeakKeyDictionary()
        self._ends: WeakKeyDictionary[WordHistory, float] = WeakKeyDictionary()
        self._ngrams: WeakKeyDictionary[WordHistory, tuple[float, tuple[int, ...]]] = WeakKeyDictionary()
        """Sums of replaced scores, and the states of the models."""
        self._lock = Lock()

    @property
    def n_cached(self) -> int:
        return len(self._neural)

    def adjustments(self, histories: Sequence[WordHistory], *, final: bool) -> list[float]:
        """Return what N histories add to scores. final: including the end of the sentence."""
        with self._lock:
            replaced = self._replaced(histories, final=final)
            self._score(histories)
            neural = [self._neural[history] for history in histories]
            if final:
                self._score_ends(histories)
                neural = [n + self._ends[history] for n, history in zip(neural, histories, strict=True)]
            return [self._weight * n - taken for n, taken in zip(neural, replaced, strict=True)]

    def word_scores(self, words: Sequence[HistoryWord]) -> list[float]:
        """Return the weighted scores of the words of a sentence; the last with that of the end."""
        histories = [WordHistory()]
        for word in words:
            histories.append(histories[-1].after([word]))
        with self._lock:
            self._score(histories)
            self._score_ends(histories[-1:])
            sums = [self._neural[history] for history in histories]
            sums[-1] += self._ends[histories[-1]]
        return [self._weight * (after - before) for before, after in itertools.pairwise(sums)]

    def bounds(self, histories: Sequence[WordHistory], *, final: bool) -> list[float]:
        """Return the adjustments if the model were certain of all words not scored yet."""
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
        pairs = {
            each: (each.before.context(), each.word.text)
            for level in levels
            for each in level
            if each.before is not None and each.word is not None
        }
        scores = self._model.score_words(list(dict.fromkeys(pairs.values()))) if pairs else {}
        _check_numbers(scores)
        for history in (history for level in levels for history in level):
            before = 0.0 if history.before is None else self._neural[history.before]
            self._neural[history] = before + (scores[pairs[history]] if history in pairs else 0.0)

    def _score_ends(self, histories: Sequence[WordHistory]) -> None:
        contexts = {history: history.context() for history in histories if history not in self._ends}
        if contexts:
            ends = self._model.score_ends(list(dict.fromkeys(contexts.values())))
            _check_numbers(ends)
            self._ends.update({history: ends[context] for history, context in contexts.items()})

    def _replaced(self, histories: Sequence[WordHistory], *, final: bool) -> list[float]:
        if not self._replaces:
            return [0.0] * len(histories)
        for level in _by_length(histories, self._ngrams):
            if level[0].before is None:
                start = tuple(int(model.start(1)[0]) for model, _ in self._replaces)
                self._ngrams.update(dict.fromkeys(level, (0.0, start)))
                continue
            past = [self._ngrams[history.before] for history in level if history.before is not None]
            newest = [history.word for history in level if history.word is not None]
            words = [word.text if word.in_lexicon else "<unk>" for word in newest]
            totals, states = np.array([total for total, _ in past]), []
            for (model, weight), before in zip(self._replaces, _columns(past), strict=True):
                scores, after = model.score(before, np.array(model.ids(words)))
                totals += weight * scores.astype(np.float64)
                states.append(after.tolist())
            after_words = zip(totals.tolist(), zip(*states, strict=True), strict=True)
            self._ngrams.update(zip(level, after_words, strict=True))
        sums = [self._ngrams[history] for history in histories]
        totals = np.array([total for total, _ in sums])
        if final and sums:
            for (model, weight), states in zip(self._replaces, _columns(sums), strict=True):
                totals += weight * model.finish(states).astype(np.float64)
        replaced: list[float] = totals.tolist()
        return replaced


def _columns(sums: Sequence[tuple[float, tuple[int, ...]]]) -> Ints:
    """Return the states (M, N) of M models after N histories."""
    return np.array([states for _, states in sums]).T


def _by_length(histories: Sequence[WordHistory], known: Container[WordHistory]) -> list[list[WordHistory]]:
    new: dict[WordHistory, int] = {}
    for history in histories:
        at: WordHistory | None = history
        while at is not None and at not in known and at not in new:
            new[at] = at.n_words
            at = at.before
    lengths = sorted(set(new.values()))
    return [[history for history, n in new.items() if n == length] for length in lengths]
