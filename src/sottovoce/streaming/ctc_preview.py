"""Unstable text after the committed words, from a CTC head on the encoder states of the update.

Letters come as soon as their frames are encoded; they are shown until AlignAtt commits, and never committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sottovoce.decoding.ctc.greedy import greedy_decode
from sottovoce.decoding.ctc.text import Labels
from sottovoce.streaming.audio_window import AudioWindow
from sottovoce.types import FRAMES_PER_SECOND, Emissions, EncoderOutput, Word


class StateEmissions(Protocol):
    """Map encoder states to CTC emissions, as `models.ctc_head.CtcHead` does."""

    @property
    def labels(self) -> Sequence[str]: ...

    @property
    def blank(self) -> int: ...

    @property
    def reach_frames(self) -> int:
        """Receptive field: frames to each side that a frame's labels depend on."""
        ...

    def emissions_of(self, encoded: EncoderOutput) -> Emissions:
        """Return label log-probabilities (B, n_frames, V) of encoder states (B, n_frames, d)."""
        ...


_FIRST_BACK = 25
"""Frames (0.5 s) before the requested time that are decoded first; doubled while a word is cut."""


@dataclass(frozen=True, slots=True)
class UnstableText:
    """Text that may change with the next update, with its span in seconds of the recording."""

    text: str = ""
    start_s: float = 0.0
    end_s: float = 0.0


class CtcPreview:
    """Decode the end of a window greedily by CTC, in the spelling of the head (nano: Chinese as pinyin)."""

    def __init__(self, head: StateEmissions) -> None:
        self._head = head
        self._labels = Labels.of(head.labels, head.blank)

    def decode(self, window: AudioWindow, after_s: float) -> UnstableText:
        """Return the words of a window whose middle lies after `after_s`.

        The head runs over the frames after it, and over those of the word that it falls into.
        """
        words = self._words_after(window, after_s)
        if not words:
            return UnstableText(start_s=after_s, end_s=after_s)
        text = "".join(f" {word.word.strip()}" for word in words)
        return UnstableText(text, window.start_s + words[0].start, window.start_s + words[-1].end)

    def _words_after(self, window: AudioWindow, after_s: float) -> list[Word]:
        """Return words with their middle after `after_s`; their times count from the window's start.

        The first frame decoded may cut a word, which is then the first one found. Whole, its middle would lie
        earlier still: once the first word is not returned, those that are were decoded whole.
        """
        after = after_s - window.start_s
        n_back = _FIRST_BACK
        while True:
            begin = max(0, window.frame(after_s) - n_back)
            words = self._words(window, begin)
            if begin == 0 or not words or (words[0].start + words[0].end) / 2 <= after:
                return [word for word in words if (word.start + word.end) / 2 > after]
            n_back *= 2

    def _words(self, window: AudioWindow, begin: int) -> list[Word]:
        """Decode the frames from `begin` on; times count from the window's start."""
        first = max(0, begin - self._head.reach_frames)
        encoded = window.encoded
        part = EncoderOutput(encoded.states[:, first:], (window.n_frames - first,))
        emissions = self._head.emissions_of(part).log_probs[:, begin - first : window.n_frames - first]
        (greedy,) = greedy_decode(self._labels, emissions, frame_s=1.0 / FRAMES_PER_SECOND)
        later_s = begin / FRAMES_PER_SECOND
        return [
            replace(word, start=word.start + later_s, end=word.end + later_s) for word in greedy.words or ()
        ]
