"""The beams of a CTC prefix search between two frames, as tensors over utterances and beams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sottovoce.decoding.ctc.past import Past

NEVER = float("-inf")
NOTHING = -1
"""A place in a history that holds no symbol."""
_FIRST_CAPACITY = 32
_BEAMS = (
    *("blank", "token", "lm", "adjustment", "merged", "length", "last", "arc", "symbols"),
    *("begins", "spells", "scores"),
)
"""The tensors of a state that a frame changes."""


@dataclass(slots=True, eq=False)
class PrefixState:
    """B utterances of K prefixes, best first.

    A prefix is a sequence of symbols: a symbol is token + V * mark, where the mark says which word the
    token ends (0: none). Dead slots have -inf in `blank` and `token`.

    blank, token: (B, K) float32, log-probability of all paths of the prefix that end in a blank, or in
        its last token.
    lm: (B, K) float32, weighted score of language models, adjustments included.
    adjustment: (B, K) float32, the part of `lm` that a `HistoryScorer` gave.
    merged: (B, K) float32, log of the probability of readings that were left out for a prefix, with itself,
        over its own; see `merging`.
    length: (B, K) int64, symbols. last: (B, K) int64, the last symbol; where there is none the scorer's
        gap, or the blank.
    arc: (B, K) int64, which arc of its token the last symbol took.
    symbols: (B, K, L) int64, the histories; place 0 is the start.
    begins: (B, K, K) bool, begins[b, j, k]: prefix k is a beginning of prefix j, or is prefix j.
    spells: (B, K, K) bool, spells[b, j, k]: as `begins`, of the tokens alone; kept where readings are merged.
    scores: (B, K, s) int64, the states of the `PrefixScorer`.
    n_frames: (B,) int64, frames seen. n_steps: steps made, an upper bound of every length.
    n_searched: (B,) int64, frames searched: those that were not skipped.
    in_blank: (B,) bool, the last frame began or continued a run of blanks that can be skipped.
    skipped: (B,) float64, what the skipped blanks scored, and what was taken off `blank` and `token`.
    taken: (B,) float64, what was taken off `lm`.
    emissions: what was decoded and is not settled, for alignment: log-probabilities and lengths per chunk.
    past: of each utterance, what is settled: it is no longer in `symbols`, `length` and `emissions`, and
        place 0 of the histories holds its last symbol.
    n_waiting: (of each utterance) symbols that beams shared when last looked at, and that were not settled.
    n_patient: (of each utterance) frames that may wait before beams that differ are dropped, if any are.
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
    begins: Tensor
    spells: Tensor
    scores: Tensor
    n_frames: Tensor
    n_searched: Tensor
    in_blank: Tensor
    skipped: Tensor
    taken: Tensor
    past: list[Past] = field(repr=False)
    n_waiting: list[int] = field(repr=False)
    n_patient: list[int] = field(repr=False)
    n_steps: int = 0
    emissions: list[tuple[Tensor, Tensor]] = field(default_factory=list, repr=False)

    @property
    def acoustic(self) -> Tensor:
        """Log-probability (B, K) of all paths of each prefix, skipped blanks aside."""
        return torch.logaddexp(self.blank, self.token)

    def reserve(self, n_symbols: int) -> None:
        """Make room for histories of n_symbols."""
        missing = n_symbols + 1 - self.symbols.shape[2]
        if missing > 0:
            n_batch, n_beams, capacity = self.symbols.shape
            more = self.symbols.new_full((n_batch, n_beams, max(missing, capacity)), NOTHING)
            self.symbols = torch.cat((self.symbols, more), dim=2)

    @property
    def is_alive(self) -> Tensor:
        """Slots (B, K) that hold a prefix."""
        return (self.blank > NEVER) | (self.token > NEVER)

    def forget_symbols(self, counts: Sequence[int]) -> None:
        """Take the first symbols of every history off, as many as `counts` (B,) says."""
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
        """Leave beams (n,) of an utterance out."""
        for scores, nothing in ((self.blank, NEVER), (self.token, NEVER), (self.lm, 0.0)):
            scores[row, beams] = nothing
        self.adjustment[row, beams] = 0.0
        self.length[row, beams] = 0
        for pairs in (self.begins, self.spells):
            pairs[row, beams] = False
            pairs[row, :, beams] = False

    def level(self) -> None:
        """Take what the best beam has scored off all, so that a long stream counts in small numbers."""
        best = (self.acoustic + self.lm).argmax(dim=1, keepdim=True)
        heard, added = self.acoustic.gather(1, best), self.lm.gather(1, best)
        self.blank, self.token, self.lm = self.blank - heard, self.token - heard, self.lm - added
        self.skipped = self.skipped + heard[:, 0]
        self.taken = self.taken + added[:, 0]

    def copied_beams(self) -> PrefixState:
        """A state of its own memory, with these beams and no past."""
        copies = {name: getattr(self, name).clone() for name in _BEAMS}
        return replace(self, n_steps=0, emissions=[], **copies)

    def shared_beams(self) -> PrefixState:
        """A state of the same memory, with no past: what advances it leaves this one as it is."""
        return replace(self, n_steps=0, emissions=[])

    def write_beams(self, beams: PrefixState) -> None:
        """Write beams of the same shapes into this state's own memory."""
        for name in _BEAMS:
            getattr(self, name).copy_(getattr(beams, name))

    def read_beams(self, beams: PrefixState) -> None:
        """Take on copies of beams."""
        for name in _BEAMS:
            setattr(self, name, getattr(beams, name).clone())


def first_state(n_batch: int, beam_size: int, first: int, scores: Tensor) -> PrefixState:
    """One empty prefix per utterance; scores: (B * K, s) start states of the scorer.

    first: the token that every prefix is taken to begin with: the scorer's gap, or the blank.
    """
    device = scores.device
    shape = (n_batch, beam_size)
    alive = torch.zeros((n_batch, beam_size), dtype=torch.bool, device=device)
    alive[:, 0] = True
    symbols = torch.full((*shape, _FIRST_CAPACITY), NOTHING, device=device)
    symbols[:, :, 0] = first
    return PrefixState(
        blank=torch.zeros(shape, device=device).masked_fill(~alive, NEVER),
        token=torch.full(shape, NEVER, device=device),
        lm=torch.zeros(shape, device=device),
        adjustment=torch.zeros(shape, device=device),
        merged=torch.zeros(shape, device=device),
        length=torch.zeros(shape, dtype=torch.int64, device=device),
        last=torch.full(shape, first, device=device),
        arc=torch.zeros(shape, dtype=torch.int64, device=device),
        symbols=symbols,
        begins=alive[:, :, None] & alive[:, None, :],
        spells=alive[:, :, None] & alive[:, None, :],
        scores=scores.view(n_batch, beam_size, scores.shape[1]),
        n_frames=torch.zeros(n_batch, dtype=torch.int64, device=device),
        n_searched=torch.zeros(n_batch, dtype=torch.int64, device=device),
        in_blank=torch.zeros(n_batch, dtype=torch.bool, device=device),
        skipped=torch.zeros(n_batch, dtype=torch.float64, device=device),
        taken=torch.zeros(n_batch, dtype=torch.float64, device=device),
        past=[Past() for _ in range(n_batch)],
        n_waiting=[0] * n_batch,
        n_patient=[0] * n_batch,
    )
