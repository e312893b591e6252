"""Hidden Markov model of the spoken language over spans of speech (docs/language.md).

The states are languages. `Emission` turns the probe of a span into log-likelihoods. A change costs
`Numbers.change` nats; languages spoken before are likelier. Files use both directions (`posterior`,
`best_path`) and ask about uncertain spans (`Spans`), live sessions the forward one (`LanguageTimeline`).

Source: Rabiner (1989), A tutorial on hidden Markov models, section III.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from itertools import groupby
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
    (nats) from which a recording is multilingual. understood: least mean likelihood of its languages.
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
    """Return P(language spoken | language detected) as (L spoken, L detected)."""
    places = {code: index for index, code in enumerate(codes)}
    counts = CLIPS_RIGHT * np.eye(len(codes)) + CLIPS_ANYWHERE / len(codes)
    for spoken, row in detected.items():
        for other, n_clips in row.items():
            if spoken in places and other in places:
                counts[places[spoken], places[other]] += n_clips
    detected_given_spoken = counts / counts.sum(axis=1, keepdims=True)
    spoken_given: Array = detected_given_spoken / detected_given_spoken.sum(axis=0)
    return spoken_given


class Emission:
    """Log-likelihoods of the audio of spans.

    codes: all languages of the model. allowed: the states.
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
        return np.maximum(self._spoken @ probed.probabilities, TINY)

    def weight(self, probed: ProbedLanguage, seconds: float, *, masked: bool = False) -> float:
        numbers = self.numbers
        share = 1.0 - math.exp(-numbers.weight_a_second * seconds / numbers.ceiling)
        return (numbers.masked if masked else numbers.ceiling * share) * (1.0 - probed.no_speech)

    def log_likelihood(self, probed: ProbedLanguage, seconds: float, *, masked: bool = False) -> Array:
        """Return the weighted log-likelihood (A,) of each allowed language; masked: probed in its window."""
        return self.weight(probed, seconds, masked=masked) * np.log(self.likelihood(probed))


def base_prior(codes: Sequence[str], allowed: Sequence[str], odds: Mapping[str, float]) -> Array:
    """Return the prior (A,) of the allowed languages: equal in a list, else by Zipf's law.

    codes: all, by hours of training. odds: natural logarithms of further factors.
    """
    if len(allowed) < len(codes):
        return np.full(len(allowed), 1.0 / len(allowed))
    ranks = np.arange(1, len(codes) + 1)
    weights = np.exp([odds.get(code, 0.0) for code in codes]) / ranks
    prior: Array = weights / weights.sum()
    return prior


def prior_after(base: Array, spoken_s: Array, unspoken_s: float) -> Array:
    """Return the log-prior (A,) after seconds of speech in each language."""
    seconds = spoken_s + unspoken_s * base
    log_prior: Array = np.log(np.maximum(seconds / seconds.sum(), TINY))
    return log_prior


def moved(log_belief: Array, log_prior: Array, change: float) -> Array:
    """Return the log-belief (A,) of the next span: e^-change is the probability of a draw from the prior."""
    total = np.logaddexp.reduce(log_belief)
    log_next: Array = np.logaddexp(log_belief + np.log1p(-np.exp(-change)), log_prior + total - change)
    return log_next


def _beginning(log_prior: Array, change: float, before: int | None) -> Array:
    if before is None:
        return log_prior
    known = np.full(len(log_prior), np.log(TINY))
    known[before] = 0.0
    return moved(known, log_prior, change)


def posterior(
    evidence: Array, log_prior: Array, change: float, before: int | None = None
) -> tuple[Array, float]:
    """Return P(language of each span | all evidence) (T, A), and the log-likelihood of the evidence (T, A).

    before: index of the language before the first span.
    """
    highest = evidence.max(axis=1, keepdims=True)
    likelihood, stay = np.exp(evidence - highest), -math.expm1(-change)
    drawn = np.exp(log_prior - change)
    joint, totals = np.empty_like(evidence), np.empty(len(evidence))
    belief = np.exp(_beginning(log_prior, change, before))
    for index, of_span in enumerate(likelihood):
        if index:
            belief = stay * belief + drawn
        totals[index] = total = belief @ of_span
        belief = joint[index] = belief * of_span / total
    ahead = np.ones(len(log_prior))
    for index in range(len(evidence) - 1, 0, -1):
        ahead = ahead * likelihood[index] / totals[index]
        ahead = stay * ahead + drawn @ ahead
        joint[index - 1] *= ahead
    return joint / joint.sum(axis=1, keepdims=True), float(np.log(totals).sum() + highest.sum())


