"""What a caller can ask of several languages read at once, checked when it is made. Knows no model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sottovoce.backends.base import EncoderMode
from sottovoce.errors import OptionError
from sottovoce.language.smoothing import SmoothingOptions
from sottovoce.streaming.gating import Gate
from sottovoce.streaming.heard import Alone, Hearing, Masked

LONG_TAIL_S = 5.0
"""Padding that models need which were trained on windows of 30 s."""


@dataclass(frozen=True, slots=True)
class ParallelOptions:
    """How rows are gated and fused.

    max_languages: rows at most. active_share: a language is active when the timeline gives it this much
        of some frame, and owns least_s of audio; the frames of others go to the active ones.
    alone: rows hear their own stretches encoded by themselves; else one encoding under a mask, for decoders
        that were trained with one. bias, most_bias, margin_s: see `Gate`; bias inf is a hard mask.
    weight: of the timeline in the fused score. stable_s: a word waits until the timeline is this far past
        it. least_share: a word whose language has less of its frames than this part of the largest share
        is dropped.
    confirmed: only languages that the session has switched to are active, and words wait while a change is in
        doubt, as in restart mode.
    stretch_s: the probe hears stretches of this length, shorter than in restart mode, so that a phrase
        shows. smoothing: of their shares, looking both ways. snap_s: a border between two languages is
        moved so far at most to where it is quietest; 0: it stays.
    """

    max_languages: int = 2
    active_share: float = 0.7
    least_s: float = 0.6
    bias: float = 1.0
    most_bias: float = 15.0
    margin_s: float = 0.06
    alone: bool = True
    weight: float = 0.5
    stable_s: float = 0.25
    least_share: float = 0.5
    confirmed: bool = False
    stretch_s: float = 1.0
    smoothing: SmoothingOptions = field(default_factory=lambda: SmoothingOptions(stay=0.85, evidence=0.5))
    snap_s: float = 0.25

    def __post_init__(self) -> None:
        if self.max_languages < 1:
            raise OptionError(f"max_languages: expected at least 1, got {self.max_languages}")
        for name, value in (("active_share", self.active_share), ("least_share", self.least_share)):
            if not 0.0 <= value <= 1.0:
                raise OptionError(f"{name}: expected 0 to 1, got {value}")
        for name in ("least_s", "bias", "most_bias", "margin_s", "weight", "stable_s", "snap_s"):
            if not getattr(self, name) >= 0.0:
                raise OptionError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        if not 0.1 <= self.stretch_s <= 30.0:
            raise OptionError(f"stretch_s: expected 0.1 to 30 seconds, got {self.stretch_s}")
        if math.isinf(self.most_bias):
            raise OptionError("most_bias: expected a finite number, got inf")

    @classmethod
    def suited_to(cls, mode: EncoderMode) -> ParallelOptions:
        """What a checkpoint bears; mode: how it bears audio that grows.

        One that was trained on short windows tells the language of a phrase in a second. Real Whisper, which
        needs padding, takes a second for the right one of all languages one time in four: it hears stretches
        as long as in restart mode, and rows are of languages that were switched to.
        """
        needs_padding = mode.is_thin or (mode.tail_s or 0.0) >= LONG_TAIL_S
        return cls(stretch_s=3.0, confirmed=True) if needs_padding else cls()

    def hearing(self, mode: EncoderMode) -> Hearing:
        """How rows are given their audio; mode: how stretches are encoded by themselves."""
        gate = Gate(self.bias, self.most_bias, self.margin_s)
        return Alone(gate, mode) if self.alone else Masked(gate)
