"""The commit policy: which words are final.

AlignAtt accepts a token once enough audio follows, but Whisper may still revise it: "the candidate j's"
becomes "the Canada jays" with half a second more. A probable word is committed at once, others when later
hypotheses repeat them (LocalAgreement: Liu et al. 2020, https://arxiv.org/abs/2005.11185) or far from the end
of the audio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from sottovoce.streaming.alignatt import (
    MAX_TOKENS,
    AlignAttHypothesis,
    StopReason,
    StopRules,
    count_repeated,
    max_tokens_in,
)
from sottovoce.streaming.audio_window import AudioWindow
from sottovoce.streaming.options import CommitOptions, StreamOptions
from sottovoce.streaming.words import HypothesisWord, WordBuilder, is_punctuation
from sottovoce.text.tokenizer import Detokenizer, TokenWord
from sottovoce.types import FRAMES_PER_SECOND, Word

TOLERANCE_S = 1e-3
DECODE_AHEAD = 0.6
"""Decoding continues to this fraction of the frame threshold, so that more words can be repeated."""


class CommitPolicy:
    """Decide, update by update, which words are committed.

    A word is committed if it is complete (`Reading`), stable (`Agreement`), and ends where the language is
    certain; at the end of the audio, all complete words are. If decoding fails for good, words that two
    hypotheses agreed on are (`take_agreed`).
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._agreement = Agreement(
            options.commit_rule, options.near_frames, options.stall_timeout_s * FRAMES_PER_SECOND
        )
        self.unstable: tuple[Word, ...] = ()
        """Words of the last hypothesis that were not committed."""
        self.is_stuck = False
        """Whether the last update looped or jumped back."""

    def stop_rules(self, undecoded_s: float, *, final: bool, committed_until: int | None = None) -> StopRules:
        """Return when decoding stops.

        undecoded_s: seconds after the committed words. final: no more audio comes. committed_until: see
        `StopRules`.
        """
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

        A jump back or no speech makes the hypothesis unusable; without speech, earlier ones are forgotten.

        certain_until_s: words that end later wait for the language. final: no more audio comes.
        """
        is_silent = (
            hypothesis.no_speech_prob > self._options.no_speech_threshold
            and hypothesis.avg_logprob < self._options.logprob_threshold
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
        n_certain = sum(1 for _ in takewhile(lambda one: one.word.end <= certain_until_s, words))
        n_committed = min(len(words) if final else n_stable, n_certain)
        self._agreement.drop_committed(words[:n_committed])
        self.unstable = tuple(one.word for one in words[n_committed:])
        return words[:n_committed]

    def take_agreed(self, after_s: float, until_s: float) -> list[HypothesisWord]:
        """Remove and return the words that two hypotheses agreed on and whose middle is not after until_s.

        after_s: earliest start of a word, in seconds.
        """
        within = takewhile(
            lambda one: (one.word.start + one.word.end) / 2 <= until_s, self._agreement.take_agreed()
        )
        return [one.not_before(after_s) for one in within]


MAX_WORD_REPEATS = 2
"""A phrase that occurs more often in a row is probably a loop, and waits."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Turns a hypothesis into words.

    after_s: end of the committed words, before which no word starts. committed: their letters.
    """

    window: AudioWindow
    builder: WordBuilder
    after_s: float
    committed: Sequence[str] = ()

    def words(self, hypothesis: AlignAttHypothesis, *, final: bool) -> list[HypothesisWord]:
        """Return the complete words; final: the last one is complete."""
        groups = self.builder.group(hypothesis.tokens)
        if groups and not self._is_complete(groups[-1], hypothesis, final=final):
            groups.pop()
        return self.builder.words(groups, hypothesis, self.window, after_s=self.after_s)

    def without_loop(self, hypothesis: AlignAttHypothesis, *, final: bool = False) -> list[HypothesisWord]:
        """Return the complete words; of a phrase that repeats itself at the end, only the first."""
        words = self.words(hypothesis, final=final)
        letters = [*self.committed, *(one.letters for one in words)]
        return words[: max(0, len(words) - count_repeated(letters, MAX_WORD_REPEATS))]

    def _is_complete(self, last: TokenWord, hypothesis: AlignAttHypothesis, *, final: bool) -> bool:
        detokenizer = Detokenizer(self.builder.tokenizer)
        detokenizer.push(last.tokens)
        if detokenizer.pending or (is_punctuation(last.text) and not final):
            return False
        if final or hypothesis.stop_reason in (StopReason.END_OF_TEXT, StopReason.REPEATED):
            return True
        following = hypothesis.held_back_token
        if hypothesis.stop_reason is not StopReason.FRONTIER or following is None:
            return False
        has_spaces, tokenizer = self.builder.has_spaces, self.builder.tokenizer
        return not has_spaces or tokenizer.token_bytes(following).startswith(b" ")


class Agreement:
    """The uncommitted words of consecutive hypotheses, and which of them are stable.

    near_frames: least distance of a stable word from the end of the audio. far_frames: at this distance every
    word is stable, even if each hypothesis spells it differently.
    """

    def __init__(self, options: CommitOptions, near_frames: float, far_frames: float = math.inf) -> None:
        self._options = options
        self._near_frames = near_frames
        self._far_frames = far_frames
        self._words: list[HypothesisWord] = []
        self._since_s: list[float] = []
        """Of each word: end of the audio at the first of the consecutive hypotheses that have it."""
        self._end_s = -math.inf

    def reset(self) -> None:
        self._words, self._since_s = [], []

    def add(self, words: Sequence[HypothesisWord], window: AudioWindow, *, is_stuck: bool = False) -> int:
        """Add a hypothesis; return how many of its words, from the first, are stable.

        is_stuck: the hypothesis does not replace the words of earlier ones.
        """
        n_same = count_same(words, self._words)
        since_s = self._since_s[:n_same] + [window.end_s] * (len(words) - n_same)
        if not is_stuck:
            self._words, self._since_s, self._end_s = list(words), since_s, window.end_s
        known = zip(words, since_s, strict=True)
        return sum(1 for _ in takewhile(lambda pair: self._is_stable(*pair, window), known))

    def drop_committed(self, words: Sequence[HypothesisWord]) -> None:
        """Remove committed words; if they differ from the uncommitted ones, remove all."""
        n_dropped = len(words) if count_same(words, self._words) == len(words) else len(self._words)
        self._words, self._since_s = self._words[n_dropped:], self._since_s[n_dropped:]

    def take_agreed(self) -> list[HypothesisWord]:
        """Remove all words; return those that two consecutive hypotheses had."""
        n_agreed = sum(1 for _ in takewhile(lambda since_s: since_s < self._end_s, self._since_s))
        found = self._words[:n_agreed]
        self.reset()
        return found

    def _is_stable(self, one: HypothesisWord, since_s: float, window: AudioWindow) -> bool:
        n_behind = window.n_frames - one.last_frame
        if n_behind < self._near_frames or n_behind >= self._far_frames:
            return n_behind >= self._near_frames
        is_agreed = window.end_s - since_s >= self._options.agreed_s - TOLERANCE_S
        return is_agreed or one.word.probability >= self._options.commit_prob


def count_same(words: Sequence[HypothesisWord], others: Sequence[HypothesisWord]) -> int:
    pairs = zip(words, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0].letters == pair[1].letters, pairs))
