"""Options of a live session."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from torch import Tensor

from sottovoce.decoding.search import Fusion
from sottovoce.errors import OptionError
from sottovoce.language.probe import ProbeOptions
from sottovoce.language.switching import SmoothingOptions, SwitchOptions
from sottovoce.models.backend import EXACT, EncoderMode
from sottovoce.options.live import LiveDecodingOptions, Switching
from sottovoce.text.languages import find_language

LONG_TAIL_S = 5.0
"""Seconds of padding that models trained on windows of 30 s need."""


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """Which words are stable enough to be committed, see `commit_policy.Agreement`.

    A word's distance is from its last attended frame to the end of the audio; frames are 20 ms.

    commit_prob: a word of at least this probability is committed at the distance
    `StreamOptions.frame_threshold`.
    agreed_frames, n_agreeing: other words need this distance, at least the threshold, and this many
    consecutive hypotheses; n_agreeing_low below probability low_prob.
    always_commit_frames: at this distance any word is committed.
    min_audio_s: least audio of an utterance for a commit.

    Raises:
        OptionError: a value is out of range.
    """

    commit_prob: float = 0.7
    low_prob: float = 0.5
    agreed_frames: int = 35
    always_commit_frames: int = 125
    n_agreeing: int = 2
    n_agreeing_low: int = 3
    min_audio_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("n_agreeing", "n_agreeing_low"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("commit_prob", "low_prob", "agreed_frames", "always_commit_frames", "min_audio_s"):
            if not getattr(self, name) >= 0:
                raise OptionError(f"{name}: expected 0 or more, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class StreamOptions(LiveDecodingOptions):
    """How live speech is decoded.

    commit: which words are committed at once. encoder: how growing audio is encoded; None: the
    checkpoint's default. fusion: language models, or None; not with parallel switching.

    Raises:
        OptionError: a value is out of range.
    """

    commit: CommitOptions = field(default_factory=CommitOptions)
    encoder: EncoderMode | None = None
    fusion: Fusion[Tensor] | None = None

    def __post_init__(self) -> None:
        LiveDecodingOptions.__post_init__(self)  # without super(): the class with slots is another one
        if self.tail_s is not None and self.encoder == EXACT:
            raise OptionError(f"tail_s: expected none where encoder is the full window, got {self.tail_s}")

    @classmethod
    def of(cls, options: LiveDecodingOptions) -> StreamOptions:
        """Return these options with defaults for the rest."""
        return cls(**{each.name: getattr(options, each.name) for each in fields(LiveDecodingOptions)})


@dataclass(frozen=True, slots=True)
class ParallelOptions:
    """How several languages are decoded at once, see `parallel`.

    max_languages: most rows.
    active_share: a language is active if the timeline gives it this share of some frame, and it owns
    least_s of audio; frames of other languages go to the active ones.
    margin_s: margin of a row's audio around its language's frames.
    weight: of the timeline in the fused score.
    stable_s: a word waits until the timeline is this far past it.
    confirmed: only languages that the session has switched to are active, and words wait while a change is
    in doubt, as in restart mode.
    stretch_s: length of the probed stretches, shorter than in restart mode.
    smoothing: of their posteriors, in both directions.

    Raises:
        OptionError: a value is out of range.
    """

    max_languages: int = 2
    active_share: float = 0.7
    least_s: float = 0.6
    margin_s: float = 0.06
    weight: float = 0.5
    stable_s: float = 0.25
    confirmed: bool = False
    stretch_s: float = 1.0
    smoothing: SmoothingOptions = field(default_factory=lambda: SmoothingOptions(stay=0.85, evidence=0.5))

    def __post_init__(self) -> None:
        if self.max_languages < 1:
            raise OptionError(f"max_languages: expected at least 1, got {self.max_languages}")
        if not 0.0 <= self.active_share <= 1.0:
            raise OptionError(f"active_share: expected 0 to 1, got {self.active_share}")
        for name in ("least_s", "margin_s", "weight", "stable_s"):
            if not getattr(self, name) >= 0.0:
                raise OptionError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        if not 0.1 <= self.stretch_s <= 30.0:
            raise OptionError(f"stretch_s: expected 0.1 to 30 seconds, got {self.stretch_s}")

    @classmethod
    def suited_to(cls, mode: EncoderMode) -> ParallelOptions:
        """Return the defaults for a checkpoint; mode: how it encodes growing audio.

        Models trained on short windows identify the language of a phrase in a second. Padded Whisper is
        right among all languages only once in four times after a second, so it gets the stretches of
        restart mode and rows of confirmed languages.
        """
        needs_padding = mode.has_sparse_padding or (mode.tail_s or 0.0) >= LONG_TAIL_S
        return cls(stretch_s=3.0, confirmed=True) if needs_padding else cls()


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session follows speech and languages.

    languages: allowed codes; one: the language is given; empty: all of the model.
    switching: "off" detects the language once; "restart" ends the text at a change and continues in the
    new language; "parallel" decodes the active languages at once, for switches inside a sentence.
    parallel: its options; None: the defaults for the checkpoint.
    unstable: also emit decoded words that are not committed.

    Raises:
        OptionError: a value is out of range.
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
        object.__setattr__(self, "languages", tuple(map(find_language, self.languages)))
        if not isinstance(self.unstable, bool):
            raise OptionError(f"unstable: expected True or False, got {self.unstable!r}")
        if self.switching == "parallel" and self.stream.fusion is not None:
            raise OptionError("fusion: expected switching off or restart, got parallel")

    def suited_to(self, mode: EncoderMode) -> SessionOptions:
        """Return the options with defaults that depend on how a checkpoint encodes growing audio."""
        return self if self.parallel else replace(self, parallel=ParallelOptions.suited_to(mode))

    @property
    def probed_stretches(self) -> ProbeOptions:
        if self.switching != "parallel" or self.parallel is None:
            return self.probe
        width_s = min(self.probe.width_s, self.parallel.stretch_s)
        least_s = min(self.probe.min_width_s, width_s)
        return replace(self.probe, width_s=width_s, min_width_s=least_s, opening_s=0.0)
