"""The words of a hypothesis, and the commit policy: which of them are final.

AlignAtt accepts a token once enough audio follows, but Whisper may still revise it: "the candidate j's"
becomes "the Canada jays" with half a second more. A probable word is committed at once. Others are committed
when later hypotheses repeat them (LocalAgreement: Liu et al. 2020, https://arxiv.org/abs/2005.11185), or when
they are far from the end of the audio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, groupby, pairwise

from sottovoce.options.decoding import count_repeated, is_silence
from sottovoce.streaming.alignatt import (
    MAX_TOKENS,
    AlignAttHypothesis,
    StopReason,
    StopRules,
    max_tokens_in,
)
from sottovoce.streaming.audio_window import AudioWindow
from sottovoce.streaming.options import CommitOptions, StreamOptions
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
    word: Word
    tokens: tuple[int, ...]
    last_frame: int = 0
    letters: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "letters", letters_of(self.word.word))


@lru_cache(maxsize=1 << 14)  # most words of an update were in the one before
def letters_of(word: str) -> str:
    return "".join(filter(str.isalnum, word.casefold()))


@dataclass(frozen=True, slots=True)
class WordBuilder:
    tokenizer: Tokenizer
    language: str = field(init=False)
    has_spaces: bool = field(init=False)

    def __post_init__(self) -> None:
        language = self.tokenizer.language or "en"
        object.__setattr__(self, "language", language)
        has_spaces = self.tokenizer.splits_on_spaces and language not in SPACELESS
        object.__setattr__(self, "has_spaces", has_spaces)

    def words(
        self,
        groups: Sequence[TokenWord],
        hypothesis: AlignAttHypothesis,
        window: AudioWindow,
        *,
        after_s: float,
    ) -> list[HypothesisWord]:
        """Return timed words, none before after_s, without incomplete characters."""
        ends = list(accumulate([len(group.tokens) for group in groups], initial=0))
        spans = [slice(first, end) for first, end in pairwise(ends)]
        times = self._times(nondecreasing(hypothesis.frames), spans, window, after_s)
        words = []
        for group, span, (start_s, end_s, last_frame) in zip(groups, spans, times, strict=True):
            if REPLACEMENT_CHARACTER not in group.text:
                probability = math.exp(sum(hypothesis.logprobs[span]) / len(group.tokens))
                word = Word(group.text, start_s, end_s, probability, language=self.language)
                words.append(HypothesisWord(word, group.tokens, last_frame))
        return words

    def _times(
        self, frames: Sequence[int], spans: Sequence[slice], window: AudioWindow, after_s: float
    ) -> list[tuple[float, float, int]]:
        end_s = max(after_s, window.start_s)
        earliest = (end_s - window.start_s) * FRAMES_PER_SECOND
        lasts = [frames[span.stop - 1] for span in spans]
        ends = word_ends([max(earliest, last) for last in lasts], window.n_frames)
        firsts = [*[frames[span.start] for span in spans], window.n_frames]
        times = []
        for first, after, last, end in zip(firsts[:-1], firsts[1:], lasts, ends, strict=True):
            start_s = max(end_s, window.seconds(first) - LEAD_S)
            least_s = min(start_s + MIN_WORD_S, window.seconds(after))
            end_s = max(window.start_s + end / FRAMES_PER_SECOND, least_s)
            times.append((start_s, end_s, last))
        return times

    def group(self, tokens: Sequence[int]) -> list[TokenWord]:
        """Group tokens into words with the punctuation after them."""
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


@lru_cache(maxsize=1 << 14)
def is_punctuation(text: str) -> bool:
    return not any(map(str.isalnum, text)) and REPLACEMENT_CHARACTER not in text


def word_ends(lasts: Sequence[float], n_frames: int) -> list[float]:
    """Return increasing end frames: one after the last attended, which words may share."""
    ends: list[float] = []
    for last, run in groupby(lasts):
        n = len(list(run))
        after = lasts[len(ends) + n] if len(ends) + n < len(lasts) else n_frames
        wanted = 1.0 + (n - 1) * MIN_WORD_S * FRAMES_PER_SECOND
        room = max(1.0, min(after - last, wanted))
        ends += [last + room * (i + 1) / n for i in range(n)]
    return ends


def nondecreasing(frames: Sequence[int]) -> list[int]:
    """Return the nearest non-decreasing sequence by sum of distances (Ayer et al. 1955)."""
    if (ordered := sorted(frames)) == [*frames]:
        return ordered
    pools: list[list[int]] = []
    for frame in frames:
        pools.append([frame])
        while len(pools) > 1 and _median(pools[-2]) > _median(pools[-1]):
            last = pools.pop()
            pools[-1] = sorted([*pools[-1], *last])
    return [_median(pool) for pool in pools for _ in pool]


def _median(ordered: Sequence[int]) -> int:
    return ordered[(len(ordered) - 1) // 2]


MAX_WORD_REPEATS = 2
"""A phrase that occurs more often in a row is probably a loop, and waits."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Turns a hypothesis into words that start after the committed ones."""

    window: AudioWindow
    builder: WordBuilder
    after_s: float
    committed: Sequence[str] = ()

    def words(self, hypothesis: AlignAttHypothesis, *, final: bool) -> list[HypothesisWord]:
        groups = self.builder.group(hypothesis.tokens)
        if groups and not self._is_complete(groups[-1], hypothesis, final=final):
            groups.pop()
        return self.builder.words(groups, hypothesis, self.window, after_s=self.after_s)

    def without_loop(self, hypothesis: AlignAttHypothesis, *, final: bool = False) -> list[HypothesisWord]:
        """Return the complete words; of a phrase repeated at the end, only the first."""
        words = self.words(hypothesis, final=final)
        letters = [*self.committed, *[word.letters for word in words]]
        return words[: max(0, len(words) - count_repeated(letters, MAX_WORD_REPEATS))]

    def _is_complete(self, last: TokenWord, hypothesis: AlignAttHypothesis, *, final: bool) -> bool:
        has_spaces, tokenizer = self.builder.has_spaces, self.builder.tokenizer
        if tokenizer.ends_within_character(last.tokens) or (is_punctuation(last.text) and not final):
            return False
        if final or hypothesis.stop_reason in (StopReason.END_OF_TEXT, StopReason.REPEATED):
            return True
        following = hypothesis.held_back_token
        if hypothesis.stop_reason is not StopReason.FRONTIER or following is None:
            return False
        return not has_spaces or tokenizer.token_bytes(following).startswith(b" ")


