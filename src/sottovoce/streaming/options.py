"""Options of a live session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import get_args

from torch import Tensor

from sottovoce.decoding.search import Fusion
from sottovoce.errors import OptionError
from sottovoce.language.probe import ProbeOptions
from sottovoce.models.backend import EXACT, EncoderMode
from sottovoce.options.live import (
    SWITCH_CERTAINTY,
    Captions,
    Latency,
    LiveDecodingOptions,
    Switching,
    without_parallel,
)
from sottovoce.streaming.turns import EAGERNESS, TurnRule
from sottovoce.text.languages import find_language


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """Which words are stable.

    commit_prob: a word of at least this probability is. agreed_s: others are when consecutive hypotheses have
    had them for so many seconds of audio.

    Raises:
        OptionError: a value is out of range.
    """

    commit_prob: float = 0.7
    agreed_s: float = 0.5

    def __post_init__(self) -> None:
        for name in ("commit_prob", "agreed_s"):
            if not getattr(self, name) >= 0:
                raise OptionError(f"{name}: expected 0 or more, got {getattr(self, name)}")


LATENCIES: Mapping[Latency, tuple[float, CommitOptions]] = {
    "low": (10.0, CommitOptions(commit_prob=0.6)),
    "balanced": (25.0, CommitOptions()),
    "sure": (50.0, CommitOptions(commit_prob=0.9, agreed_s=1.0)),
}
"""`frame_threshold` and `commit` by latency (docs/research/live.md)."""


@dataclass(frozen=True, slots=True)
class StreamOptions(LiveDecodingOptions):
    """How live speech is decoded.

    commit: None takes that of `latency`. encoder: how growing audio is encoded; None takes the checkpoint's
    mode. turns: which pause ends a turn; None takes that of `eagerness`.
    Raises: OptionError for a value out of range.
    """

    commit: CommitOptions | None = None
    encoder: EncoderMode | None = None
    fusion: Fusion[Tensor] | None = None
    turns: TurnRule | None = None

    def __post_init__(self) -> None:
        LiveDecodingOptions.__post_init__(self)  # without super(): the class with slots is another one
        if self.tail_s is not None and self.encoder == EXACT:
            raise OptionError(f"tail_s: expected none where encoder is the full window, got {self.tail_s}")

    @property
    def near_frames(self) -> float:
        """Least distance (frames of 20 ms) of a committed word from the end of the audio."""
        return LATENCIES[self.latency][0] if self.frame_threshold is None else self.frame_threshold

    @property
    def commit_rule(self) -> CommitOptions:
        return self.commit or LATENCIES[self.latency][1]

    @property
    def turn_rule(self) -> TurnRule | None:
        """None: a fixed pause ends a turn."""
        return self.turns or (EAGERNESS[self.eagerness] if self.eagerness else None)

    @classmethod
    def of(cls, options: LiveDecodingOptions) -> StreamOptions:
        return cls(**{each.name: getattr(options, each.name) for each in fields(LiveDecodingOptions)})


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session follows speech and languages.

    languages: allowed codes; empty: all of the model. switching: "off" detects the language once; "restart"
    (also "parallel") continues in the new language at a change. switch_certainty: posterior from which a
    session switches. first_language_s: seconds of speech after which the likeliest language is taken.
    captions: "revisable" also emits uncommitted words.

    Raises:
        OptionError: a value is out of range.
    """

    languages: tuple[str, ...] = ()
    switching: Switching = "restart"
    stream: StreamOptions = field(default_factory=StreamOptions)
    probe: ProbeOptions = field(default_factory=ProbeOptions)
    switch_certainty: float = SWITCH_CERTAINTY
    first_language_s: float = 3.5
    captions: Captions = "firm"

    def __post_init__(self) -> None:
        if self.switching not in ("off", "restart", "parallel"):
            raise OptionError(f"switching: expected off, restart or parallel, got '{self.switching}'")
        object.__setattr__(self, "switching", without_parallel(self.switching))
        if isinstance(self.languages, str):
            raise OptionError(f"languages: expected a tuple of codes, got the string '{self.languages}'")
        object.__setattr__(self, "languages", tuple(map(find_language, self.languages)))
        if not 0.5 <= self.switch_certainty <= 1.0:
            raise OptionError(f"switch_certainty: expected 0.5 to 1, got {self.switch_certainty}")
        if not self.first_language_s >= 0.0:
            raise OptionError(f"first_language_s: expected seconds from 0, got {self.first_language_s}")
        if self.captions not in get_args(Captions):
            raise OptionError(f"captions: expected firm or revisable, got {self.captions!r}")
