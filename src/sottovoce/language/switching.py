"""Smoothing of language posteriors (hidden Markov model, change point) and detection of changes
(hysteresis).

Frames are probed stretches with posteriors over L languages. `Hysteresis` is causal with O(L) state; the
change point uses the frames that were kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sottovoce.errors import OptionError

Posterior = npt.NDArray[np.float64]

OTHERS = 0.03
"""Weight of a third language's probability as evidence that the old one has ended."""
_TINY = 1e-6
"""Least probability of a language, so that one frame cannot rule it out."""


@dataclass(frozen=True, slots=True)
class SmoothingOptions:
    """How posteriors are smoothed.

    stay: probability of the same language in the next stretch of an utterance. renewal: probability of
    another one after a pause.

    Raises:
        OptionError: a value is out of range.
    """

    stay: float = 0.9
    renewal: float = 0.4

    def __post_init__(self) -> None:
        for name, value in (("stay", self.stay), ("renewal", self.renewal)):
            if not 0.0 < value < 1.0:
                raise OptionError(f"{name}: expected a probability between 0 and 1, got {value}")


def transition_matrix(n_languages: int, stay: float) -> npt.NDArray[np.float64]:
    """Return the transition probabilities (L, L): `stay` on the diagonal, the rest uniform."""
    if n_languages == 1:
        return np.ones((1, 1))
    matrix = np.full((n_languages, n_languages), (1.0 - stay) / (n_languages - 1))
    np.fill_diagonal(matrix, stay)
    return matrix


