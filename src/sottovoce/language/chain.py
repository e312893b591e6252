"""Hidden Markov model of the spoken language over spans of speech (docs/language.md).

The states are languages. `Emission` turns the probe of a span into log-likelihoods. A change of language
costs `Numbers.change` nats; languages that were spoken before are likelier (`prior_after`). Files use both
directions (`posterior`, `best_path`), live sessions the forward one (`moved`).

Source: Rabiner (1989), A tutorial on hidden Markov models, section III.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sottovoce.language.probe import ProbedLanguage

Array: TypeAlias = npt.NDArray[np.float64]

CLIPS_RIGHT, CLIPS_ANYWHERE = 3.0, 1.0
"""Prior counts of the confusion matrix: clips detected right, and as any language."""
TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Numbers:
    """The fitted numbers of the model (`python -m benchmarks language fit`).

    weight_a_second, ceiling: a span of d seconds has the weight `ceiling * (1 - exp(-weight_a_second * d /
    ceiling))`. masked: weight of a masked probe. text: weight of the log-probability of a text. change: cost
    of a change in nats. unspoken_s: seconds of speech that the prior counts as. several: log-likelihood ratio
    (nats) from which a recording is multilingual. understood: least mean likelihood of its
    languages.
    """

    weight_a_second: float
    ceiling: float
    masked: float
    text: float
    change: float
    unspoken_s: float
    several: float
    understood: float


@dataclass(frozen=True, slots=True)
class Fit:
    """The fitted model; detected: development clips by spoken and detected language."""

    numbers: Numbers
    detected: Mapping[str, Mapping[str, float]]


@cache
def fitted() -> Fit:
    table = json.loads(files("sottovoce.language").joinpath("fitted.json").read_text("utf-8"))
    return Fit(Numbers(**table["numbers"]), table["detected"])


def spoken_given_detected(codes: Sequence[str], detected: Mapping[str, Mapping[str, float]]) -> Array:
    """Return P(language spoken | language detected) as (L spoken, L detected); detected: as in `Fit`."""
    places = {code: index for index, code in enumerate(codes)}
    counts = CLIPS_RIGHT * np.eye(len(codes)) + CLIPS_ANYWHERE / len(codes)
    for spoken, row in detected.items():
        for other, n_clips in row.items():
            if spoken in places and other in places:
                counts[places[spoken], places[other]] += n_clips
    detected_given_spoken = counts / counts.sum(axis=1, keepdims=True)
    found: Array = detected_given_spoken / detected_given_spoken.sum(axis=0)
    return found


class Emission:
    """Log-likelihoods of the audio of spans.

    codes: all languages of the model. allowed: the states. fit: None: the one of the package.
    """

    def __init__(self, codes: Sequence[str], allowed: Sequence[str], fit: Fit | None = None) -> None:
        fit = fit or fitted()
        self.numbers = fit.numbers
        self._places = [codes.index(code) for code in allowed]
        self._spoken = spoken_given_detected(codes, fit.detected)[self._places]

    @classmethod
    @lru_cache(maxsize=8)
    def shared(cls, codes: tuple[str, ...], allowed: tuple[str, ...]) -> Emission:
        """Return the package's emission, the same object for all sessions."""
        return cls(codes, allowed)

    def allowed_mass(self, probed: ProbedLanguage) -> float:
        return float(probed.probabilities[self._places].sum())

    def likelihood(self, probed: ProbedLanguage) -> Array:
        """Return the likelihood (A,) of each allowed language."""
        found: Array = np.maximum(self._spoken @ probed.probabilities, TINY)
        return found

    def weight(self, probed: ProbedLanguage, seconds: float, *, masked: bool = False) -> float:
        numbers = self.numbers
        share = 1.0 - math.exp(-numbers.weight_a_second * seconds / numbers.ceiling)
        return (numbers.masked if masked else numbers.ceiling * share) * (1.0 - probed.no_speech)

    def log_likelihood(self, probed: ProbedLanguage, seconds: float, *, masked: bool = False) -> Array:
        """Return the weighted log-likelihood (A,) of each allowed language; masked: probed in its window."""
        found: Array = self.weight(probed, seconds, masked=masked) * np.log(self.likelihood(probed))
        return found


def base_prior(codes: Sequence[str], allowed: Sequence[str], odds: Mapping[str, float]) -> Array:
    """Return the prior (A,) of the allowed languages before any speech.

    Those of a list are equal. Among all languages, the n-th has a weight of 1 / n (Zipf's law).

    codes: all, by hours of training. odds: natural logarithms of further factors, used among all languages.
    """
    if len(allowed) < len(codes):
        return np.full(len(allowed), 1.0 / len(allowed))
    ranks = np.arange(1, len(codes) + 1)
    weights = np.exp([odds.get(code, 0.0) for code in codes]) / ranks
    prior: Array = weights / weights.sum()
    return prior


def prior_after(base: Array, spoken_s: Array, unspoken_s: float) -> Array:
    """Return the log-prior (A,) after seconds of speech in each language; base: (A,), sums to 1."""
    seconds = spoken_s + unspoken_s * base
    found: Array = np.log(np.maximum(seconds / seconds.sum(), TINY))
    return found


def moved(log_belief: Array, log_prior: Array, change: float) -> Array:
    """Return the log-belief (A,) of the next span: with probability e^-change a language of the prior."""
    total = np.logaddexp.reduce(log_belief)
    found: Array = np.logaddexp(log_belief + np.log1p(-np.exp(-change)), log_prior + total - change)
    return found


def _beginning(log_prior: Array, change: float, before: int | None) -> Array:
    if before is None:
        return log_prior
    known = np.full(len(log_prior), np.log(TINY))
    known[before] = 0.0
    return moved(known, log_prior, change)


def posterior(
    evidence: Array, log_prior: Array, change: float, before: int | None = None
) -> tuple[Array, float]:
    """Return P(language of each span | all evidence) (T, A), and the log-likelihood of all evidence.

    evidence: (T, A). before: index of the language before the first span, or None.
    """
    n_spans = len(evidence)
    forward, backward = np.empty_like(evidence), np.zeros_like(evidence)
    belief, log_likelihood = _beginning(log_prior, change, before), 0.0
    for index, own in enumerate(evidence):
        joint = (moved(belief, log_prior, change) if index else belief) + own
        total = float(np.logaddexp.reduce(joint))
        log_likelihood += total
        belief = forward[index] = joint - total
    stay = np.log1p(-np.exp(-change))
    for index in range(n_spans - 1, 0, -1):
        joint = backward[index] + evidence[index]
        changed = np.logaddexp.reduce(log_prior + joint) - change
        back = np.logaddexp(joint + stay, changed)
        backward[index - 1] = back - back.max()
    joint = forward + backward
    found: Array = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
    return found, log_likelihood


def best_path(evidence: Array, log_prior: Array, change: float, before: int | None = None) -> list[int]:
    """Return the indices of the likeliest languages (Viterbi); arguments as in `posterior`."""
    score = _beginning(log_prior, change, before) + evidence[0]
    stay, places = np.log1p(-np.exp(-change)), np.arange(len(log_prior))
    arrivals = []
    for own in evidence[1:]:
        source = int(score.argmax())
        changed, stayed = score[source] - change + log_prior, score + stay
        arrivals.append(np.where(changed > stayed, source, places))
        score = np.maximum(changed, stayed) + own
    path = [int(score.argmax())]
    for arrival in reversed(arrivals):
        path.append(int(arrival[path[-1]]))
    return path[::-1]