TOLERANCE_S = 1e-3
DECODE_AHEAD = 0.6
"""Decoding continues to this fraction of the frame threshold, so that more words can be repeated."""


class CommitPolicy:
    """Decide, update by update, which words are committed.

    A word is committed if it is complete (`Reading`), stable (`Agreement`), and ends where the language is
    certain; at the end of the audio, all complete words are.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._agreement = Agreement(
            options.commit_rule, options.near_frames, options.stall_timeout_s * FRAMES_PER_SECOND
        )
        self.unstable: tuple[Word, ...] = ()
        """Uncommitted words of the last hypothesis."""
        self.is_stuck = False
        """Whether the last update looped or jumped back."""

    def stop_rules(self, undecoded_s: float, *, final: bool, committed_until: int | None = None) -> StopRules:
        options = self._options
        return StopRules(
            options.final_frame_threshold if final else DECODE_AHEAD * options.near_frames,
            options.rewind_threshold,
            options.max_repeats,
            MAX_TOKENS if final else max_tokens_in(undecoded_s),
            committed_until,
        )

    def commit(
        self,
        hypothesis: AlignAttHypothesis,
        reading: Reading,
        *,
        certain_until_s: float = math.inf,
        final: bool = False,
    ) -> list[HypothesisWord]:
        """Return the words of a hypothesis that are committed; the others are `unstable`.

        A jump back or no speech makes the hypothesis unusable. certain_until_s: words that end later wait for
        the language. final: no more audio comes.
        """
        is_silent = is_silence(
            hypothesis.no_speech_prob,
            self._options.no_speech_threshold,
            hypothesis.avg_logprob,
            self._options.logprob_threshold,
        )
        if is_silent or hypothesis.stop_reason is StopReason.REWOUND:
            self.is_stuck = not is_silent
            if is_silent:
                self._agreement.reset()
            self.unstable = ()
            return []
        words = reading.words(hypothesis, final=True) if final else reading.without_loop(hypothesis)
        self.is_stuck = hypothesis.is_stuck
        n_stable = self._agreement.add(words, reading.window, is_stuck=self.is_stuck)
        n_certain = n_leading([word.word.end <= certain_until_s for word in words])
        n_committed = min(len(words) if final else n_stable, n_certain)
        self._agreement.drop_committed(words[:n_committed])
        self.unstable = tuple([word.word for word in words[n_committed:]])
        return words[:n_committed]

    def take_agreed(self, after_s: float, until_s: float) -> list[HypothesisWord]:
        words = []
        for agreed in self._agreement.take_agreed():
            if (agreed.word.start + agreed.word.end) / 2 > until_s:
                break
            start_s = max(agreed.word.start, after_s)
            word = replace(agreed.word, start=start_s, end=max(agreed.word.end, start_s))
            words.append(replace(agreed, word=word))
        return words


@dataclass(eq=False)
class Agreement:
    """The uncommitted words of consecutive hypotheses, and which of them are stable.

    Words closer than near_frames to the end of the audio are not; beyond always_commit_frames all are.
    """

    options: CommitOptions
    near_frames: float
    always_commit_frames: float = math.inf

    def __post_init__(self) -> None:
        self.reset()
        self._end_s = -math.inf

    def reset(self) -> None:
        self._words: list[HypothesisWord] = []
        self._since_s: list[float] = []
        """Of each word: end of the audio at the first of the consecutive hypotheses that have it."""

    def add(self, words: Sequence[HypothesisWord], window: AudioWindow, *, is_stuck: bool = False) -> int:
        """Add a hypothesis, unless it is stuck; return how many of its words, from the first, are stable."""
        n_same = count_same(words, self._words)
        since_s = self._since_s[:n_same] + [window.end_s] * (len(words) - n_same)
        if not is_stuck:
            self._words, self._since_s, self._end_s = list(words), since_s, window.end_s
        return n_leading([self._is_stable(*each, window) for each in zip(words, since_s, strict=True)])

    def drop_committed(self, words: Sequence[HypothesisWord]) -> None:
        n_dropped = len(words) if count_same(words, self._words) == len(words) else len(self._words)
        self._words, self._since_s = self._words[n_dropped:], self._since_s[n_dropped:]

    def take_agreed(self) -> list[HypothesisWord]:
        """Remove all words; return those that two consecutive hypotheses had."""
        n_agreed = n_leading([since_s < self._end_s for since_s in self._since_s])
        agreed = self._words[:n_agreed]
        self.reset()
        return agreed

    def _is_stable(self, word: HypothesisWord, since_s: float, window: AudioWindow) -> bool:
        n_behind = window.n_frames - word.last_frame
        if n_behind < self.near_frames or n_behind >= self.always_commit_frames:
            return n_behind >= self.near_frames
        is_agreed = window.end_s - since_s >= self.options.agreed_s - TOLERANCE_S
        return is_agreed or word.word.probability >= self.options.commit_prob


def count_same(words: Sequence[HypothesisWord], others: Sequence[HypothesisWord]) -> int:
    return n_leading([word.letters == other.letters for word, other in zip(words, others, strict=False)])


def n_leading(flags: list[bool]) -> int:
    """Return how many are true before the first that is not."""
    return flags.index(False) if False in flags else len(flags)
