"""What one update of a stream reads: tokens with the frames they were heard at, and when to stop.

Not known here: models, audio, words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from sottovoce.streaming.known import KnownPrefix


class Ending(Enum):
    """Why a reading stopped."""

    END_OF_TEXT = "end of text"
    FRONTIER = "reached the end of the audio that is in"
    REWOUND = "jumped back in the audio"
    REPEATED = "fell into a loop"
    FULL = "no room for more tokens"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one update read.

    tokens: text ids. frames: the encoder frame attended to when each was said. logprobs, entropies:
    natural logs, of each token and of the distribution it was chosen from. avg_logprob: mean over the
    tokens, and the end of text where it was said. refused: the token that would have come next, where
    the audio ended. no_speech_prob: at <|startoftranscript|>. rank: as avg_logprob, with what language
    models added. known: what the next update may go on from, where that is asked for.
    """

    tokens: tuple[int, ...]
    frames: tuple[int, ...]
    logprobs: tuple[float, ...]
    entropies: tuple[float, ...]
    ending: Ending
    avg_logprob: float = 0.0
    refused: int | None = None
    no_speech_prob: float = 0.0
    rank: float = 0.0
    known: KnownPrefix | None = field(default=None, compare=False)

    @property
    def standing(self) -> tuple[bool, float]:
        """What finished beams compete by: an end of text at once counts by its own log-probability."""
        is_sound = self.ending not in (Ending.REWOUND, Ending.REPEATED)
        has_rank = bool(self.logprobs) or self.ending is Ending.END_OF_TEXT
        return is_sound, self.rank if has_rank else -math.inf


@dataclass(frozen=True, slots=True)
class Path:
    """The tokens of one row so far. score: sum of their log-probabilities. language: what models added."""

    tokens: tuple[int, ...] = ()
    frames: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()
    score: float = 0.0
    language: float = 0.0

    @property
    def rank(self) -> float:
        """What beams are sorted by."""
        return self.score + self.language

    def said(self, token: int, frame: int, logprob: float, entropy: float, language: float = 0.0) -> Path:
        """With one more token."""
        return Path(
            (*self.tokens, token),
            (*self.frames, frame),
            (*self.logprobs, logprob),
            (*self.entropies, entropy),
            self.score + logprob,
            self.language + language,
        )

    def reading(self, ending: Ending, *, n_kept: int | None = None, refused: int | None = None) -> Reading:
        """The reading that stops here; n_kept: only so many tokens of it (slice notation)."""
        kept = slice(None, n_kept)
        return Reading(
            tokens=self.tokens[kept],
            frames=self.frames[kept],
            logprobs=self.logprobs[kept],
            entropies=self.entropies[kept],
            ending=ending,
            avg_logprob=self.score / max(1, len(self.tokens)),
            refused=refused,
            rank=self.rank / max(1, len(self.tokens)),
        )


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """When to stop. Frames are 20 ms.

    frame_threshold: a token attended this near to the end of the audio waits; inf: all tokens wait; 0:
        none does. rewind_threshold: a jump back by more frames than this discards the update. said_until: the
        frame that the committed words end at, from which the first token may jump no further; None: none are
        held.
    max_repeats: a run of tokens said more often than this in a row, 8 tokens or more in all, is a loop;
        below 32, so are 32 tokens with no more than 8 different ones.
    max_tokens: at most so many in one update.
    """

    frame_threshold: float = 25
    rewind_threshold: int = 200
    max_repeats: int = 4
    max_tokens: int = 224
    said_until: int | None = None

    def at_frontier(self, frame: int, n_frames: int) -> bool:
        return n_frames - frame <= self.frame_threshold

    def rewound(self, frame: int, last_frame: int | None) -> bool:
        return last_frame is not None and last_frame - frame > self.rewind_threshold

    def halt(self, path: Path, frame: int, n_frames: int, token: int) -> Reading | None:
        """The reading if a path stops before its next token, which is attended to at `frame`."""
        if self.rewound(frame, path.frames[-1] if path.frames else self.said_until):
            return path.reading(Ending.REWOUND)
        if self.at_frontier(frame, n_frames):
            return path.reading(Ending.FRONTIER, refused=token)
        return None

    def loop(self, path: Path, committed: Sequence[int] = ()) -> Reading | None:
        """The reading, cut to its first saying, if a path fell into a loop."""
        n_looped = n_looping((*committed, *path.tokens), self.max_repeats)
        if not n_looped:
            return None
        return path.reading(Ending.REPEATED, n_kept=max(0, len(path.tokens) - n_looped))


MAX_TOKENS = 224
"""Half of Whisper's text context: what offline decoding samples at most for a window."""
TOKENS_PER_SECOND = 20.0
"""No one speaks faster (Chinese in bytes takes 15); a row that does has lost the audio."""


def most_tokens(seconds: float) -> int:
    """Tokens that this much unread audio can hold, with some to spare."""
    return max(1, min(MAX_TOKENS, 10 + math.ceil(TOKENS_PER_SECOND * max(0.0, seconds))))


BABBLE_TOKENS, BABBLE_DISTINCT = 32, 8
"""So many tokens with no more than so many different ones are babble. In texts of five languages there are 14
or more, where they are spelt in bytes 12."""


def n_looping(tokens: Sequence[int], max_repeats: int) -> int:
    """Tokens at the end that repeat what stands before them too often; 0 where there is no loop.

    A loop is a block of 1 to 24 tokens said more than `max_repeats` times in a row, 8 tokens or more.
    What is counted leaves the first saying in place. Without a period, a long run of few different tokens
    is a loop as well, and counted whole.
    """
    for period in range(1, min(24, len(tokens) // 2) + 1):
        n_same = 0
        while n_same + period < len(tokens) and tokens[-1 - n_same] == tokens[-1 - n_same - period]:
            n_same += 1
        if n_same + period >= max(8, period * (max_repeats + 1)):
            return n_same
    return n_babbled(tokens) if max_repeats < BABBLE_TOKENS else 0


def n_babbled(tokens: Sequence[int]) -> int:
    """Tokens at the end that say the same few again and again, in any order."""
    n = BABBLE_TOKENS
    if len(tokens) < n or len(set(tokens[-n:])) > BABBLE_DISTINCT:
        return 0
    while n < len(tokens) and len(set(tokens[-n - 1 :])) <= BABBLE_DISTINCT:
        n += 1
    return n


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the decoder is made to say first: context, start-of-transcript sequence, committed text.

    sot: position of <|startoftranscript|> in tokens. n_committed: text tokens at the end.
    """

    tokens: tuple[int, ...]
    sot: int
    n_committed: int

    @property
    def committed(self) -> tuple[int, ...]:
        return self.tokens[len(self.tokens) - self.n_committed :]
