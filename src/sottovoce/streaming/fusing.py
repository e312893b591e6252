"""Words of several rows into one text: where they lie on the same audio, the better one stands.

Not known here: models, and how words were read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.streaming.gating import LEAST_SHARE, Shares, ownership
from sottovoce.streaming.window import Window
from sottovoce.streaming.words import ReadWord
from sottovoce.types import Word

SAME_WORD_S = 0.5
"""The same word by two rows, with middles this near to each other, was said once."""
_TIE = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A word of one row: its fused score log p + weight * log q (p: of the decoder, q: of the timeline),
    the part of the largest share that its language has there, and how far before the end of the audio it
    lies."""

    read: ReadWord
    score: float
    ownership: float
    margin_s: float

    @classmethod
    def of(cls, read: ReadWord, window: Window, shares: Shares, language: int, *, weight: float) -> Candidate:
        """A word of a language's row, seen with the timeline over the window."""
        first = min(window.frame(read.word.start), len(shares) - 1)
        last = max(first + 1, window.frame(read.word.end))
        share = shares[first:last]
        q = float(np.log(np.maximum(share[:, language], LEAST_SHARE)).mean())
        score = math.log(max(read.word.probability, 1e-9)) + weight * q
        owned = float(ownership(share)[:, language].mean())
        return cls(read, score, owned, window.end_s - read.word.end)

    def beats(self, other: Candidate) -> bool:
        """Higher score; within 0.01, lower entropy, then the larger margin."""
        if abs(self.score - other.score) > _TIE:
            return self.score > other.score
        if abs(self.read.entropy - other.read.entropy) > _TIE:
            return self.read.entropy < other.read.entropy
        return self.margin_s >= other.margin_s

    def overlaps(self, other: Candidate) -> bool:
        ours, theirs = self.read.word, other.read.word
        common = ours.start < theirs.end - 1e-6 and theirs.start < ours.end - 1e-6
        return common or is_same_word(ours, theirs)


def is_same_word(a: Word, b: Word) -> bool:
    """Whether words of two rows are one: a word across the border of two languages is heard by both rows, by
    each in part, and attended to at different frames."""
    near = abs((a.start + a.end) - (b.start + b.end)) / 2 < SAME_WORD_S
    return near and _letters(a) == _letters(b) != ""


def _letters(word: Word) -> str:
    return "".join(filter(str.isalnum, word.word.casefold()))


def fuse(rows: Sequence[Sequence[Candidate]], least_share: float) -> list[ReadWord]:
    """Words that win their audio, in order of time.

    A word stands when its language has enough of the frames and no word of another row that does so too, and
    overlaps it or is the same, beats it.
    """
    able = [[word for word in row if word.ownership >= least_share] for row in rows]
    winners = [
        word
        for i, row in enumerate(able)
        for word in row
        if all(
            not word.overlaps(other) or word.beats(other)
            for j, others in enumerate(able)
            if j != i
            for other in others
        )
    ]
    return sorted((word.read for word in winners), key=lambda read: (read.word.start, read.word.end))
