"""Words that two readings agreed on and that are not committed yet: what is left where the thread is lost.

A word may wait for a third reading, for its distance, or for the language. Where the readings after it jump
back or loop, up to the end, it was read well all the same. Not known here: what makes a word safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from sottovoce.streaming.words import ReadWord


class Agreed:
    """The agreed words behind the committed ones, in their order."""

    def __init__(self) -> None:
        self._words: list[ReadWord] = []

    def follow(
        self, said: Sequence[ReadWord], waiting: Sequence[ReadWord], n_agreed: int, *, is_lost: bool
    ) -> None:
        """Take what a reading said and what of it waits, of which the first ones were read before.

        is_lost: it looped or jumped back; words that it did not come to are as agreed as they were.
        """
        if is_lost:
            is_same = n_alike(said, self._words) == len(said)
            self._words = self._words[len(said) :] if is_same else []
        else:
            self._words = list(waiting[: max(n_agreed, n_alike([*said, *waiting], self._words) - len(said))])

    def take(self, after_s: float, until_s: float) -> list[ReadWord]:
        """Those most of which lies before a moment, beginning after another; none is kept."""
        words, self._words = self._words, []
        within = takewhile(lambda read: (read.word.start + read.word.end) / 2 <= until_s, words)
        return [read.after(after_s) for read in within]


def n_alike(words: Sequence[ReadWord], others: Sequence[ReadWord]) -> int:
    """How many words at the beginning have the same letters."""
    pairs = zip(words, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0].letters == pair[1].letters, pairs))
