"""The language over time: what the probe said of each stretch, smoothed, with the switches found in it.

Keeps the last `KEPT_S` seconds. Not known here: audio, models, and how a switch is carried out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.language.probe import ProbedLanguage
from sottovoce.language.smoothing import (
    ForwardFilter,
    Posterior,
    RunningMedian,
    SmoothingOptions,
    change_point,
    viterbi,
)
from sottovoce.language.switching import Hysteresis, Switch, SwitchOptions

KEPT_S = 60.0
LOOK_BACK_S = 10.0
"""A change point is looked for no further back than this."""


@dataclass(frozen=True, slots=True, eq=False)
class TimelineFrame:
    """One probed stretch: what was heard (L,), and the belief (L,) after it.

    allowed_mass: what the allow-list had among all languages of the model.
    """

    start_s: float
    end_s: float
    heard: Posterior
    belief: Posterior
    allowed_mass: float = 1.0

    @property
    def centre_s(self) -> float:
        return (self.start_s + self.end_s) / 2


@dataclass(frozen=True, slots=True)
class LanguageChange:
    """A switch to carry out: codes, the estimated change point, and when it was confirmed (seconds)."""

    source: str | None
    target: str
    at_s: float
    confirmed_s: float


class LanguageTimeline:
    """Follows the language of a recording through probed stretches.

    full_width_s: stretches shorter than this, with little speech, or in a language outside the list, count
        for less.
    hold_odds: the newest stretch must favour the current language over any other by this factor, or
        words after the last one that did are held back.
    """

    def __init__(
        self,
        languages: Sequence[str],
        smoothing: SmoothingOptions,
        switching: SwitchOptions,
        *,
        full_width_s: float,
        hold_odds: float = 1.5,
        current: str | None = None,
    ) -> None:
        self._languages = tuple(languages)
        self._smoothing = smoothing
        self._full_width_s = full_width_s
        self._hold_odds = hold_odds
        self._median = RunningMedian(smoothing.median_frames)
        self._forward = ForwardFilter(len(self._languages), smoothing)
        index = None if current is None else self._languages.index(current)
        self._hysteresis = Hysteresis(switching, index)
        self._frames: deque[TimelineFrame] = deque()
        self._floor_s = 0.0

    @property
    def languages(self) -> tuple[str, ...]:
        return self._languages

    @property
    def current(self) -> str | None:
        """The language in use; None before the first is known."""
        index = self._hysteresis.current
        return None if index is None else self._languages[index]

    @property
    def likeliest(self) -> str:
        """The language that is believed in most now."""
        return self._languages[int(self._forward.belief.argmax())]

    @property
    def frames(self) -> tuple[TimelineFrame, ...]:
        """The stretches of the last minute."""
        return tuple(self._frames)

    @property
    def belief(self) -> dict[str, float]:
        """P(language now | all that was heard)."""
        return dict(zip(self._languages, self._forward.belief.tolist(), strict=True))

    @property
    def settled_until_s(self) -> float:
        """Words that end by then are surely in the current language.

        While nothing speaks against it: inf. In doubt: the middle of the last stretch that was sure.
        """
        current = self._hysteresis.current
        if current is None:
            return -math.inf
        for frame in reversed(self._frames):
            if frame.end_s <= self._floor_s:
                break
            others = np.delete(frame.heard, current).max(initial=0.0)
            if frame.heard[current] >= self._hold_odds * others:
                sure = frame is self._frames[-1] and not self._hysteresis.in_doubt
                return math.inf if sure else frame.centre_s
        return self._floor_s

    def allowed_mass(self, start_s: float, end_s: float) -> float | None:
        """What the allow-list had among all languages of the model, on average over the stretches with their
        middle in a span; None without any."""
        found = [frame.allowed_mass for frame in self._frames if start_s <= frame.centre_s <= end_s]
        return sum(found) / len(found) if found else None

    def begin(self, start_s: float) -> None:
        """An utterance begins: no change point lies before it."""
        self._floor_s = start_s
        self._median.reset()

    def add(self, start_s: float, end_s: float, probed: ProbedLanguage) -> None:
        """Take what was heard in a stretch; they must come in order of their ends."""
        weight = min(1.0, (end_s - start_s) / self._full_width_s)
        weight *= (1.0 - probed.no_speech) * probed.allowed_mass
        heard = np.maximum(probed.probabilities, 1e-9) ** weight
        heard = heard / heard.sum()
        belief = self._forward.step(self._median.step(heard))
        self._frames.append(TimelineFrame(start_s, end_s, heard, belief, probed.allowed_mass))
        while self._frames[0].end_s < end_s - KEPT_S:
            self._frames.popleft()
        self._hysteresis.step(belief, end_s)

    def due(self, now_s: float, *, at_boundary: bool = False) -> LanguageChange | None:
        """Take the switch that is due, if any; the language is the new one from here on."""
        switch = self._hysteresis.due(now_s, at_boundary=at_boundary)
        return None if switch is None else self._carried_out(switch)

    def resolve(self, now_s: float) -> LanguageChange | None:
        """Decide at the end of an utterance, where no more evidence comes.

        A pending switch is due. Without one, the last language of the most probable sequence counts; if
        no language is known yet, the likeliest of all that was heard.
        """
        pending = self.due(now_s, at_boundary=True)
        frames = self._recent()
        if pending is not None or not frames:
            return pending
        heard = np.stack([frame.heard for frame in frames])
        current = self._hysteresis.current
        if current is None:
            last = int(np.log(heard).sum(axis=0).argmax())
        else:
            last = int(
                viterbi(np.concatenate((np.eye(len(self._languages))[[current]], heard)), self._smoothing)[-1]
            )
        if last == current:
            return None
        self._hysteresis.settle(last)
        return self._carried_out(Switch(current, last, frames[0].end_s, now_s))

    def _carried_out(self, switch: Switch) -> LanguageChange:
        at_s = self._floor_s if switch.source is None else self._change_point(switch.source, switch.target)
        self._floor_s = at_s
        self._median.reset()
        self._forward.reset(self._sure_of(switch.target))
        source = None if switch.source is None else self._languages[switch.source]
        return LanguageChange(source, self._languages[switch.target], at_s, switch.confirmed_s)

    def _change_point(self, source: int, target: int) -> float:
        """Between the middles of the stretches that the best split parts."""
        frames = self._recent()
        if not frames:
            return self._floor_s
        first = change_point(np.stack([frame.heard for frame in frames]), source, target)
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

    def _sure_of(self, language: int) -> Posterior:
        n = len(self._languages)
        if n == 1:
            return np.ones(1)
        belief = np.full(n, 0.1 / (n - 1))
        belief[language] = 0.9
        return belief
