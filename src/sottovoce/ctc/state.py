"""The beams of a CTC prefix search, and the committed history of a stream.

The history is stored in arrays of machine numbers: a few megabytes per hour of speech.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from sottovoce.ctc.labels import Speller
from sottovoce.lm.base import HistoryWord, WordHistory


class TokenSpans(NamedTuple):
    """First frame, last frame (inclusive) and highest log-probability of every token: (N, L) each.

    Padding is 0. score: (N,) float32, log-probability of the path.
    """

    first: Tensor
    last: Tensor
    peak: Tensor
    score: Tensor


class TokenTimes(NamedTuple):
    """First frame, last frame (inclusive) and highest log-probability of the tokens of one hypothesis."""

    first: list[int]
    last: list[int]
    peak: list[float]


def token_times(spans: TokenSpans, n_tokens: Sequence[int]) -> list[TokenTimes]:
    """Convert spans (N, L) to numbers, without the padding. n_tokens: of each hypothesis."""
    parts = (part.tolist() for part in (spans.first, spans.last, spans.peak))
    rows = zip(*parts, n_tokens, strict=True)
    return [TokenTimes(first[:n], last[:n], peak[:n]) for first, last, peak, n in rows]


@dataclass(slots=True, eq=False)
class CommittedHistory:
    """The committed part of one utterance.

    symbols: see `PrefixState`. first, last, peak: of each symbol, as in `TokenTimes`, in frames of the
    utterance. n_frames: dropped with them. words: those that no further token can change; word_starts,
    word_ends: [start, end) of each in `symbols`. text: of these words. n_emitted: words sent as events so
    far. n_closed: symbols up to the end of the last word. in_lexicon: of each word. n_scored: words that a
    `HistoryScorer` has scored. past: those words. living: the beams' histories after it, which keeps their
    scores alive.
    """

    symbols: array[int] = field(default_factory=lambda: array("q"))
    first: array[int] = field(default_factory=lambda: array("i"))
    last: array[int] = field(default_factory=lambda: array("i"))
    peak: array[float] = field(default_factory=lambda: array("f"))
    n_frames: int = 0
    words: list[str] = field(default_factory=list)
    word_starts: array[int] = field(default_factory=lambda: array("i"))
    word_ends: array[int] = field(default_factory=lambda: array("i"))
    text: str = ""
    n_closed: int = 0
    n_emitted: int = 0
    in_lexicon: bytearray = field(default_factory=bytearray)
    n_scored: int = 0
    past: WordHistory = field(default_factory=WordHistory)
    living: list[WordHistory] = field(default_factory=list)

    def add(self, symbols: Sequence[int], times: TokenTimes, n_frames: int, speller: Speller) -> None:
        """Commit symbols and drop n_frames frames. times: relative to the frames dropped before."""
        self.symbols.extend(symbols)
        self.first.extend(self.n_frames + frame for frame in times.first)
        self.last.extend(self.n_frames + frame for frame in times.last)
        self.peak.extend(times.peak)
        self.n_frames += n_frames
        closed, n_symbols = speller.closed(self.symbols[self.n_closed :].tolist())
        for word in closed:
            self.words.append(word.text)
            self.in_lexicon.append(word.in_lexicon)
            self.word_starts.append(self.n_closed + word.first)
            self.word_ends.append(self.n_closed + word.end)
        self.text = speller.join([self.text, *(word.text for word in closed)])
        self.n_closed += n_symbols

    def history(self) -> WordHistory:
        newer = zip(self.words[self.n_scored :], self.in_lexicon[self.n_scored :], strict=True)
        return self.past.after(HistoryWord(text, bool(in_lexicon)) for text, in_lexicon in newer)

    def mark_scored(self, living: list[WordHistory]) -> None:
        """Mark the committed words as scored; living: the beams' histories after them."""
        self.past, self.living = self.history(), living
        self.past.forget_beginning()
        self.n_scored = len(self.words)

    def open_symbols(self) -> list[int]:
        """Return the committed symbols of a word that may continue."""
        return self.symbols[self.n_closed :].tolist()

    def times(self, later: TokenTimes, begin: int = 0) -> TokenTimes:
        """Return the times of committed symbols from `begin` on, and of `later` ones, relative to the
        dropped frames.
        """
        n = self.n_frames
        return TokenTimes(
            [*self.first[begin:], *(n + frame for frame in later.first)],
            [*self.last[begin:], *(n + frame for frame in later.last)],
            [*self.peak[begin:], *later.peak],
        )