def best_path(evidence: Array, log_prior: Array, change: float, before: int | None = None) -> list[int]:
    """Return the indices of the likeliest languages (Viterbi)."""
    score = _beginning(log_prior, change, before) + evidence[0]
    stay, places = np.log1p(-np.exp(-change)), np.arange(len(log_prior))
    arrivals = []
    for of_span in evidence[1:]:
        source = int(score.argmax())
        changed, stayed = score[source] - change + log_prior, score + stay
        arrivals.append(np.where(changed > stayed, source, places))
        score = np.maximum(changed, stayed) + of_span
    path = [int(score.argmax())]
    for arrival in reversed(arrivals):
        path.append(int(arrival[path[-1]]))
    return path[::-1]


ASK = 0.1
"""Least entropy (nats) times duration (s) worth a question: trades cost for accuracy."""
SHORTEST_S, SHORTEST_TEXT_S = 0.5, 0.8
"""Shorter spans are not encoded separately, or not decoded."""
CANDIDATE = 0.02
"""Least posterior of a language in which a span is decoded."""
ONE_NATS = 1.0
"""Log-odds against several languages in the first window."""


@dataclass(frozen=True, slots=True)
class Question:
    """Decode a span in languages (indices of the allowed ones); none: encode it separately and probe it."""

    span: int
    languages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SpanRun:
    """A run of spans [first, end) in one language (index of an allowed one), with their mean probability."""

    first: int
    end: int
    language: int
    probability: float


