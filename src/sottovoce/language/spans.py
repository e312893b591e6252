"""Languages of the spans of a window, and the next question to the model about them.

Evidence of a span is the masked probe in its window, which is free and weak; the probe of the span encoded
separately; and its text, decoded in several languages. The next question (`Spans.question`) is about the span
with the largest entropy times duration. A recording is in one language until another path explains a window
better (`Spans.shows_several`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from sottovoce.language.chain import TINY, Array, Emission, best_path, posterior, prior_after
from sottovoce.language.probe import ProbedLanguage

ASK = 0.1
"""Least entropy (nats) times duration (s) that is worth a question: trades cost for accuracy."""
SHORTEST_S, SHORTEST_TEXT_S = 0.5, 0.8
"""Shorter spans are not encoded separately, or not decoded."""
CANDIDATE = 0.02
"""Least posterior of a language in which a span is decoded."""
ONE_NATS = 1.0
"""Log-odds against several languages in the first window."""


@dataclass(frozen=True, slots=True)
class Hear:
    """Encode a span separately and probe it."""

    span: int


@dataclass(frozen=True, slots=True)
class Read:
    """Decode a span in languages (indices of the allowed ones)."""

    span: int
    languages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpanRun:
    """Spans [first, end) in one language, an index of the allowed ones; probability: their mean."""

    first: int
    end: int
    language: int
    probability: float


class Spans:
    """Spans of speech in order, with their evidence.

    seconds, masked: duration and masked probe of each. base: prior (A,). spoken_s: (A,), seconds of speech
    before. before: the language before them, or None. expected: the one language of the recording; None: it
    is in several. one_nats: log-odds against several languages.
    """

    def __init__(
        self,
        emission: Emission,
        seconds: Sequence[float],
        masked: Sequence[ProbedLanguage],
        *,
        base: Array,
        spoken_s: Array,
        before: int | None = None,
        expected: int | None = None,
        one_nats: float = ONE_NATS,
    ) -> None:
        self._emission = emission
        self.seconds = np.array(seconds)
        self._probed = list(masked)
        self._is_heard = np.zeros(len(seconds), dtype=bool)
        self._is_read = np.zeros(len(seconds), dtype=bool)
        pairs = zip(masked, seconds, strict=True)
        self._sound = np.stack([emission.log_likelihood(one, own, masked=True) for one, own in pairs])
        self._text = np.zeros_like(self._sound)
        self._base, self._spoken_s = base, spoken_s
        self._before, self.expected = before, expected
        self._one_nats = one_nats
        self._solve()

    def hear(self, span: int, probed: ProbedLanguage) -> None:
        """Add the probe of a span that was encoded separately."""
        self._probed[span] = probed
        self._sound[span] = self._emission.log_likelihood(probed, float(self.seconds[span]))
        self._is_heard[span] = True
        self._solve()

    def read(self, span: int, nats: Mapping[int, float]) -> None:
        """Add the log-probabilities of a span's text by language; other languages get the least of them."""
        text = np.full(len(self._base), min(nats.values(), default=0.0))
        for language, value in nats.items():
            text[language] = value
        self._text[span] = self._emission.numbers.text * (text - text.max())
        self._is_read[span] = True
        self._solve()

    def expect_several(self, before: int | None) -> None:
        self.expected, self._before = None, before
        self._solve()

    @property
    def posterior(self) -> Array:
        """P(language | all evidence) of each span, (T, A)."""
        return self._posterior

    @property
    def sound(self) -> Array:
        """(T, A), the log-likelihoods of the audio."""
        return self._sound

    def question(self) -> Hear | Read | None:
        gain = self._gain()
        may_hear = ~self._is_heard & (self.seconds >= SHORTEST_S) & (gain >= ASK)
        if may_hear.any():
            return Hear(int(np.where(may_hear, gain, -1.0).argmax()))
        if self.expected is not None:
            return None
        may_read = self._is_heard & ~self._is_read & (self.seconds >= SHORTEST_TEXT_S) & (gain >= ASK)
        for span in np.argsort(-np.where(may_read, gain, -1.0))[: int(may_read.sum())].tolist():
            candidates = np.flatnonzero(self._posterior[span] >= CANDIDATE)
            if len(candidates) > 1:
                return Read(span, tuple(candidates.tolist()))
        return None

    def shows_several(self) -> bool:
        """Return whether the separately encoded spans show other languages than the expected one."""
        if self.expected is None or not self._is_heard.any():
            return self.expected is None
        numbers, evidence = self._emission.numbers, self._sound + self._text
        path = best_path(evidence, self._log_prior, numbers.change, self._before)
        nats = sum(own[place] - own[self.expected] for own, place in zip(evidence, path, strict=True))
        heard = np.flatnonzero(self._is_heard)
        means = [self._emission.likelihood(self._probed[span])[path[span]] for span in heard]
        is_understood = np.average(means, weights=self.seconds[heard]) > numbers.understood
        return bool(nats > numbers.several and is_understood)

    def runs(self) -> list[SpanRun]:
        """Return the runs of spans in one language; neighbouring runs differ."""
        if self.expected is None:
            change = self._emission.numbers.change
            path = best_path(self._sound + self._text, self._log_prior, change, self._before)
        else:
            path = [self.expected] * len(self.seconds)
        found, first = [], 0
        for language, group in groupby(path):
            end = first + len(list(group))
            own = self._posterior[first:end, language]
            found.append(
                SpanRun(first, end, language, float(np.average(own, weights=self._weights[first:end])))
            )
            first = end
        return found

    @property
    def _weights(self) -> Array:
        return np.maximum(self.seconds, 1e-3)

    def _gain(self) -> Array:
        entropy: Array = -(self._posterior * np.log(np.maximum(self._posterior, TINY))).sum(axis=1)
        gain: Array = entropy * self.seconds
        return gain

    def _solve(self) -> None:
        numbers, evidence = self._emission.numbers, self._sound + self._text
        log_prior = prior_after(self._base, self._spoken_s, numbers.unspoken_s)
        found, _ = posterior(evidence, log_prior, numbers.change, self._before)
        spoken_s = self._spoken_s + found.T @ self.seconds
        self._log_prior = prior_after(self._base, spoken_s, numbers.unspoken_s)
        found, nats = posterior(evidence, self._log_prior, numbers.change, self._before)
        if self.expected is not None:
            nats -= float(evidence[:, self.expected].sum())
            share = 1.0 / (1.0 + np.exp(min(self._one_nats - nats, 500.0)))
            one = np.eye(len(self._base))[self.expected]
            found = share * found + (1.0 - share) * one
        self._posterior = found
