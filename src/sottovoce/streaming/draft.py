"""Instant text after the committed words, from a CTC head on encoder states that are there anyway.

It is shown until AlignAtt commits, and never committed: letters come as soon as their frames are encoded.
Not known here: the decoder, languages, and when text is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sottovoce.decoding.ctc.greedy import greedy_decode
from sottovoce.decoding.ctc.text import Labels
from sottovoce.streaming.window import Window
from sottovoce.types import FRAMES_PER_SECOND, Emissions, EncoderOutput, Word


class StateEmissions(Protocol):
    """A CTC head on encoder states, such as `models.ctc_head.CtcHead`."""

    @property
    def labels(self) -> Sequence[str]: ...

    @property
    def blank(self) -> int: ...

    @property
    def reach_frames(self) -> int:
        """Frames to each side that a frame's labels depend on."""
        ...

    def emissions_of(self, encoded: EncoderOutput) -> Emissions:
        """Label log-probabilities (B, n_frames, V) of encoder states."""
        ...


_FIRST_BACK = 25
"""Frames (0.5 s) before a moment that are read first: those of the word that it may fall into."""


@dataclass(frozen=True, slots=True)
class DraftText:
    """Text that may change with the next update; seconds in the recording."""

    text: str = ""
    start_s: float = 0.0
    end_s: float = 0.0


class CtcDraft:
    """Greedy CTC text of the end of a window, in the spelling of the head (nano: Chinese as pinyin)."""

    def __init__(self, head: StateEmissions) -> None:
        self._head = head
        self._labels = Labels.of(head.labels, head.blank)

    def read(self, window: Window, after_s: float) -> DraftText:
        """What a window says after a moment: words whose middle lies after it.

        The head runs over the frames after it alone, and over those of a word that it falls into.
        """
        words = self._words_after(window, after_s)
        if not words:
            return DraftText(start_s=after_s, end_s=after_s)
        text = "".join(f" {word.word.strip()}" for word in words)
        return DraftText(text, window.start_s + words[0].start, window.start_s + words[-1].end)

    def _words_after(self, window: Window, after_s: float) -> list[Word]:
        """Words whose middle lies after a moment; their times count from the window's beginning.

        Where frames are read from is within a word, perhaps, which is the first one found. Said to its
        beginning its middle lies earlier still: once it is not shown, everything that is has been read whole.
        """
        after = after_s - window.start_s
        n_back = _FIRST_BACK
        while True:
            begin = max(0, window.frame(after_s) - n_back)
            words = self._words(window, begin)
            if begin == 0 or not words or (words[0].start + words[0].end) / 2 <= after:
                return [word for word in words if (word.start + word.end) / 2 > after]
            n_back *= 2

    def _words(self, window: Window, begin: int) -> list[Word]:
        """Words of the frames from `begin` on."""
        first = max(0, begin - self._head.reach_frames)
        encoded = window.encoded
        part = EncoderOutput(encoded.states[:, first:], (window.n_frames - first,))
        emissions = self._head.emissions_of(part).log_probs[:, begin - first : window.n_frames - first]
        (greedy,) = greedy_decode(self._labels, emissions, frame_s=1.0 / FRAMES_PER_SECOND)
        later_s = begin / FRAMES_PER_SECOND
        return [
            replace(word, start=word.start + later_s, end=word.end + later_s) for word in greedy.words or ()
        ]
