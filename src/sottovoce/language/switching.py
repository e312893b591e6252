"""When the language has changed: hysteresis over smoothed posteriors, and a latch until a boundary.

Not known here: audio, models, and what a switch does to the transcript. Time is the time of the frames
that are given; there is no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sottovoce.errors import OptionError
from sottovoce.language.smoothing import Posterior


@dataclass(frozen=True, slots=True)
class SwitchOptions:
    """What it takes to change the language.

    Within an utterance a candidate is confirmed when it leads the current language by strictly more than
    `margin` for at least `min_frames` consecutive frames and at least `min_dwell_s` from the first of them to
    the last: both, because 6 frames of a 100 ms hop span 500 ms. At the beginning of an utterance, while all
    of it is heard at once, `opening_frames` and `opening_margin` do. A confirmed switch waits for a boundary
    (a pause, or a word's end), at most `max_wait_s`. The first language of a session, before which nothing is
    said, takes `first_frames` and a lead of `first_margin`; the first frame that ends `first_wait_s` after
    speech began, or later, decides by any lead. With frames of half a second that is within 4 s. While all of
    that utterance is heard at once, a lead of `revision_margin` corrects it, without a boundary."""

    margin: float = 0.35
    min_frames: int = 2
    opening_margin: float = 0.7
    opening_frames: int = 1
    first_frames: int = 2
    first_margin: float = 0.8
    first_wait_s: float = 3.5
    revision_margin: float = 0.2
    min_dwell_s: float = 0.25
    max_wait_s: float = 0.25

    def __post_init__(self) -> None:
        for name, value in (
            ("margin", self.margin),
            ("opening_margin", self.opening_margin),
            ("first_margin", self.first_margin),
            ("revision_margin", self.revision_margin),
        ):
            if not 0.0 <= value < 1.0:
                raise OptionError(f"{name}: expected a difference of probabilities in [0, 1), got {value}")
        for count, least in (
            ("min_frames", self.min_frames),
            ("opening_frames", self.opening_frames),
            ("first_frames", self.first_frames),
        ):
            if least < 1:
                raise OptionError(f"{count}: expected at least 1, got {least}")
        for name in ("min_dwell_s", "max_wait_s", "first_wait_s"):
            if getattr(self, name) < 0.0:
                raise OptionError(f"{name}: expected seconds from 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch that is due: from `source` (None: the first language) to `target`.

    first_doubt_s: time of the first frame of the run that confirmed it; confirmed_s: of the last one.
    """

    source: int | None
    target: int
    first_doubt_s: float
    confirmed_s: float


@dataclass(slots=True)
class _Run:
    """Consecutive frames in which one language leads."""

    language: int
    since_s: float
    n_frames: int = 1


class Hysteresis:
    """Follows the language through frames: `step` each, then `due` at every chance to switch.

    A confirmed switch is latched: it is neither lost when no boundary comes at that moment, nor by a
    frame or two of doubt. What undoes it is evidence of the same strength: another language, or the
    current one, confirmed against it by the same rule.
    """

    def __init__(self, options: SwitchOptions, current: int | None = None) -> None:
        self._options = options
        self._current = current
        self._run: _Run | None = None
        self._pending: Switch | None = None
        self._since_s: float | None = None
        self._opening = False
        self._is_first = False

    @property
    def current(self) -> int | None:
        """The language in use; None before the first is confirmed."""
        return self._current

    @property
    def pending(self) -> Switch | None:
        """A confirmed switch that waits for a boundary."""
        return self._pending

    @property
    def in_doubt(self) -> bool:
        """Whether a language other than the current one leads, or a switch is pending."""
        return self._pending is not None or (self._run is not None and self._run.language != self._current)

    def begin(self, start_s: float) -> None:
        """An utterance begins: what waited for a boundary has none to wait for, and runs start anew."""
        self._run = None
        self._is_first = False
        if self._current is None:
            self._since_s = start_s

    def step(self, posterior: Posterior, time_s: float, *, opening: bool = False) -> None:
        """Take the posterior (L,) of the frame at time_s; times must not go back.

        opening: it is of all that was said in an utterance, or since a change.
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
            self._run = _Run(leader, time_s)
        else:
            self._run.n_frames += 1
        if self._is_confirmed(self._run, time_s, waited_s):
            self._confirm(self._run, time_s)

    def due(self, time_s: float, *, at_boundary: bool) -> Switch | None:
        """Take the pending switch if a boundary is here or it has waited long enough, else None."""
        switch = self._pending
        if switch is None:
            return None
        waited = time_s - switch.confirmed_s
        has_words = switch.source is not None and not self._is_first
        if has_words and not at_boundary and waited < self._options.max_wait_s:
            return None
        self.settle(switch.target)
        return switch

    def settle(self, language: int) -> None:
        """Make `language` the current one, whatever the evidence so far."""
        self._is_first = self._current is None
        self._current = language
        self._pending = None
        self._run = None

    def _leader(self, posterior: Posterior, waited_s: float) -> int | None:
        """The language that leads its rival by more than the margin that holds now.

        The rival of a candidate is the language in force (the pending one if there is any); that of the
        language in force, or while there is none, is the runner-up.
        """
        best = int(posterior.argmax())
        in_force = self._pending.target if self._pending is not None else self._current
        if in_force is not None and best != in_force:
            rival = float(posterior[in_force])
        else:
            rival = max((float(p) for i, p in enumerate(posterior) if i != best), default=0.0)
        return best if float(posterior[best]) - rival > self._margin(waited_s) else None

    def _margin(self, waited_s: float) -> float:
        """waited_s: since speech began, before which nothing was said."""
        options = self._options
        if self._current is None:
            return 0.0 if self._is_overdue(waited_s) else options.first_margin
        if not self._opening:
            return options.margin
        return options.revision_margin if self._is_first else options.opening_margin

    def _is_overdue(self, waited_s: float) -> bool:
        """Whether the first language has been waited for long enough."""
        return self._current is None and waited_s >= self._options.first_wait_s - 1e-9

    def _is_confirmed(self, run: _Run, time_s: float, waited_s: float) -> bool:
        least, dwell_s = self._options.min_frames, self._options.min_dwell_s
        if self._current is None:
            least, dwell_s = 1 if self._is_overdue(waited_s) else self._options.first_frames, 0.0
        elif self._opening:
            least, dwell_s = self._options.opening_frames, 0.0
        return run.n_frames >= least and time_s - run.since_s >= dwell_s - 1e-9

    def _confirm(self, run: _Run, time_s: float) -> None:
        if run.language == self._current:
            self._pending = None
        elif self._pending is None or self._pending.target != run.language:
            self._pending = Switch(self._current, run.language, run.since_s, time_s)


def allowed_indices(languages: Sequence[str], known: Sequence[str]) -> tuple[int, ...]:
    """Positions in `known` of an allow-list of codes.

    Raises: OptionError for an empty list, a repeated code, or one that the model does not know.
    """
    if not languages:
        raise OptionError("languages: expected at least one code, got none")
    for language in languages:
        if language not in known:
            raise OptionError(f"language '{language}': the model knows {', '.join(known) or 'English only'}")
    if len(set(languages)) != len(languages):
        raise OptionError(f"languages: expected each code once, got {', '.join(languages)}")
    return tuple(known.index(language) for language in languages)