NEVER = float("-inf")
NOTHING = -1
"""A position of a history without a symbol."""
_FIRST_CAPACITY = 32


@dataclass(slots=True, eq=False)
class PrefixState:
    """B utterances of K prefixes, best first.

    A prefix is a sequence of symbols: token + V * mark, where the mark is the word that the token ends (0:
    none). Dead slots have -inf in `blank` and `token`.

    blank, token: (B, K) float32, log-probability of all paths of the prefix that end in a blank, or in its
    last token.
    lm: (B, K) float32, weighted score of language models, including adjustments.
    adjustment: (B, K) float32, the part of `lm` from a `HistoryScorer`.
    merged: (B, K) float32, log of (probability of the prefix plus the homophones pruned for it) / its own.
    length: (B, K) int64, symbols.
    last: (B, K) int64, the last symbol; in an empty prefix the scorer's word separator, or the blank.
    arc: (B, K) int64, which arc of its token the last symbol took.
    symbols: (B, K, L) int64, the histories; position 0 is the start.
    is_prefix: (B, K, K) bool, [b, j, k]: prefix k is a prefix of prefix j, or equals it.
    is_label_prefix: the same for their tokens alone; only updated if homophones are pruned.
    scores: (B, K, s) int64, the states of the `PrefixScorer`.
    n_frames: (B,) int64, frames consumed.
    n_steps: steps made, an upper bound of every length.
    n_searched: (B,) int64, frames that were not skipped.
    in_blank: (B,) bool, whether the last frame was in a run of blanks that can be skipped.
    acoustic_offset: (B,) float64, scores of dropped blanks, and what `renormalize` subtracted from `blank`
    and `token`.
    lm_offset: (B,) float64, what `renormalize` subtracted from `lm`.
    emissions: uncommitted emissions, for alignment: (log_probs (B, T, V), lengths (B,)) per chunk.
    committed: the committed part of each utterance, removed from `symbols`, `length` and `emissions`;
    position 0 of the histories holds its last symbol.
    n_shared: per utterance, uncommitted symbols that all beams shared at the last check.
    flush_deadline_frames: per utterance, uncommitted frames from which beams that differ early are
    dropped.
    """

    blank: Tensor
    token: Tensor
    lm: Tensor
    adjustment: Tensor
    merged: Tensor
    length: Tensor
    last: Tensor
    arc: Tensor
    symbols: Tensor
    is_prefix: Tensor
    is_label_prefix: Tensor
    scores: Tensor
    n_frames: Tensor
    n_searched: Tensor
    in_blank: Tensor
    acoustic_offset: Tensor
    lm_offset: Tensor
    committed: list[CommittedHistory] = field(repr=False)
    n_shared: list[int] = field(repr=False)
    flush_deadline_frames: list[int] = field(repr=False)
    n_steps: int = 0
    emissions: list[tuple[Tensor, Tensor]] = field(default_factory=list, repr=False)

    @property
    def acoustic(self) -> Tensor:
        """Log-probability (B, K) of all paths of each prefix, without skipped blanks."""
        return torch.logaddexp(self.blank, self.token)

    def reserve(self, n_symbols: int) -> None:
        """Grow `symbols` to hold n_symbols."""
        missing = n_symbols + 1 - self.symbols.shape[2]
        if missing > 0:
            n_batch, n_beams, capacity = self.symbols.shape
            more = self.symbols.new_full((n_batch, n_beams, max(missing, capacity)), NOTHING)
            self.symbols = torch.cat((self.symbols, more), dim=2)

    @property
    def is_alive(self) -> Tensor:
        return (self.blank > NEVER) | (self.token > NEVER)

    def forget_symbols(self, counts: Sequence[int]) -> None:
        """Drop the first counts[b] symbols of every history of utterance b."""
        device = self.length.device
        n_taken = torch.tensor(counts, device=device)[:, None]
        self.length = (self.length - n_taken).masked_fill_(~self.is_alive, 0)
        self.n_steps = int(self.length.max())
        capacity = _FIRST_CAPACITY
        while capacity < self.n_steps + 2:
            capacity *= 2
        places = n_taken[:, :, None] + torch.arange(capacity, device=device)  # (B, 1, L')
        places = places.clamp_(max=self.symbols.shape[2] - 1).expand(-1, self.symbols.shape[1], -1)
        self.symbols = self.symbols.gather(2, places)

    def drop(self, row: int, beams: Tensor) -> None:
        """Drop beams (n,) int64 of an utterance."""
        for scores, nothing in ((self.blank, NEVER), (self.token, NEVER), (self.lm, 0.0)):
            scores[row, beams] = nothing
        self.adjustment[row, beams] = 0.0
        self.length[row, beams] = 0
        for pairs in (self.is_prefix, self.is_label_prefix):
            pairs[row, beams] = False
            pairs[row, :, beams] = False

    def renormalize(self) -> None:
        """Subtract the best beam's scores from all, so that long streams keep float32's precision."""
        best = (self.acoustic + self.lm).argmax(dim=1, keepdim=True)
        acoustic, lm = self.acoustic.gather(1, best), self.lm.gather(1, best)
        self.blank, self.token, self.lm = self.blank - acoustic, self.token - acoustic, self.lm - lm
        self.acoustic_offset = self.acoustic_offset + acoustic[:, 0]
        self.lm_offset = self.lm_offset + lm[:, 0]


