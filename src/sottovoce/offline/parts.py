"""Parts of a segment. Knows neither a model nor who cuts: by speakers, or by rules of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sottovoce.types import Segment, Word


def part_of(
    segment: Segment, words: tuple[Word, ...], groups: Sequence[Sequence[Word]], index: int
) -> Segment:
    """Make a segment of only these words, which are one group of its own."""
    return replace(
        segment,
        start=words[0].start if any(groups[:index]) else segment.start,
        end=words[-1].end if any(groups[index + 1 :]) else segment.end,
        text="".join(word.word for word in words),
        tokens=tuple(token.id for word in words for token in word.tokens),
        words=words,
        speaker=words[0].speaker,
    )
