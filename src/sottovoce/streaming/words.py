"""From a hypothesis to words with times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise

from sottovoce.streaming.alignatt import AlignAttHypothesis
from sottovoce.streaming.audio_window import AudioWindow
from sottovoce.text.tokenizer import Tokenizer, TokenWord
from sottovoce.types import FRAMES_PER_SECOND, Word

REPLACEMENT_CHARACTER = "\ufffd"
SPACELESS = ("km", "bo")
"""Languages without spaces that Whisper's own rule splits at spaces."""
LEAD_S = 0.1
"""A word starts this much before its first attended frame."""
MIN_WORD_S = 0.1
"""Shortest word, if the next one leaves room."""


@dataclass(frozen=True, slots=True, eq=False)
class HypothesisWord:
    """A word of a hypothesis; last_frame: frame of the window attended to at its last token."""

    word: Word
    tokens: tuple[int, ...]
    last_frame: int = 0

    @property
    def letters(self) -> str:
        return "".join(filter(str.isalnum, self.word.word.casefold()))

    def not_before(self, start_s: float) -> HypothesisWord:
        start_s = max(self.word.start, start_s)
        return replace(self, word=replace(self.word, start=start_s, end=max(self.word.end, start_s)))


@dataclass(frozen=True, slots=True)
class WordBuilder:
    tokenizer: Tokenizer

    @property
    def language(self) -> str:
        return self.tokenizer.language or "en"

    @property
    def has_spaces(self) -> bool:
        return self.tokenizer.splits_on_spaces and self.language not in SPACELESS

    def words(
        self,
        groups: Sequence[TokenWord],
        hypothesis: AlignAttHypothesis,
        window: AudioWindow,
        *,
        after_s: float,
    ) -> list[HypothesisWord]:
        """Return timed words, none before after_s, without those that have incomplete characters.

        groups: of the hypothesis's first tokens, by `group`.
        """
        ends = list(accumulate((len(group.tokens) for group in groups), initial=0))
        spans = [slice(first, end) for first, end in pairwise(ends)]
        times = self._times(nondecreasing(hypothesis.frames), spans, window, after_s)
        return [
            self._word(group, hypothesis, span, time)
            for group, span, time in zip(groups, spans, times, strict=True)
            if REPLACEMENT_CHARACTER not in group.text
        ]

    def _word(
        self, group: TokenWord, hypothesis: AlignAttHypothesis, span: slice, time: tuple[float, float, int]
    ) -> HypothesisWord:
        n_tokens, (start_s, end_s, last_frame) = len(group.tokens), time
        probability = math.exp(sum(hypothesis.logprobs[span]) / n_tokens)
        word = Word(group.text, start_s, end_s, probability, language=self.language)
        return HypothesisWord(word, group.tokens, last_frame)

    def _times(
        self, frames: Sequence[int], spans: Sequence[slice], window: AudioWindow, after_s: float
    ) -> list[tuple[float, float, int]]:
        """Return start (s), end (s) and last attended frame of each word, without overlaps."""
        end_s = max(after_s, window.start_s)
        earliest = (end_s - window.start_s) * FRAMES_PER_SECOND
        lasts = [frames[span.stop - 1] for span in spans]
        ends = word_ends([max(earliest, last) for last in lasts], window.n_frames)
        firsts = [*(frames[span.start] for span in spans), window.n_frames]
        times = []
        for first, after, last, end in zip(firsts[:-1], firsts[1:], lasts, ends, strict=True):
            start_s = max(end_s, window.seconds(first) - LEAD_S)
            least_s = min(start_s + MIN_WORD_S, window.seconds(after))
            end_s = max(window.start_s + end / FRAMES_PER_SECOND, least_s)
            times.append((start_s, end_s, last))
        return times

    def group(self, tokens: Sequence[int]) -> list[TokenWord]:
        """Group tokens into words with the punctuation after them; leading punctuation joins the first."""
        split = self.tokenizer.split_to_word_tokens if self.has_spaces else self.tokenizer.split_to_characters
        groups: list[TokenWord] = []
        for text, group in zip(*split(tokens), strict=True):
            closing = is_punctuation(text)
            leading = len(groups) == 1 and is_punctuation(groups[0].text) and not closing
            if groups and (closing or leading):
                groups[-1] = TokenWord(groups[-1].text + text, (*groups[-1].tokens, *group))
            else:
                groups.append(TokenWord(text, tuple(group)))
        return groups


def is_punctuation(text: str) -> bool:
    """Return whether a text has no letter, no digit and no incomplete character."""
    return not any(map(str.isalnum, text)) and REPLACEMENT_CHARACTER not in text


def word_ends(lasts: Sequence[float], n_frames: int) -> list[float]:
    """Return the increasing end frames of words; lasts: their last attended frames, non-decreasing.

    A word ends one frame after its last; words with the same frame divide the time to the next word.
    """
    ends: list[float] = []
    for last, run in groupby(lasts):
        n = len(list(run))
        after = lasts[len(ends) + n] if len(ends) + n < len(lasts) else n_frames
        wanted = 1.0 + (n - 1) * MIN_WORD_S * FRAMES_PER_SECOND
        room = max(1.0, min(after - last, wanted))
        ends += [last + room * (i + 1) / n for i in range(n)]
    return ends


def nondecreasing(frames: Sequence[int]) -> list[int]:
    """Return the nearest non-decreasing sequence by sum of distances (isotonic regression).

    Source: Ayer et al. (1955), An empirical distribution function for sampling with incomplete information.
    """
    pools: list[list[int]] = []
    for frame in frames:
        pools.append([frame])
        while len(pools) > 1 and _median(pools[-2]) > _median(pools[-1]):
            last = pools.pop()
            pools[-1] = sorted([*pools[-1], *last])
    return [_median(pool) for pool in pools for _ in pool]


def _median(ordered: Sequence[int]) -> int:
    return ordered[(len(ordered) - 1) // 2]
