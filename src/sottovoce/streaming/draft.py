"""Instant text after the committed words, from a CTC head on encoder states that are there anyway.

It is shown until AlignAtt commits, and never committed: letters come as soon as their frames are encoded.
Not known here: the decoder, languages, and when text is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sottovoce.decoding.ctc.greedy import greedy_decode
from sottovoce.decoding.ctc.text import Labels
from sottovoce.streaming.window import Window
from sottovoce.types import FRAMES_PER_SECOND, Emissions, EncoderOutput


class StateEmissions(Protocol):
    """A CTC head on encoder states, such as `models.ctc_head.CtcHead`."""

    @property
    def labels(self) -> Sequence[str]: ...

    @property
    def blank(self) -> int: ...

    def emissions_of(self, encoded: EncoderOutput) -> Emissions:
        """Label log-probabilities (B, n_frames, V) of encoder states."""
        ...


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
        """What a window says after a moment: words whose middle lies after it."""
        emissions = self._head.emissions_of(window.encoded).log_probs[:, : window.n_frames]
        (greedy,) = greedy_decode(self._labels, emissions, frame_s=1.0 / FRAMES_PER_SECOND)
        words = [
            word for word in greedy.words or () if window.start_s + (word.start + word.end) / 2 > after_s
        ]
        if not words:
            return DraftText(start_s=after_s, end_s=after_s)
        text = "".join(f" {word.word.strip()}" for word in words)
        return DraftText(text, window.start_s + words[0].start, window.start_s + words[-1].end)