def first_state(n_batch: int, beam_size: int, initial_symbol: int, scores: Tensor) -> PrefixState:
    """Make a state with one empty prefix per utterance.

    scores: (B * K, s) int64, start states of the scorer. initial_symbol: precedes every prefix: the
    scorer's word separator, or the blank.
    """
    device = scores.device
    shape = (n_batch, beam_size)
    alive = torch.zeros((n_batch, beam_size), dtype=torch.bool, device=device)
    alive[:, 0] = True
    symbols = torch.full((*shape, _FIRST_CAPACITY), NOTHING, device=device)
    symbols[:, :, 0] = initial_symbol
    return PrefixState(
        blank=torch.zeros(shape, device=device).masked_fill(~alive, NEVER),
        token=torch.full(shape, NEVER, device=device),
        lm=torch.zeros(shape, device=device),
        adjustment=torch.zeros(shape, device=device),
        merged=torch.zeros(shape, device=device),
        length=torch.zeros(shape, dtype=torch.int64, device=device),
        last=torch.full(shape, initial_symbol, device=device),
        arc=torch.zeros(shape, dtype=torch.int64, device=device),
        symbols=symbols,
        is_prefix=alive[:, :, None] & alive[:, None, :],
        is_label_prefix=alive[:, :, None] & alive[:, None, :],
        scores=scores.view(n_batch, beam_size, scores.shape[1]),
        n_frames=torch.zeros(n_batch, dtype=torch.int64, device=device),
        n_searched=torch.zeros(n_batch, dtype=torch.int64, device=device),
        in_blank=torch.zeros(n_batch, dtype=torch.bool, device=device),
        acoustic_offset=torch.zeros(n_batch, dtype=torch.float64, device=device),
        lm_offset=torch.zeros(n_batch, dtype=torch.float64, device=device),
        committed=[CommittedHistory() for _ in range(n_batch)],
        n_shared=[0] * n_batch,
        flush_deadline_frames=[0] * n_batch,
    )
