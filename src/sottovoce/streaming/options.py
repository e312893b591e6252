"""Options of a live session."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from torch import Tensor

from sottovoce.decoding.search import Fusion
from sottovoce.errors import OptionError
from sottovoce.language.probe import ProbeOptions
from sottovoce.models.backend import EXACT, EncoderMode
from sottovoce.options.live import SWITCH_CERTAINTY, LiveDecodingOptions, Switching, without_parallel
from sottovoce.text.languages import find_language


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
    checkpoint's default. fusion: language models, or None.

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
class SessionOptions:
    """How a session follows speech and languages.

    languages: allowed codes; one: the language is given; empty: all of the model.
    switching: "off" detects the language once; "restart" ends the text at a change and continues in the
    new language; "parallel" is accepted for "restart".
    switch_certainty: posterior of another language from which a session switches to it.
    first_language_s: seconds of speech after which the first language is decided by any posterior.
    unstable: also emit decoded words that are not committed.

    Raises:
        OptionError: a value is out of range.
    """

    languages: tuple[str, ...] = ()
    switching: Switching = "restart"
    stream: StreamOptions = field(default_factory=StreamOptions)
    probe: ProbeOptions = field(default_factory=ProbeOptions)
    switch_certainty: float = SWITCH_CERTAINTY
    first_language_s: float = 3.5
    unstable: bool = False

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
        if not isinstance(self.unstable, bool):
            raise OptionError(f"unstable: expected True or False, got {self.unstable!r}")
