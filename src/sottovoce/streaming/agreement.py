"""Which words of a reading are safe: those that the model is sure of, that were read again, or lie far back.

AlignAtt trusts a token as soon as enough audio lies behind it. Real Whisper still changes its mind there:
"the candidate j's" becomes "the Canada jays" when half a second more is in. Its own probability tells which
words it will change: one that it is sure of is taken at first sight, and others wait until the next readings
say them too (as in the LocalAgreement policy, Liu et al. 2020, https://arxiv.org/abs/2005.11185), unless they
lie far from the end of the audio. Not known here: models, and how words were read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from sottovoce.errors import OptionError
from sottovoce.streaming.window import Window
from sottovoce.streaming.words import ReadWord
from sottovoce.types import FRAMES_PER_SECOND


@dataclass(frozen=True, slots=True)
class AgreementOptions:
    """What makes a word safe.

    A word's distance is from its last attended frame to the end of the audio; frames are 20 ms.
    trusted: a word of at least this probability is safe at `sure_part` of `StreamOptions.frame_threshold`.
    agreed_frames, n_readings: an unsure one needs this distance, and at least the threshold, and that so many
        readings in a row said it; doubtful, n_doubtful: so many, where its probability is less than this.
    far_frames: any word is safe at this distance.
    least_s: before so many seconds of an utterance are in, words of at least `trusted_early` are safe at
        first sight, trusted ones when they were read as often as doubtful ones, and no others; None: none.
    """

    trusted: float = 0.7
    sure_part: float = 1.0
    doubtful: float = 0.5
    agreed_frames: int = 35
    far_frames: int = 125
    n_readings: int = 2
    n_doubtful: int = 3
    least_s: float = 2.0
    trusted_early: float | None = None

    def __post_init__(self) -> None:
        for name in ("n_readings", "n_doubtful"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("trusted", "doubtful", "agreed_frames", "far_frames", "least_s"):
            if not getattr(self, name) >= 0:
                raise OptionError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        if not 0 < self.sure_part <= 1:
            raise OptionError(f"sure_part: expected more than 0, and at most 1, got {self.sure_part}")
        if self.trusted_early is not None and not self.trusted_early >= 0:
            raise OptionError(f"trusted_early: expected 0 or more, or None, got {self.trusted_early}")


class Agreement:
    """Counts, from one reading to the next, how often in a row each word was read in its place.

    sure_frames: a word nearer to the end of the audio waits, whatever else; near_frames: so does an unsure
    one.
    """

    def __init__(self, options: AgreementOptions, near_frames: float, sure_frames: float) -> None:
        self._options = options
        self._unsure_frames = max(near_frames, options.agreed_frames)
        self._far_frames = max(near_frames, options.far_frames)
        self._sure_frames = sure_frames
        self._spelt: list[str] = []
        self._counts: list[int] = []

    def forget(self) -> None:
        """Begin to count anew."""
        self._spelt, self._counts = [], []

    def committed(self, n_words: int) -> None:
        """The first words of the last reading are said; the next reading begins after them."""
        self._spelt, self._counts = self._spelt[n_words:], self._counts[n_words:]

    @property
    def n_agreed(self) -> int:
        """Words behind the committed ones that the last two readings said, or more of them."""
        return sum(1 for _ in takewhile(lambda count: count >= 2, self._counts))

    def n_safe(self, words: Sequence[ReadWord], window: Window) -> int:
        """How many words at the beginning of a reading are safe; they are counted."""
        self._count(words)
        is_early = window.n_frames < self._options.least_s * FRAMES_PER_SECOND
        is_safe = self._is_safe_early if is_early else self._is_safe
        for place, (read, count) in enumerate(zip(words, self._counts, strict=True)):
            if not is_safe(window.n_frames - read.last_frame, count, read.word.probability):
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
        if n_behind >= self._far_frames:
            return True
        if probability >= options.trusted:
            return n_behind >= self._sure_frames
        needed = options.n_readings if probability >= options.doubtful else options.n_doubtful
        return count >= needed and n_behind >= self._unsure_frames

    def _is_safe_early(self, n_behind: int, count: int, probability: float) -> bool:
        """The same while little audio is in: nothing is known of what it goes on to say."""
        options = self._options
        if options.trusted_early is None:
            return False
        if probability >= max(options.trusted, options.trusted_early):
            return n_behind >= self._sure_frames
        is_trusted = probability >= options.trusted and count >= options.n_doubtful
        return is_trusted and n_behind >= self._unsure_frames
