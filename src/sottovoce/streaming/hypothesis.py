"""Prefixes, hypotheses and stop rules of an AlignAtt decode, and the cache for the next update.

Frames are encoder frames of 20 ms, counted from the start of the window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from sottovoce.decoding.alignment import RunningStatistics
from sottovoce.models.backend import RowPrefix

MAX_TOKENS = 224
"""Half of Whisper's text context, as in offline decoding."""
TOKENS_PER_SECOND = 20.0
"""Nobody speaks faster (Chinese in bytes takes 15); a beam with more has lost the audio."""
BABBLE_TOKENS, BABBLE_DISTINCT = 32, 8
"""This many tokens with at most this many different ones are a loop. Texts of five languages have 14 or
more, or 12 if spelled in bytes.
"""


@dataclass(frozen=True, slots=True)
class DecoderPrefix:
    """The tokens that a decode starts from: prompt, start-of-transcript sequence, committed text.

    sot: position of <|startoftranscript|>. n_committed: number of committed tokens, at the end.
    """

    tokens: tuple[int, ...]
    sot: int
    n_committed: int

    @property
    def committed(self) -> tuple[int, ...]:
        return self.tokens[len(self.tokens) - self.n_committed :]


@dataclass(frozen=True, slots=True, eq=False)
class PrefixCache:
    """The decoder's state of the first tokens of a prefix, for the next update.

    New audio hardly changes the states of earlier words.

    attention: statistics (1, n_heads, n_frames). no_speech_prob: at <|startoftranscript|>, if included.
    """

    tokens: tuple[int, ...]
    state: RowPrefix
    attention: RunningStatistics
    no_speech_prob: float

    def applies_to(self, tokens: tuple[int, ...], n_frames: int) -> bool:
        """Return whether a longer prefix begins with these tokens, in a window of at least as many frames."""
        n_cached = len(self.tokens)
        fits = self.attention.mean.shape[-1] <= n_frames
        return fits and n_cached < len(tokens) and tokens[:n_cached] == self.tokens


class StopReason(Enum):
    END_OF_TEXT = "end of text"
    FRONTIER = "attended too near to the end of the audio"
    REWOUND = "attention jumped back"
    REPEATED = "fell into a loop"
    FULL = "no room for more tokens"


@dataclass(frozen=True, slots=True)
class AlignAttHypothesis:
    """The tokens that one decode found after its prefix.

    tokens: text ids. frames: the frame attended to most at each. logprobs, entropies: in nats, of each
    token and its distribution. avg_logprob: mean over the tokens, and <|endoftext|> if decoded.
    held_back_token: rejected at the frontier. no_speech_prob: at <|startoftranscript|>. mean_score:
    avg_logprob with language model scores. prefix_cache: for the next update, if requested.
    """

    tokens: tuple[int, ...]
    frames: tuple[int, ...]
    logprobs: tuple[float, ...]
    entropies: tuple[float, ...]
    stop_reason: StopReason
    avg_logprob: float = 0.0
    held_back_token: int | None = None
    no_speech_prob: float = 0.0
    mean_score: float = 0.0
    prefix_cache: PrefixCache | None = field(default=None, compare=False)

    @property
    def is_stuck(self) -> bool:
        """Whether decoding jumped back or looped."""
        return self.stop_reason in (StopReason.REWOUND, StopReason.REPEATED)

    @property
    def ranking_key(self) -> tuple[bool, float]:
        """Sort key of finished beams: not stuck, then `mean_score`.

        An empty text is ranked by <|endoftext|>; one that stopped before its first token comes last.
        """
        has_score = bool(self.logprobs) or self.stop_reason is StopReason.END_OF_TEXT
        return not self.is_stuck, self.mean_score if has_score else -math.inf