def log_evidence(posteriors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return scaled log-likelihoods of posteriors (..., L) under a uniform prior, floored."""
    floored = np.maximum(posteriors, _TINY)
    scaled: npt.NDArray[np.float64] = np.log(floored / floored.sum(-1, keepdims=True))
    return scaled


def carried_on(belief: Posterior, stay: float) -> Posterior:
    moved: Posterior = belief @ transition_matrix(len(belief), stay)
    return moved


def change_point(
    posteriors: npt.NDArray[np.float64], source: int, target: int, *, start_bonus: float = 0.0
) -> int:
    """Return the first frame of `target` in the best split of posteriors (T, L) into source and target.

    This is Viterbi over two states that may only go from source to target; 0: no source, T: no target.
    Other languages, frequent for the first words after a change, count for the target by `OTHERS`.

    start_bonus: log-odds for 0. Among equal splits the latest keeps more of the old language.
    """
    evidence = log_evidence(posteriors)
    stays = evidence[:, source]
    others = np.log(np.maximum(OTHERS * (1.0 - np.exp(stays)), _TINY))
    gain = stays - np.maximum(evidence[:, target], others)  # for keeping a frame in the source
    totals = np.concatenate(([0.0], np.cumsum(gain)))
    totals[0] += start_bonus
    return int(len(totals) - 1 - np.argmax(totals[::-1]))


OPENING_MARGIN = 0.7
"""Lead that switches while one stretch holds all of the utterance: such a frame is worth several later
ones, and a pause makes a change likelier.
"""
REVISION_MARGIN = 0.2
"""Lead that corrects the first language of a session at once, while one stretch holds all of its
utterance.
"""


@dataclass(frozen=True, slots=True)
class SwitchOptions:
    """Conditions of a change of language. Margins are differences of probabilities.

    margin, min_frames, min_dwell_s: a language is confirmed if it leads the current one by more than the
    margin for so many consecutive frames, which span this time. At the beginning of an utterance one frame
    with a lead of `OPENING_MARGIN` suffices, because longer frames of the same speech replace shorter
    ones.
    max_wait_s: delay of a confirmed switch inside an utterance, so that evidence can undo it.
    first_margin, first_frames: for the first language of a session.
    first_wait_s: the first frame that ends this long after the beginning of speech decides by any lead;
    with frames of 0.5 s, within 4 s.

    Raises:
        OptionError: a value is out of range.
    """

    margin: float = 0.9
    min_frames: int = 1
    first_frames: int = 2
    first_margin: float = 0.8
    first_wait_s: float = 3.5
    min_dwell_s: float = 0.0
    max_wait_s: float = 0.25

    def __post_init__(self) -> None:
        for name in ("margin", "first_margin"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise OptionError(
                    f"{name}: expected a difference of probabilities in [0, 1), got {getattr(self, name)}"
                )
        for name in ("min_frames", "first_frames"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("min_dwell_s", "max_wait_s", "first_wait_s"):
            if getattr(self, name) < 0.0:
                raise OptionError(f"{name}: expected seconds from 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Switch:
    """A confirmed switch between language indices; source None: the first language."""

    source: int | None
    target: int
    confirmed_s: float


@dataclass(slots=True)
class _LeaderRun:
    language: int
    since_s: float
    n_frames: int = 1


class Hysteresis:
    """Follow the language through frames: call `step` for each, then `due` where a switch may be carried
    out.

    Only another confirmation, of another language or the current one, undoes a confirmed switch.
    """

    def __init__(self, options: SwitchOptions, current: int | None = None) -> None:
        self._options = options
        self._current = current
        self._run: _LeaderRun | None = None
        self.pending: Switch | None = None
        self._since_s: float | None = None
        self._opening = False
        self._is_first = False

    @property
    def current(self) -> int | None:
        return self._current

    @property
    def in_doubt(self) -> bool:
        """Whether a language other than the current one leads, or a switch is pending."""
        return self.pending is not None or (self._run is not None and self._run.language != self._current)

    def begin(self, start_s: float) -> None:
        self._run = None
        self._is_first = False
        if self._current is None:
            self._since_s = start_s

    def step(self, posterior: Posterior, time_s: float, *, opening: bool = False) -> None:
        """Add the posterior (L,) of a frame; times must not decrease.

        opening: the frame holds all of the utterance, or all since a change.
        """
        self._opening = opening
        if self._since_s is None:
            self._since_s = time_s
        waited_s = time_s - self._since_s
        leader = self._leader(posterior, waited_s)
        if leader is None:
            self._run = None
            return
        if self._run is None or self._run.language != leader:
            self._run = _LeaderRun(leader, time_s)
        else:
            self._run.n_frames += 1
        if self._is_confirmed(self._run, time_s, waited_s):
            self._confirm(self._run, time_s)

    def due(self, time_s: float, *, at_end: bool) -> Switch | None:
        """Carry out the pending switch if it has waited long enough, or at the end of the utterance;
        return it or None.
        """
        switch = self.pending
        if switch is None:
            return None
        waited = time_s - switch.confirmed_s
        has_words = switch.source is not None and not self._is_first
        if has_words and not at_end and waited < self._options.max_wait_s:
            return None
        self.force(switch.target)
        return switch

    def force(self, language: int) -> None:
        self._is_first = self._current is None
        self._current = language
        self.pending = None
        self._run = None

    def _leader(self, posterior: Posterior, waited_s: float) -> int | None:
        """Return the language that leads its rival by more than the margin, or None.

        The rival is the current (or pending) language, or the runner-up. waited_s: seconds since speech
        began.
        """
        best = int(posterior.argmax())
        in_force = self.pending.target if self.pending is not None else self._current
        if in_force is not None and best != in_force:
            rival = float(posterior[in_force])
        else:
            rival = max((float(p) for i, p in enumerate(posterior) if i != best), default=0.0)
        return best if float(posterior[best]) - rival > self._margin(waited_s) else None

    def _margin(self, waited_s: float) -> float:
        options = self._options
        if self._current is None:
            return 0.0 if self._is_overdue(waited_s) else options.first_margin
        if not self._opening:
            return options.margin
        return REVISION_MARGIN if self._is_first else OPENING_MARGIN

    def _is_overdue(self, waited_s: float) -> bool:
        return self._current is None and waited_s >= self._options.first_wait_s - 1e-9

    def _is_confirmed(self, run: _LeaderRun, time_s: float, waited_s: float) -> bool:
        least, dwell_s = self._options.min_frames, self._options.min_dwell_s
        if self._current is None:
            least, dwell_s = 1 if self._is_overdue(waited_s) else self._options.first_frames, 0.0
        elif self._opening:
            least, dwell_s = 1, 0.0
        return run.n_frames >= least and time_s - run.since_s >= dwell_s - 1e-9

    def _confirm(self, run: _LeaderRun, time_s: float) -> None:
        if run.language == self._current:
            self.pending = None
        elif self.pending is None or self.pending.target != run.language:
            self.pending = Switch(self._current, run.language, time_s)


def allowed_indices(languages: Sequence[str], codes: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of allowed languages in the model's language codes.

    Raises:
        OptionError: no language, a repeated code, or an unknown one.
    """
    if not languages:
        raise OptionError("languages: expected at least one code, got none")
    for language in languages:
        if language not in codes:
            raise OptionError(f"language '{language}': the model knows {', '.join(codes) or 'English only'}")
    if len(set(languages)) != len(languages):
        raise OptionError(f"languages: expected each code once, got {', '.join(languages)}")
    return tuple(codes.index(language) for language in languages)
