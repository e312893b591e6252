"""What a caller can ask of a live session, checked when it is made. Knows no model and no audio."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from sottovoce.backends.base import EncoderMode
from sottovoce.errors import OptionError
from sottovoce.language.probe import ProbeOptions
from sottovoce.language.smoothing import SmoothingOptions
from sottovoce.language.switching import SwitchOptions
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.parallel_options import ParallelOptions

Switching: TypeAlias = Literal["off", "restart", "parallel"]


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session follows speech and languages.

    languages: allow-list of codes; one: the language is given; empty: all that the model knows.
    switching: "off" detects the language once and keeps it; "restart" begins a new stream at a change
        point; "parallel" decodes the active languages side by side, for switches inside a sentence.
    parallel: how that is done; None: as the checkpoint bears it.
    unstable: also send text that may still change: words that were read but not committed, or, where the
        session has a `CtcDraft`, the text of that.
    """

    languages: tuple[str, ...] = ()
    switching: Switching = "restart"
    stream: StreamOptions = field(default_factory=StreamOptions)
    probe: ProbeOptions = field(default_factory=ProbeOptions)
    smoothing: SmoothingOptions = field(default_factory=SmoothingOptions)
    switch: SwitchOptions = field(default_factory=SwitchOptions)
    parallel: ParallelOptions | None = None
    unstable: bool = False

    def __post_init__(self) -> None:
        if self.switching not in ("off", "restart", "parallel"):
            raise OptionError(f"switching: expected off, restart or parallel, got '{self.switching}'")
        if isinstance(self.languages, str):
            raise OptionError(f"languages: expected a tuple of codes, got the string '{self.languages}'")
        if not isinstance(self.unstable, bool):
            raise OptionError(f"unstable: expected True, False or 'ctc', got {self.unstable!r}")
        if self.switching == "parallel" and self.stream.fusion is not None:
            raise OptionError("fusion: expected switching off or restart, got parallel")

    def suited_to(self, mode: EncoderMode) -> SessionOptions:
        """The same, with what was left to a checkpoint; mode: how it bears audio that grows."""
        return self if self.parallel else replace(self, parallel=ParallelOptions.suited_to(mode))

    @property
    def stretches(self) -> ProbeOptions:
        """Which stretches are probed: parallel mode hears shorter ones."""
        if self.switching != "parallel" or self.parallel is None:
            return self.probe
        width_s = min(self.probe.width_s, self.parallel.stretch_s)
        least_s = min(self.probe.min_width_s, width_s)
        return replace(self.probe, width_s=width_s, min_width_s=least_s, opening_s=0.0)