class Spans:
    """Spans of speech in order, with their evidence.

    Evidence is the masked probe in the window, free and weak; the probe of a span encoded separately; and its
    text, decoded in several languages. The next `question` is about the span with the largest entropy times
    duration.

    base: prior (A,). spoken_s: (A,), seconds of speech before. before: the language before. expected: the one
    language of the recording, or None. one_nats: log-odds against several languages.
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
        self._sound = np.stack(
            [emission.log_likelihood(probed, length_s, masked=True) for probed, length_s in pairs]
        )
        self._text = np.zeros_like(self._sound)
        self._base, self._spoken_s = base, spoken_s
        self._before, self.expected = before, expected
        self._one_nats = one_nats
        self._solve()

    def hear(self, span: int, probed: ProbedLanguage) -> None:
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
        """Log-likelihoods (T, A) of the audio."""
        return self._sound

    def unsure(self) -> list[int]:
        """Return the spans that are worth a probe, those with the largest gain first."""
        gain = self._gain()
        may_hear = ~self._is_heard & (self.seconds >= SHORTEST_S) & (gain >= ASK)
        spans: list[int] = np.argsort(-np.where(may_hear, gain, -1.0), kind="stable").tolist()
        return spans[: int(may_hear.sum())]

    def question(self) -> Question | None:
        if unsure := self.unsure():
            return Question(unsure[0])
        if self.expected is not None:
            return None
        gain = self._gain()
        may_read = self._is_heard & ~self._is_read & (self.seconds >= SHORTEST_TEXT_S) & (gain >= ASK)
        for span in np.argsort(-np.where(may_read, gain, -1.0))[: int(may_read.sum())].tolist():
            candidates = np.flatnonzero(self._posterior[span] >= CANDIDATE)
            if len(candidates) > 1:
                return Question(span, tuple(candidates.tolist()))
        return None

    def _gain(self) -> Array:
        entropy = -(self._posterior * np.log(np.maximum(self._posterior, TINY))).sum(axis=1)
        gain: Array = entropy * self.seconds
        return gain

    def shows_several(self) -> bool:
        """Return whether separately encoded spans show other languages than the expected one."""
        if self.expected is None or not self._is_heard.any():
            return self.expected is None
        numbers, evidence = self._emission.numbers, self._sound + self._text
        path = best_path(evidence, self._log_prior, numbers.change, self._before)
        nats = sum(row[place] - row[self.expected] for row, place in zip(evidence, path, strict=True))
        places = np.flatnonzero(self._is_heard)
        means = [self._emission.likelihood(self._probed[span])[path[span]] for span in places]
        is_understood = np.average(means, weights=self.seconds[places]) > numbers.understood
        return bool(nats > numbers.several and is_understood)

    def runs(self) -> list[SpanRun]:
        if self.expected is None:
            change = self._emission.numbers.change
            path = best_path(self._sound + self._text, self._log_prior, change, self._before)
        else:
            path = [self.expected] * len(self.seconds)
        n_runs, first = [], 0
        for language, group in groupby(path):
            end = first + len(list(group))
            of_run = self._posterior[first:end, language]
            n_runs.append(
                SpanRun(first, end, language, float(np.average(of_run, weights=self._weights[first:end])))
            )
            first = end
        return n_runs

    @property
    def _weights(self) -> Array:
        return np.maximum(self.seconds, 1e-3)

    def _solve(self) -> None:
        numbers, evidence = self._emission.numbers, self._sound + self._text
        log_prior = prior_after(self._base, self._spoken_s, numbers.unspoken_s)
        spoken, _ = posterior(evidence, log_prior, numbers.change, self._before)
        spoken_s = self._spoken_s + spoken.T @ self.seconds
        self._log_prior = prior_after(self._base, spoken_s, numbers.unspoken_s)
        spoken, nats = posterior(evidence, self._log_prior, numbers.change, self._before)
        if self.expected is not None:
            nats -= float(evidence[:, self.expected].sum())
            share = 1.0 / (1.0 + np.exp(min(self._one_nats - nats, 500.0)))
            single = np.eye(len(self._base))[self.expected]
            spoken = share * spoken + (1.0 - share) * single
        self._posterior = spoken


HISTORY_S = 60.0
"""Stretches of so many seconds are kept."""
LOOK_BACK_S = 10.0
"""How far back a change point is searched."""
START_TOLERANCE_S = 0.05
"""A stretch that begins this close to the start of an utterance holds all of it."""


@dataclass(frozen=True, slots=True, eq=False)
class TimelineFrame:
    """One probed stretch.

    evidence: (A,), log-likelihoods of the allowed languages. posterior: (A,), after all speech so far.
    """

    start_s: float
    end_s: float
    evidence: Array
    posterior: Array
    allowed_mass: float = 1.0

    @property
    def centre_s(self) -> float:
        return (self.start_s + self.end_s) / 2


@dataclass(frozen=True, slots=True)
class LanguageChange:
    """A switch: change point and time of decision in seconds; source: None at first."""

    source: str | None
    target: str
    at_s: float
    confirmed_s: float


@dataclass(eq=False)
class LanguageTimeline:
    """Follows the language of a session through probed stretches.

    A stretch is combined with the posterior before its own audio, so that overlaps do not count twice.

    base: prior (A,). certainty: posterior from which another language becomes the current one. first_wait_s:
    seconds of speech after which the likeliest language becomes the first.
    """

    languages: Sequence[str]
    emission: Emission
    base: Array
    _: KW_ONLY
    certainty: float
    first_wait_s: float
    initial: InitVar[str | None] = None

    def __post_init__(self, initial: str | None) -> None:
        self._spoken_s: Array = np.zeros(len(self.languages))
        self._current = None if initial is None else self.languages.index(initial)
        self._frames: deque[TimelineFrame] = deque()
        self._floor_s = 0.0
        self._before = self._belief = self._log_prior if self._current is None else self._known(self._current)
        self._is_opening = True

    @property
    def current(self) -> str | None:
        return None if self._current is None else self.languages[self._current]

    @property
    def frames(self) -> tuple[TimelineFrame, ...]:
        return tuple(self._frames)

    @property
    def belief(self) -> dict[str, float]:
        """The posterior of each language after all speech so far."""
        return dict(zip(self.languages, np.exp(self._belief).tolist(), strict=True))

    @property
    def since_s(self) -> float:
        """Start (s) of the utterance, or of its part in the current language."""
        return self._floor_s

    @property
    def is_opening(self) -> bool:
        """Whether no change was found within the utterance yet."""
        return self._is_opening

    @property
    def certain_until_s(self) -> float:
        """Time (s) up to which words are certainly in the current language.

        inf without contrary evidence; -inf before the first language is known.
        """
        if self._current is None:
            return -math.inf
        for frame in reversed(self._frames):
            if frame.end_s <= self._floor_s:
                break
            if int(frame.evidence.argmax()) == self._current:
                is_certain = frame is self._frames[-1] and int(self._belief.argmax()) == self._current
                return math.inf if is_certain else frame.centre_s
        return self._floor_s

    def allowed_mass(self, start_s: float, end_s: float) -> float | None:
        """Return the mean `allowed_mass` of stretches with their middle in a span (s), or None."""
        masses = [frame.allowed_mass for frame in self._frames if start_s <= frame.centre_s <= end_s]
        return sum(masses) / len(masses) if masses else None

    def begin(self, start_s: float) -> None:
        if self._frames and self._frames[-1].end_s > self._floor_s:
            self._spoken_s += np.exp(self._belief) * (self._frames[-1].end_s - self._floor_s)
        if self._frames or self._current is not None:
            self._before = self._moved(self._belief)
        self._floor_s = start_s
        self._is_opening = True
        self._belief = self._before

    def add(self, start_s: float, end_s: float, probed: ProbedLanguage) -> None:
        """Add a stretch of speech; ends must not decrease."""
        evidence = self.emission.log_likelihood(probed, end_s - start_s)
        is_whole = start_s <= self._floor_s + START_TOLERANCE_S
        belief = (self._before if is_whole else self._moved(self._belief_at(start_s))) + evidence
        self._belief = belief = belief - np.logaddexp.reduce(belief)
        mass = self.emission.allowed_mass(probed)
        self._frames.append(TimelineFrame(start_s, end_s, evidence, np.exp(belief), mass))
        while self._frames[0].end_s < end_s - HISTORY_S:
            self._frames.popleft()

    def decide(self, *, at_end: bool = False) -> LanguageChange | None:
        """Switch if another language is certain enough; return the change or None.

        at_end: of the utterance: take the likeliest language if none is known yet, or if the last stretch
        held all of it.
        """
        likeliest = int(self._belief.argmax())
        last = self._frames[-1] if self._frames else None
        if likeliest == self._current or last is None or last.end_s <= self._floor_s:
            return None
        is_whole = last.start_s <= self._floor_s + START_TOLERANCE_S
        is_late = self._current is None and last.end_s - self._floor_s >= self.first_wait_s - 1e-9
        is_due = is_late or (at_end and (self._current is None or is_whole))
        if not is_due and np.exp(self._belief[likeliest]) < self.certainty:
            return None
        return self._carry_out(likeliest, last.end_s)

    def place(self, change: LanguageChange, at_s: float) -> LanguageChange:
        """Move the last change to a time (s)."""
        self._floor_s = at_s
        return replace(change, at_s=at_s)

    @property
    def _log_prior(self) -> Array:
        return prior_after(self.base, self._spoken_s, self.emission.numbers.unspoken_s)

    def _known(self, language: int) -> Array:
        return np.where(np.arange(len(self.languages)) == language, 0.0, np.log(TINY))

    def _moved(self, belief: Array) -> Array:
        return moved(belief, self._log_prior, self.emission.numbers.change)

    def _belief_at(self, start_s: float) -> Array:
        for frame in reversed(self._frames):
            if frame.end_s <= self._floor_s:
                break
            if frame.end_s <= start_s:
                log_belief: Array = np.log(np.maximum(frame.posterior, TINY))
                return log_belief
        return self._before

    def _carry_out(self, target: int, now_s: float) -> LanguageChange:
        source, self._current = self._current, target
        if source is None:
            return LanguageChange(None, self.languages[target], self._floor_s, now_s)
        at_s = self._change_point(source, target)
        self._spoken_s[source] += at_s - self._floor_s
        self._is_opening = self._is_opening and at_s == self._floor_s
        self._floor_s = at_s
        self._before = self._belief = self._moved(self._known(target))
        return LanguageChange(self.languages[source], self.languages[target], at_s, now_s)

    def _change_point(self, source: int, target: int) -> float:
        earliest = max(self._floor_s, self._frames[-1].end_s - LOOK_BACK_S)
        frames = [frame for frame in self._frames if frame.centre_s >= earliest]
        kept = [float(frame.evidence[source] - frame.evidence[target]) for frame in frames]
        first = int(np.argmax(np.concatenate(([0.0], np.cumsum(kept)))))
        if first == 0:
            return self._floor_s
        if first == len(frames):
            return frames[-1].centre_s
        return (frames[first - 1].centre_s + frames[first].centre_s) / 2
