"""Words of several rows into one text: where two lie on the same audio, the better one wins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.streaming.audio_window import AudioWindow
from sottovoce.streaming.multilingual.masks import SHARE_FLOOR, Shares, ownership
from sottovoce.streaming.words import HypothesisWord, letters_of
from sottovoce.types import Word

SAME_WORD_S = 0.5
"""The same word of two rows with middles this near to each other was spoken once."""
LEAST_OWNERSHIP = 0.5
"""A word is dropped if its language has less of its frames than this part of the largest share: half is where
the next language is twice as likely."""
_TIE = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class RowWord:
    """A word of one row, with what it competes by.

    score: log p + weight * log q (p: of the decoder, q: of the timeline). ownership: its language's part of
    the largest share on its frames. margin_s: from its end to the end of the audio.
    """

    word: HypothesisWord
    score: float
    ownership: float
    margin_s: float

    @classmethod
    def of(
        cls, word: HypothesisWord, window: AudioWindow, shares: Shares, language: int, *, weight: float
    ) -> RowWord:
        """Score a word of a language's row by the timeline over the window."""
        first = min(window.frame(word.word.start), len(shares) - 1)
        last = max(first + 1, window.frame(word.word.end))
        share = shares[first:last]
        q = float(np.log(np.maximum(share[:, language], SHARE_FLOOR)).mean())
        score = math.log(max(word.word.probability, 1e-9)) + weight * q
        owned = float(ownership(share)[:, language].mean())
        return cls(word, score, owned, window.end_s - word.word.end)

    def beats(self, other: RowWord) -> bool:
        """Return whether it has the higher score; within 0.01 the lower entropy, then the larger margin."""
        if abs(self.score - other.score) > _TIE:
            return self.score > other.score
        if abs(self.word.entropy - other.word.entropy) > _TIE:
            return self.word.entropy < other.word.entropy
        return self.margin_s >= other.margin_s

    def overlaps(self, other: RowWord) -> bool:
        ours, theirs = self.word.word, other.word.word
        common = ours.start < theirs.end - 1e-6 and theirs.start < ours.end - 1e-6
        return common or is_same_word(ours, theirs)


def is_same_word(a: Word, b: Word) -> bool:
    """Return whether words of two rows are one: each row decodes a part of a word across a language border,
    attending to different frames."""
    near = abs((a.start + a.end) - (b.start + b.end)) / 2 < SAME_WORD_S
    return near and letters_of(a) == letters_of(b) != ""


def merge_rows(rows: Sequence[Sequence[RowWord]]) -> list[HypothesisWord]:
    """Return the words that win their audio, in order of time.

    A word stands if its language owns enough of its frames, and no such word of another row that overlaps it,
    or is the same, beats it.
    """
    able = [[word for word in row if word.ownership >= LEAST_OWNERSHIP] for row in rows]
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
    return sorted((one.word for one in winners), key=lambda word: (word.word.start, word.word.end))
