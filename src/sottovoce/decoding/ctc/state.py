"""The beams of a CTC prefix search between two frames, as tensors over utterances and beams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sottovoce.decoding.ctc.history import CommittedHistory

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
    lm: (B, K) float32, weighted score of language models, adjustments included.
    adjustment: (B, K) float32, the part of `lm` that comes from a `HistoryScorer`.
    merged: (B, K) float32, log of (probability of the prefix plus the homophones pruned for it) / its own;
        see `homophones`.
    length: (B, K) int64, symbols. last: (B, K) int64, the last symbol; in an empty prefix the scorer's word
        separator, or the blank.
    arc: (B, K) int64, which arc of its token the last symbol took.
    symbols: (B, K, L) int64, the histories; position 0 is the start.
    is_prefix: (B, K, K) bool, [b, j, k]: prefix k is a prefix of prefix j, or equals it.
    is_label_prefix: (B, K, K) bool, [b, j, k]: the same of their tokens alone; updated only where homophones
        are pruned.
    scores: (B, K, s) int64, the states of the `PrefixScorer`.
    n_frames: (B,) int64, frames seen. n_steps: steps made, an upper bound of every length.
    n_searched: (B,) int64, frames searched: those that were not skipped.
    in_blank: (B,) bool, the last frame began or continued a run of blanks that can be skipped.
    acoustic_offset: (B,) float64, scores of dropped blanks, and what `renormalize` subtracted from `blank`
        and `token`.
    lm_offset: (B,) float64, what `renormalize` subtracted from `lm`.
    emissions: uncommitted emissions, for alignment: (log_probs (B, T, V), lengths (B,)) per chunk.
    committed: the committed part of each utterance: it is no longer in `symbols`, `length` and `emissions`,
        and position 0 of the histories holds its last symbol.
    n_shared: of each utterance, symbols that all beams shared at the last look and that were not committed.
    flush_deadline_frames: of each utterance, uncommitted frames from which beams that differ early are
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
        """Log-probability (B, K) of all paths of each prefix, skipped blanks aside."""
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
        """Slots (B, K) bool that hold a prefix."""
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

    scores: (B * K, s) int64, start states of the scorer. initial_symbol: what every prefix is taken to begin
    with: the scorer's word separator, or the blank.
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
