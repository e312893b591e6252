"""The language of a recording over time: probed stretches, smoothed, and switches between languages.

Keeps the last `HISTORY_S` seconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sottovoce.language.probe import ProbedLanguage
from sottovoce.language.switching import (
    Hysteresis,
    Posterior,
    SmoothingOptions,
    Switch,
    SwitchOptions,
    carried_on,
    change_point,
    transition_matrix,
)

HISTORY_S = 60.0
LOOK_BACK_S = 10.0
"""How far back a change point is searched."""
CALIBRATED_S, MOST = 1.5, 2.0
"""Seconds of a stretch whose evidence has weight 1 (the probe is overconfident on shorter ones), and the
largest weight of longer ones, as for files.
"""
SWITCH_BELIEF = 0.9
START_BONUS = 1.0
"""Log-odds of a change at the pause before the utterance, against one within it."""
START_TOLERANCE_S = 0.05
"""A stretch that begins this close to the start of an utterance holds all of it."""
OVERLAP_S = 0.25
"""A stretch that ends no later than this after the beginning of another one precedes it."""
LEAST, LEAST_WHOLE = 1e-3, 1e-9
"""Least probability of a language in a stretch, so that one stretch cannot rule it out, unless it holds
all of an utterance.
"""
HOLD_ODDS = 1.5
"""Words are held back after the last stretch in which the current language led by this factor."""


@dataclass(frozen=True, slots=True, eq=False)
class TimelineFrame:
    """One probed stretch.

    posterior: (L,) of the stretch alone, weighted by its length. belief: (L,), smoothed. allowed_mass:
    probability of the allowed languages among all.
    """

    start_s: float
    end_s: float
    posterior: Posterior
    belief: Posterior
    allowed_mass: float = 1.0

    @property
    def centre_s(self) -> float:
        return (self.start_s + self.end_s) / 2


@dataclass(frozen=True, slots=True)
class LanguageChange:
    """A switch to carry out: codes (source None: the first language), change point and confirmation in
    seconds.
    """

    source: str | None
    target: str
    at_s: float
    confirmed_s: float


class LanguageTimeline:
    """Follow the language of a recording through probed stretches.

    Each stretch is combined with the belief before its own audio (before the utterance, or at the end of
    the last stretch that precedes it), so that overlapping stretches do not count twice.

    full_width_s: stretches shorter than this or CALIBRATED_S, with little speech, or in a language outside
    the list, count for less. current: the initial language, or None.
    """

    def __init__(
        self,
        languages: Sequence[str],
        smoothing: SmoothingOptions,
        switching: SwitchOptions,
        *,
        full_width_s: float,
        current: str | None = None,
    ) -> None:
        self._languages = tuple(languages)
        self._smoothing = smoothing
        self._full_width_s = min(CALIBRATED_S, full_width_s)
        index = None if current is None else self._languages.index(current)
        self._hysteresis = Hysteresis(switching, index)
        self._frames: deque[TimelineFrame] = deque()
        self._floor_s = 0.0
        self._prior: Posterior = np.full(len(self._languages), 1.0 / len(self._languages))
        self._belief = self._prior
        self._after_pause = True

    @property
    def languages(self) -> tuple[str, ...]:
        return self._languages

    @property
    def current(self) -> str | None:
        index = self._hysteresis.current
        return None if index is None else self._languages[index]

    @property
    def frames(self) -> tuple[TimelineFrame, ...]:
        return tuple(self._frames)

    @property
    def belief(self) -> dict[str, float]:
        return dict(zip(self._languages, self._belief.tolist(), strict=True))

    @property
    def since_s(self) -> float:
        """Start (s) of the utterance, or of its part in the current language; no stretch begins before it."""
        return self._floor_s

    @property
    def is_opening(self) -> bool:
        """Whether no change was found in the utterance yet, other than the session's first language."""
        return self._after_pause

    @property
    def certain_until_s(self) -> float:
        """Time (s) up to which words are certainly in the current language.

        inf without contrary evidence; in doubt, the middle of the last supporting stretch; -inf before the
        first language is known.
        """
        current = self._hysteresis.current
        if current is None:
            return -math.inf
        for frame in reversed(self._frames):
            if frame.end_s <= self._floor_s:
                break
            others = np.delete(frame.posterior, current).max(initial=0.0)
            if frame.posterior[current] >= HOLD_ODDS * others:
                certain = frame is self._frames[-1] and not self._hysteresis.in_doubt
                return math.inf if certain else frame.centre_s
        return self._floor_s

    def allowed_mass(self, start_s: float, end_s: float) -> float | None:
        """Return the mean `TimelineFrame.allowed_mass` of stretches with their middle in a span (s), or
        None.
        """
        found = [frame.allowed_mass for frame in self._frames if start_s <= frame.centre_s <= end_s]
        return sum(found) / len(found) if found else None

    def begin(self, start_s: float) -> None:
        """Begin an utterance: no change point precedes it, and a change is likelier than within."""
        self._floor_s = start_s
        self._after_pause = True
        current, n = self._hysteresis.current, len(self._languages)
        if current is not None:
            self._prior = transition_matrix(n, 1.0 - self._smoothing.renewal)[current]
        else:
            self._prior = np.full(n, 1.0 / n)
        self._belief = self._prior
        self._hysteresis.begin(start_s)

    def add(self, start_s: float, end_s: float, probed: ProbedLanguage) -> None:
        weight = min(MOST, (end_s - start_s) / self._full_width_s)
        weight *= (1.0 - probed.no_speech) * math.sqrt(probed.allowed_mass)
        is_whole = start_s <= self._floor_s + START_TOLERANCE_S
        least = LEAST_WHOLE if is_whole else LEAST
        posterior = np.maximum(probed.probabilities, least) ** weight
        posterior = posterior / posterior.sum()
        belief = (self._prior if is_whole else self._belief_at(start_s)) * posterior
        self._belief = belief = belief / belief.sum()
        self._frames.append(TimelineFrame(start_s, end_s, posterior, belief, probed.allowed_mass))
        while self._frames[0].end_s < end_s - HISTORY_S:
            self._frames.popleft()
        self._hysteresis.step(belief, end_s, opening=is_whole)

    def _belief_at(self, start_s: float) -> Posterior:
        """Return the predicted belief (L,) at a time, from the stretches that end before it."""
        before = self._prior
        for frame in reversed(self._frames):
            if frame.end_s <= self._floor_s:
                break
            if frame.end_s <= start_s + OVERLAP_S:
                before = frame.belief
                break
        return carried_on(before, self._smoothing.stay)

    def due(self, now_s: float, *, at_end: bool = False) -> LanguageChange | None:
        """Return the switch that is due and change the language, or None.

        at_end: the utterance ends, and a confirmed switch waits no longer.
        """
        switch = self._hysteresis.due(now_s, at_end=at_end)
        return None if switch is None else self._carry_out(switch)

    def resolve(self, now_s: float) -> LanguageChange | None:
        """Decide at the end of an utterance; return the switch or None.

        A pending switch is due. Otherwise the likeliest language is taken if none is known yet, or if the
        last stretch held all of the utterance.
        """
        pending = self.due(now_s, at_end=True)
        if pending is not None or not self._frames or self._frames[-1].end_s <= self._floor_s:
            return pending
        current, likeliest = self._hysteresis.current, int(self._belief.argmax())
        is_whole = self._frames[-1].start_s <= self._floor_s + START_TOLERANCE_S
        if likeliest == current or not (current is None or is_whole):
            return None
        self._hysteresis.force(likeliest)
        return self._carry_out(Switch(current, likeliest, now_s))

    def place(self, change: LanguageChange, at_s: float) -> LanguageChange:
        self._floor_s = at_s
        return replace(change, at_s=at_s)

    def _carry_out(self, switch: Switch) -> LanguageChange:
        at_s = self._floor_s if switch.source is None else self._change_point(switch.source, switch.target)
        self._after_pause = self._after_pause and at_s == self._floor_s
        self._floor_s = at_s
        if switch.source is not None:
            self._prior = transition_matrix(len(self._languages), SWITCH_BELIEF)[switch.target]
            self._belief = self._prior
        source = None if switch.source is None else self._languages[switch.source]
        return LanguageChange(source, self._languages[switch.target], at_s, switch.confirmed_s)

    def _change_point(self, source: int, target: int) -> float:
        frames = self._recent()
        if not frames:
            return self._floor_s
        posteriors = np.stack([frame.posterior for frame in frames])
        first = change_point(
            posteriors, source, target, start_bonus=START_BONUS if self._after_pause else 0.0
        )
        if first == 0:
            return self._floor_s
        if first == len(frames):
            return frames[-1].centre_s
        return (frames[first - 1].centre_s + frames[first].centre_s) / 2

    def _recent(self) -> list[TimelineFrame]:
        if not self._frames:
            return []
        earliest = max(self._floor_s, self._frames[-1].end_s - LOOK_BACK_S)
        return [frame for frame in self._frames if frame.centre_s >= earliest]