@dataclass(frozen=True, slots=True)
class BeamPath:
    """The tokens of one beam so far. score: sum of their log-probabilities. lm_score: of language models."""

    tokens: tuple[int, ...] = ()
    frames: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()
    score: float = 0.0
    lm_score: float = 0.0

    @property
    def total_score(self) -> float:
        return self.score + self.lm_score

    def extended(
        self, token: int, frame: int, logprob: float, entropy: float, lm_score: float = 0.0
    ) -> BeamPath:
        return BeamPath(
            (*self.tokens, token),
            (*self.frames, frame),
            (*self.logprobs, logprob),
            (*self.entropies, entropy),
            self.score + logprob,
            self.lm_score + lm_score,
        )

    def stopped(
        self, stop_reason: StopReason, *, n_tokens: int | None = None, held_back_token: int | None = None
    ) -> AlignAttHypothesis:
        """Return the hypothesis that ends here; n_tokens: end of the slice of tokens, None: all."""
        part = slice(None, n_tokens)
        return AlignAttHypothesis(
            tokens=self.tokens[part],
            frames=self.frames[part],
            logprobs=self.logprobs[part],
            entropies=self.entropies[part],
            stop_reason=stop_reason,
            avg_logprob=self.score / max(1, len(self.tokens)),
            held_back_token=held_back_token,
            mean_score=self.total_score / max(1, len(self.tokens)),
        )


@dataclass(frozen=True, slots=True)
class StopRules:
    """When a beam stops.

    frame_threshold: at a token attended this close to the end of the audio; 0: never, inf: at the first.
    rewind_threshold: at a backward jump of attention by more frames. committed_until: end frame of the
    committed words, from which the first token's jump is counted, or None. max_repeats: after a run of
    tokens repeated more often, at least 8 tokens; below 32, also after 32 tokens with at most 8 different
    ones. max_tokens: after this many.
    """

    frame_threshold: float = 25
    rewind_threshold: int = 200
    max_repeats: int = 4
    max_tokens: int = 224
    committed_until: int | None = None

    def at_frontier(self, frame: int, n_frames: int) -> bool:
        return n_frames - frame <= self.frame_threshold

    def rewound(self, frame: int, last_frame: int | None) -> bool:
        return last_frame is not None and last_frame - frame > self.rewind_threshold

    def stopped_by_attention(
        self, path: BeamPath, frame: int, n_frames: int, token: int
    ) -> AlignAttHypothesis | None:
        """Return the hypothesis if a path stops before `token`, which attends to `frame`; else None."""
        if self.rewound(frame, path.frames[-1] if path.frames else self.committed_until):
            return path.stopped(StopReason.REWOUND)
        if self.at_frontier(frame, n_frames):
            return path.stopped(StopReason.FRONTIER, held_back_token=token)
        return None

    def stopped_by_loop(self, path: BeamPath, committed: Sequence[int] = ()) -> AlignAttHypothesis | None:
        """Return the hypothesis without the repeats if a path looped, else None."""
        n_looped = count_looped((*committed, *path.tokens), self.max_repeats)
        if not n_looped:
            return None
        return path.stopped(StopReason.REPEATED, n_tokens=max(0, len(path.tokens) - n_looped))


def most_tokens(seconds: float) -> int:
    """Return the most tokens that this much undecoded audio can hold, with a margin."""
    return max(1, min(MAX_TOKENS, 10 + math.ceil(TOKENS_PER_SECOND * max(0.0, seconds))))


def count_looped(tokens: Sequence[int], max_repeats: int) -> int:
    """Count the tokens at the end that repeat those before them too often; 0 without a loop.

    A loop is a block of 1 to 24 tokens that occurs more than `max_repeats` times in a row, at least 8
    tokens; its first occurrence is not counted. A long run of few different tokens is a loop too, and
    counted whole.
    """
    for period in range(1, min(24, len(tokens) // 2) + 1):
        n_same = 0
        while n_same + period < len(tokens) and tokens[-1 - n_same] == tokens[-1 - n_same - period]:
            n_same += 1
        if n_same + period >= max(8, period * (max_repeats + 1)):
            return n_same
    return count_babbled(tokens) if max_repeats < BABBLE_TOKENS else 0


def count_babbled(tokens: Sequence[int]) -> int:
    """Count the tokens at the end that are few different ones in any order."""
    n = BABBLE_TOKENS
    if len(tokens) < n or len(set(tokens[-n:])) > BABBLE_DISTINCT:
        return 0
    while n < len(tokens) and len(set(tokens[-n - 1 :])) <= BABBLE_DISTINCT:
        n += 1
    return n
