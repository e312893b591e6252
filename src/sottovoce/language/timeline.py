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
    SmoothingOptions,
    change_point,
)
from sottovoce.language.switching import Hysteresis, Switch, SwitchOptions

KEPT_S = 60.0
LOOK_BACK_S = 10.0
"""A change point is looked for no further back than this."""
SURE_S = 2.0
"""The probe of a shorter stretch is surer of itself than it is right: its evidence is scaled down."""
SURE_OF_A_SWITCH = 0.9
"""Belief in the language just switched to."""
START_BONUS = 1.0
"""Log-odds for a change at the pause that the utterance began after, against one within it."""
FROM_THE_START_S = 0.05
"""A stretch that begins so near to the start of an utterance holds all of it."""


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

    A stretch that begins where the utterance does holds all that earlier ones told: it takes their place,
    over what was likely before. Later ones, the newest part of the speech, are evidence of a change each.

    full_width_s: stretches shorter than this or SURE_S, with little speech, or in a language outside the
    list, count for less.
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
        self._full_width_s = min(SURE_S, full_width_s)
        self._hold_odds = hold_odds
        self._forward = ForwardFilter(len(self._languages), smoothing)
        index = None if current is None else self._languages.index(current)
        self._hysteresis = Hysteresis(switching, index)
        self._frames: deque[TimelineFrame] = deque()
        self._floor_s = 0.0
        self._prior = self._forward.belief
        self._after_pause = True
        self._changes: deque[LanguageChange] = deque()

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
    def since_s(self) -> float:
        """Where the utterance, or its part in the current language, begins: no stretch begins before it."""
        return self._floor_s

    @property
    def is_opening(self) -> bool:
        """Whether no change was found in the utterance, but the session's first language."""
        return self._after_pause

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

    def in_use(self, since_s: float) -> tuple[str, ...]:
        """The languages that were switched to, and in use at a moment of the last minute or after it."""
        found = {self.current} if self.current is not None else set()
        until_s = math.inf
        for change in reversed(self._changes):
            if until_s > since_s:
                found.add(change.target)
            until_s = change.at_s
        return tuple(code for code in self._languages if code in found)

    def allowed_mass(self, start_s: float, end_s: float) -> float | None:
        """What the allow-list had among all languages of the model, on average over the stretches with their
        middle in a span; None without any."""
        found = [frame.allowed_mass for frame in self._frames if start_s <= frame.centre_s <= end_s]
        return sum(found) / len(found) if found else None

    def begin(self, start_s: float) -> None:
        """An utterance begins: no change point lies before it, and another language is likelier than
        within."""
        self._floor_s = start_s
        self._after_pause = True
        current, n = self._hysteresis.current, len(self._languages)
        if current is not None:
            self._prior = self._surely(current, 1.0 - self._smoothing.renewal)
        else:
            self._prior = np.full(n, 1.0 / n)
        self._forward.reset(self._prior)
        self._hysteresis.begin(start_s)

    def add(self, start_s: float, end_s: float, probed: ProbedLanguage) -> None:
        """Take what was heard in a stretch; they must come in order of their ends."""
        weight = min(1.0, (end_s - start_s) / self._full_width_s)
        weight *= (1.0 - probed.no_speech) * math.sqrt(probed.allowed_mass)
        heard = np.maximum(probed.probabilities, 1e-9) ** weight
        heard = heard / heard.sum()
        is_whole = start_s <= self._floor_s + FROM_THE_START_S
        if is_whole:
            belief = self._prior * heard
            self._forward.reset(belief / belief.sum())
        else:
            self._forward.step(heard)
        belief = self._forward.belief
        self._frames.append(TimelineFrame(start_s, end_s, heard, belief, probed.allowed_mass))
        while self._frames[0].end_s < end_s - KEPT_S:
            self._frames.popleft()
        self._hysteresis.step(belief, end_s, opening=is_whole)

    def due(self, now_s: float, *, at_boundary: bool = False) -> LanguageChange | None:
        """Take the switch that is due, if any; the language is the new one from here on."""
        switch = self._hysteresis.due(now_s, at_boundary=at_boundary)
        return None if switch is None else self._carried_out(switch)

    def resolve(self, now_s: float) -> LanguageChange | None:
        """Decide at the end of an utterance, where no more evidence comes.

        A pending switch is due. Without one, the likeliest language counts where none is known yet, or where
        the last stretch held all of the utterance."""
        pending = self.due(now_s, at_boundary=True)
        if pending is not None or not self._frames or self._frames[-1].end_s <= self._floor_s:
            return pending
        current, likeliest = self._hysteresis.current, int(self._forward.belief.argmax())
        is_whole = self._frames[-1].start_s <= self._floor_s + FROM_THE_START_S
        if likeliest == current or not (current is None or is_whole):
            return None
        self._hysteresis.settle(likeliest)
        return self._carried_out(Switch(current, likeliest, self._frames[-1].end_s, now_s))

    def _carried_out(self, switch: Switch) -> LanguageChange:
        at_s = self._floor_s if switch.source is None else self._change_point(switch.source, switch.target)
        self._after_pause = self._after_pause and at_s == self._floor_s
        self._floor_s = at_s
        if switch.source is not None:
            self._prior = self._surely(switch.target, SURE_OF_A_SWITCH)
            self._forward.reset(self._prior)
        source = None if switch.source is None else self._languages[switch.source]
        change = LanguageChange(source, self._languages[switch.target], at_s, switch.confirmed_s)
        while self._changes and self._changes[0].confirmed_s < switch.confirmed_s - KEPT_S:
            self._changes.popleft()
        self._changes.append(change)
        return change

    def _change_point(self, source: int, target: int) -> float:
        """Between the middles of the stretches that the best split parts."""
        frames = self._recent()
        if not frames:
            return self._floor_s
        heard = np.stack([frame.heard for frame in frames])
        first = change_point(heard, source, target, start_bonus=START_BONUS if self._after_pause else 0.0)
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

    def _surely(self, language: int, probability: float) -> Posterior:
        """This much for a language, and the rest even."""
        n = len(self._languages)
        if n == 1:
            return np.ones(1)
        belief = np.full(n, (1.0 - probability) / (n - 1))
        belief[language] = probability
        return belief
