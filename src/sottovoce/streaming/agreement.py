"""Which words of a reading are safe: those that were heard well before the end of the audio, or read twice.

AlignAtt trusts a token as soon as enough audio lies behind it. Real Whisper still changes its mind there:
"the candidate j's" becomes "the Canada jays" when half a second more is in. Its own probability tells which
words it will change: one that it is sure of is taken at first sight, and others wait until the next readings
say them too (as in the LocalAgreement policy, Liu et al. 2020, https://arxiv.org/abs/2005.11185), unless they
lie far from the end of the audio. Not known here: models, and how words were read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sottovoce.errors import OptionError
from sottovoce.streaming.window import Window
from sottovoce.streaming.words import ReadWord
from sottovoce.types import FRAMES_PER_SECOND


@dataclass(frozen=True, slots=True)
class AgreementOptions:
    """What makes a word safe that is as far from the audio's end as `StreamOptions.frame_threshold` asks.

    A word's distance is from its last attended frame to the end; frames are 20 ms.
    trusted: a word of at least this probability is safe there.
    agreed_frames, n_readings: an unsure one needs this distance, and that so many readings in a row said it;
    doubtful, n_doubtful: so many, where its probability is less than this.
    far_frames: any word is safe at this distance.
    least_s: seconds of audio before the first word of an utterance.
    """

    trusted: float = 0.7
    doubtful: float = 0.5
    agreed_frames: int = 35
    far_frames: int = 125
    n_readings: int = 2
    n_doubtful: int = 3
    least_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("n_readings", "n_doubtful"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("trusted", "doubtful", "agreed_frames", "far_frames", "least_s"):
            if not getattr(self, name) >= 0:
                raise OptionError(f"{name}: expected 0 or more, got {getattr(self, name)}")


class Agreement:
    """Counts, from one reading to the next, how often in a row each word was read in its place.

    near_frames: a word nearer to the end of the audio waits, whatever else.
    """

    def __init__(self, options: AgreementOptions, near_frames: float) -> None:
        self._options = options
        self._near_frames = near_frames
        self._spelt: list[str] = []
        self._counts: list[int] = []

    def forget(self) -> None:
        """Begin to count anew."""
        self._spelt, self._counts = [], []

    def committed(self, n_words: int) -> None:
        """The first words of the last reading are said; the next reading begins after them."""
        self._spelt, self._counts = self._spelt[n_words:], self._counts[n_words:]

    def n_safe(self, words: Sequence[ReadWord], window: Window) -> int:
        """How many words at the beginning of a reading are safe; they are counted."""
        self._count(words)
        if window.n_frames < self._options.least_s * FRAMES_PER_SECOND:
            return 0
        for place, (read, count) in enumerate(zip(words, self._counts, strict=True)):
            if not self._is_safe(window.n_frames - read.last_frame, count, read.word.probability):
                return place
        return len(words)

    def _count(self, words: Sequence[ReadWord]) -> None:
        spelt = [read.letters for read in words]
        counts, same = [], True
        for place, letters in enumerate(spelt):
            same = same and place < len(self._spelt) and letters == self._spelt[place]
            counts.append(self._counts[place] + 1 if same else 1)
        self._spelt, self._counts = spelt, counts

    def _is_safe(self, n_behind: int, count: int, probability: float) -> bool:
        options = self._options
        if n_behind < self._near_frames:
            return False
        if probability >= options.trusted or n_behind >= options.far_frames:
            return True
        needed = options.n_readings if probability >= options.doubtful else options.n_doubtful
        return count >= needed and n_behind >= options.agreed_frames
