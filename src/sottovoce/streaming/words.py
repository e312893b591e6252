"""Readings into words: complete, in whole characters, with times from the frames attended to.

Not known here: what was committed before, and what becomes of the words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from sottovoce.streaming.endofword import EndOfWord
from sottovoce.streaming.reading import Ending, Reading
from sottovoce.streaming.window import Window
from sottovoce.text.detokenizer import Detokenizer, TokenWord
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Word

BROKEN = "\ufffd"
"""What bytes decode to that are no character."""
GRAPHIC = ("km", "bo")
"""Written without spaces between words, and cut by spaces in Whisper's own rule: a live stream would wait for
one that never comes."""
LEAD_S = 0.1
"""A word begins so much before its first attended frame: attention follows the word."""
LEAST_WORD_S = 0.1
"""A word lasts at least so long, where the next one leaves it the time."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadWord:
    """A word that was read, and its tokens; entropy: mean over them, natural log. last_frame: the last one
    attended to, of the window that it was read in."""

    word: Word
    tokens: tuple[int, ...]
    entropy: float
    last_frame: int = 0

    @property
    def letters(self) -> str:
        """What is said, whatever its case and punctuation."""
        return "".join(filter(str.isalnum, self.word.word.casefold()))

    def after(self, start_s: float) -> ReadWord:
        """The same, beginning no sooner than a moment."""
        start_s = max(self.word.start, start_s)
        return replace(self, word=replace(self.word, start=start_s, end=max(self.word.end, start_s)))

    def at(self, start_s: float, end_s: float) -> ReadWord:
        """The same, elsewhere."""
        return replace(self, word=replace(self.word, start=start_s, end=end_s))


@dataclass(frozen=True, slots=True)
class WordMaker:
    """Makes words of one language; see the module."""

    tokenizer: Tokenizer
    end_of_word: EndOfWord | None = None

    @property
    def language(self) -> str:
        return self.tokenizer.language or "en"

    @property
    def has_spaces(self) -> bool:
        """Whether words are told apart by spaces."""
        return self.tokenizer.splits_on_spaces and self.language not in GRAPHIC

    def words(
        self, reading: Reading, window: Window, *, after_s: float, final: bool = False
    ) -> list[ReadWord]:
        """Complete words of a reading, none before after_s. final: an unfinished last word counts."""
        groups = self._group(reading.tokens)
        if groups and not self._last_is_complete(reading, window, groups[-1], final=final):
            groups.pop()
        words = []
        rising = in_order(reading.frames)
        spans = _spans(groups)
        end_s = max(after_s, window.start_s)
        for group, span, after in zip(groups, spans, [*spans[1:], None][: len(spans)], strict=True):
            frames = rising[span]
            start_s = max(end_s, window.seconds(min(frames)) - LEAD_S)
            end_s = self._end_s(window, frames, None if after is None else rising[after.start], start_s)
            if BROKEN in group.text:
                continue
            probability = math.exp(sum(reading.logprobs[span]) / len(frames))
            word = Word(group.text, start_s, end_s, probability, language=self.language)
            entropy = sum(reading.entropies[span]) / len(frames)
            words.append(ReadWord(word, group.tokens, entropy, max(frames)))
        return words

    def _end_s(self, window: Window, frames: Sequence[int], next_frame: int | None, start_s: float) -> float:
        """Where a word ends: after its last frame, or a little later where the next word leaves the time."""
        end_s = max(start_s, window.seconds(max(frames) + 1))
        limit_s = window.end_s if next_frame is None else window.seconds(next_frame)
        return max(end_s, min(start_s + LEAST_WORD_S, limit_s))

    def _group(self, tokens: Sequence[int]) -> list[TokenWord]:
        """Words with the punctuation that follows them; that at the beginning with the first one."""
        split = self.tokenizer.split_to_word_tokens if self.has_spaces else self.tokenizer.split_to_characters
        groups: list[TokenWord] = []
        for text, group in zip(*split(tokens), strict=True):
            closing = not text.startswith(" ") and not any(map(str.isalnum, text)) and BROKEN not in text
            leading = len(groups) == 1 and not any(map(str.isalnum, groups[0].text)) and not closing
            if groups and (closing or leading):
                groups[-1] = TokenWord(groups[-1].text + text, (*groups[-1].tokens, *group))
            else:
                groups.append(TokenWord(text, tuple(group)))
        return groups

    def _last_is_complete(self, reading: Reading, window: Window, last: TokenWord, *, final: bool) -> bool:
        detokenizer = Detokenizer(self.tokenizer)
        detokenizer.push(last.tokens)
        if detokenizer.pending:
            return False
        if final or reading.ending in (Ending.END_OF_TEXT, Ending.REPEATED):
            return True
        if reading.ending is not Ending.FRONTIER or reading.refused is None:
            return False
        if self.end_of_word is not None and self.end_of_word.fires(window.encoded):
            return True
        if not self.has_spaces:
            return True
        return self.tokenizer.token_bytes(reading.refused).startswith(b" ")


def _spans(groups: Sequence[TokenWord]) -> list[slice]:
    """Where each word's tokens lie in the reading."""
    ends = list(accumulate((len(group.tokens) for group in groups), initial=0))
    return [slice(first, end) for first, end in pairwise(ends)]


def in_order(frames: Sequence[int]) -> list[int]:
    """The rising sequence next to some frames, in the sum of distances: one stray frame moves no other.

    Isotonic regression by pooling neighbours that violate the order; a pool takes its (lower) median.
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
