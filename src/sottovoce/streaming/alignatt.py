"""AlignAtt: decode while the decoder listens to audio that is safely in, stop where it reaches the end.

One update decodes one window of encoder states from a prefix. Before a token is taken, the frame that
the decoder attends to most is looked at: too near the end of the audio, the token waits for the next
update. Sources: Papi et al., AlignAtt (2023), https://arxiv.org/abs/2305.11408; Wang et al.,
Simul-Whisper (2024), https://arxiv.org/abs/2406.10052.

Not known here: audio, time, words, and what became of earlier updates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor

from sottovoce.backends.base import Backend, DecoderState
from sottovoce.decoding.alignment import median_filter
from sottovoce.decoding.filters import LogitFilter
from sottovoce.types import EncoderOutput

SPREAD_FLOOR = 0.1
"""Least standard deviation of a frame's attention, as a part of even attention. Where all tokens but one
attend to nothing, every frame in the foot of that one's peak has the same z-score: the floor lets the
peak win."""


class AttentionTracker:
    """Which frame each row attends to most, from running statistics of the attention so far.

    As for word times, each head's attention is normalised over the tokens (mean 0, variance 1 at every
    frame), median-filtered over the frames, and averaged over the heads. Only the newest token's row is
    needed, so the means and squared deviations are kept instead of the rows: the work for a token does
    not grow with the tokens before it.

    Statistics have shape (R, n_heads, n_frames) float32, per row, and follow the rows when beams move.
    Source: Chan, Golub and LeVeque (1979) for merging moments.
    """

    def __init__(self, n_frames: int) -> None:
        """n_frames: frames that hold audio; attention beyond them is not looked at."""
        self._n_frames = n_frames
        self._count: Tensor | None = None
        self._mean = self._deviation = self._last = torch.zeros(0)

    @property
    def n_frames(self) -> int:
        """Frames that are looked at."""
        return self._n_frames

    def extend(self, attention: Tensor, *, n_padding: Tensor | None = None) -> None:
        """Take the attention (R, n_heads, n_new, n_frames or more) of new tokens.

        n_padding: (R,) int64, leading new tokens of each row that are padding and do not count.
        """
        rows = attention[..., : self._n_frames].float()
        weight = torch.ones(rows.shape[0], 1, rows.shape[2], 1, device=rows.device)
        if n_padding is not None:
            column = torch.arange(rows.shape[2], device=rows.device)
            weight = (column >= n_padding[:, None]).float()[:, None, :, None]
        count = weight.sum(dim=2)  # (R, 1, 1)
        mean = (rows * weight).sum(dim=2) / count
        deviation = ((rows - mean[:, :, None]) ** 2 * weight).sum(dim=2)
        if self._count is None:
            self._count, self._mean, self._deviation = count, mean, deviation
        else:
            total = self._count + count
            shift = mean - self._mean
            self._deviation = self._deviation + deviation + shift**2 * (self._count * count / total)
            self._mean = self._mean + shift * (count / total)
            self._count = total
        self._last = rows[:, :, -1]

    def reorder(self, rows: Tensor) -> None:
        """Let row i continue the former row rows[i]; rows (R',) int64."""
        assert self._count is not None
        self._count = self._count[rows]
        self._mean, self._deviation, self._last = self._mean[rows], self._deviation[rows], self._last[rows]

    def frontier(self) -> Tensor:
        """The frame that the newest token of each row attends to most: (R,) int64."""
        assert self._count is not None
        spread = (self._deviation / self._count).sqrt() + SPREAD_FLOOR / self._n_frames
        score = torch.where(self._count > 1, (self._last - self._mean) / spread, self._last)
        return median_filter(score).mean(dim=1).argmax(dim=-1)


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
    the audio ended. no_speech_prob: at <|startoftranscript|>.
    """

    tokens: tuple[int, ...]
    frames: tuple[int, ...]
    logprobs: tuple[float, ...]
    entropies: tuple[float, ...]
    ending: Ending
    avg_logprob: float = 0.0
    refused: int | None = None
    no_speech_prob: float = 0.0


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """When to stop. Frames are 20 ms.

    frame_threshold: a token attended this near to the end of the audio waits; inf: all tokens wait; 0:
        none does. rewind_threshold: a jump back by more frames than this discards the update.
    max_repeats: a run of tokens said more often than this in a row, 8 tokens or more in all, is a loop.
    max_tokens: at most so many in one update.
    """

    frame_threshold: float = 25
    rewind_threshold: int = 200
    max_repeats: int = 4
    max_tokens: int = 224

    def at_frontier(self, frame: int, n_frames: int) -> bool:
        return n_frames - frame <= self.frame_threshold

    def rewound(self, frame: int, last_frame: int | None) -> bool:
        return last_frame is not None and last_frame - frame > self.rewind_threshold


MAX_TOKENS = 224
"""Half of Whisper's text context: what offline decoding samples at most for a window."""
TOKENS_PER_SECOND = 20.0
"""No one speaks faster (Chinese in bytes takes 15); a row that does has lost the audio."""


def most_tokens(seconds: float) -> int:
    """Tokens that this much unread audio can hold, with some to spare."""
    return max(1, min(MAX_TOKENS, 10 + math.ceil(TOKENS_PER_SECOND * max(0.0, seconds))))


def n_looping(tokens: Sequence[int], max_repeats: int) -> int:
    """Tokens at the end that repeat what stands before them too often; 0 where there is no loop.

    A loop is a block of 1 to 24 tokens said more than `max_repeats` times in a row, 8 tokens or more.
    What is counted leaves the first saying in place.
    """
    for period in range(1, min(24, len(tokens) // 2) + 1):
        n_same = 0
        while n_same + period < len(tokens) and tokens[-1 - n_same] == tokens[-1 - n_same - period]:
            n_same += 1
        if n_same + period >= max(8, period * (max_repeats + 1)):
            return n_same
    return 0


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the decoder is made to say first: context, start-of-transcript sequence, committed text.

    sot: position of <|startoftranscript|> in tokens. n_committed: text tokens at the end.
    """

    tokens: tuple[int, ...]
    sot: int
    n_committed: int


@dataclass(slots=True)
class _Beam:
    tokens: tuple[int, ...] = ()
    frames: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()
    score: float = 0.0

    def said(self, token: int, frame: int, logprob: float, entropy: float) -> _Beam:
        return _Beam(
            (*self.tokens, token),
            (*self.frames, frame),
            (*self.logprobs, logprob),
            (*self.entropies, entropy),
            self.score + logprob,
        )

    def reading(self, ending: Ending, *, n_kept: int | None = None, refused: int | None = None) -> Reading:
        kept = slice(None, n_kept)
        return Reading(
            tokens=self.tokens[kept],
            frames=self.frames[kept],
            logprobs=self.logprobs[kept],
            entropies=self.entropies[kept],
            ending=ending,
            avg_logprob=self.score / max(1, len(self.tokens)),
            refused=refused,
        )


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads windows by beam search under AlignAtt; beam_size 1 is greedy.

    Each beam stops on its own: at the end of text, at the frontier, after a jump back, or in a loop. The
    update ends when as many have stopped as there are beams, and the best mean log-probability wins;
    a beam that jumped back or looped wins only if all did.
    """

    backend: Backend
    eot: int
    no_speech: int | None
    filters: tuple[LogitFilter, ...]
    beam_size: int = 1

    @torch.inference_mode()
    def read(
        self, encoded: EncoderOutput, prefix: Prefix, rules: ReadingRules, *, bias: Tensor | None = None
    ) -> Reading:
        """Read one window (batch of 1) onward from a prefix.

        bias: (n_frames,) float32 added to every cross-attention logit, see `Backend.step`.
        """
        search = _Search(self, encoded, prefix, rules, bias)
        return search.run()


class _Search:
    """One update of a Reader."""

    def __init__(
        self, reader: Reader, encoded: EncoderOutput, prefix: Prefix, rules: ReadingRules, bias: Tensor | None
    ) -> None:
        self._reader = reader
        self._prefix = prefix
        self._rules = rules
        self._bias = bias
        self._n_frames = encoded.n_content_frames[0]
        self._tracker = AttentionTracker(self._n_frames)
        self._state: DecoderState = reader.backend.start(encoded)
        self._beams = [_Beam()]
        self._done: list[Reading] = []

    def run(self) -> Reading:
        backend = self._reader.backend
        prefix = torch.tensor([self._prefix.tokens], device=backend.device)
        output = self._step(prefix, positions=(self._prefix.sot, prefix.shape[1] - 1))
        no_speech = self._no_speech_prob(output[:, 0])
        logits = output[:, -1]
        room = backend.dims.n_text_ctx - prefix.shape[1]
        for _ in range(min(self._rules.max_tokens, room)):
            rows = self._advance(logits)
            if not self._beams or len(self._done) >= self._reader.beam_size:
                break
            if rows != list(range(self._state.n_rows)):
                order = torch.tensor(rows, device=backend.device)
                self._state.reorder(order)
                self._tracker.reorder(order)
            newest = torch.tensor([[beam.tokens[-1]] for beam in self._beams], device=backend.device)
            logits = self._step(newest)[:, -1]
        self._done.extend(beam.reading(Ending.FULL) for beam in self._beams if len(self._done) == 0)
        return replace(max(self._done, key=_rank), no_speech_prob=no_speech)

    def _step(self, tokens: Tensor, positions: Sequence[int] = (-1,)) -> Tensor:
        backend = self._reader.backend
        bias = None if self._bias is None else self._bias[None].expand(tokens.shape[0], -1)
        output = backend.step(
            tokens, self._state, positions=positions, capture=backend.alignment_heads, bias=bias
        )
        assert output.attention is not None
        self._tracker.extend(output.attention)
        return output.logits.float()

    def _no_speech_prob(self, logits_at_sot: Tensor) -> float:
        if self._reader.no_speech is None:
            return 0.0
        return float(logits_at_sot.softmax(dim=-1)[0, self._reader.no_speech])

    def _advance(self, logits: Tensor) -> list[int]:
        """Stop or extend every beam; return the former row of each beam that goes on."""
        sampled = torch.tensor([beam.tokens for beam in self._beams], dtype=torch.int64, device=logits.device)
        logits = logits.clone()
        for rule in self._reader.filters:
            rule.apply(logits, sampled.reshape(len(self._beams), -1))
        log_probs = logits.log_softmax(dim=-1)
        entropies = torch.special.entr(log_probs.exp()).sum(dim=-1).tolist()
        frames = self._tracker.frontier().tolist()
        n_best = self._reader.beam_size + 1 if self._reader.beam_size > 1 else 1
        values, tokens = (part.tolist() for part in log_probs.topk(n_best, dim=-1))
        grown: list[tuple[_Beam, int]] = []
        for row, beam in enumerate(self._beams):
            if tokens[row][0] != self._reader.eot and self._halts(beam, frames[row], tokens[row][0]):
                continue
            for token, value in zip(tokens[row], values[row], strict=True):
                grown.append((beam.said(token, frames[row], value, entropies[row]), row))
        return self._select(grown)

    def _halts(self, beam: _Beam, frame: int, token: int) -> bool:
        """Whether a beam stops before its next token."""
        last = beam.frames[-1] if beam.frames else None
        if self._rules.rewound(frame, last):
            self._done.append(beam.reading(Ending.REWOUND))
        elif self._rules.at_frontier(frame, self._n_frames):
            self._done.append(beam.reading(Ending.FRONTIER, refused=token))
        else:
            return False
        return True

    def _select(self, grown: list[tuple[_Beam, int]]) -> list[int]:
        """Keep the best beams; those that said the end of text, or loop, are done."""
        grown.sort(key=lambda item: item[0].score, reverse=True)
        self._beams, rows = [], []
        for beam, row in grown:
            if len(self._beams) == self._reader.beam_size:
                break
            if beam.tokens[-1] == self._reader.eot:
                ended = beam.reading(Ending.END_OF_TEXT, n_kept=-1)
                self._done.append(ended)
            elif n_looped := self._n_looping(beam):
                n_kept = max(0, len(beam.tokens) - n_looped)
                self._done.append(beam.reading(Ending.REPEATED, n_kept=n_kept))
            else:
                self._beams.append(beam)
                rows.append(row)
        return rows

    def _n_looping(self, beam: _Beam) -> int:
        committed = self._prefix.tokens[len(self._prefix.tokens) - self._prefix.n_committed :]
        return n_looping((*committed, *beam.tokens), self._rules.max_repeats)


def _rank(reading: Reading) -> tuple[bool, float]:
    sound = reading.ending not in (Ending.REWOUND, Ending.REPEATED)
    return sound, reading.avg_logprob if reading.logprobs else -math.inf
