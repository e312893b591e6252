"""The language of a live session over time: the model of `language.chain`, forward only."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, replace

import numpy as np

from sottovoce.language.chain import TINY, Array, Emission, moved, prior_after
from sottovoce.language.probe import ProbedLanguage

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
        log_belief: Array = np.where(np.arange(len(self.languages)) == language, 0.0, np.log(TINY))
        return log_belief

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
