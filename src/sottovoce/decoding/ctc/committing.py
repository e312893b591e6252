"""Streams without end: what is settled leaves the state, and comes out as committed words.

Time and memory of a chunk follow from what is not settled, not from what was said before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sottovoce.decoding.ctc.emissions import joined
from sottovoce.decoding.ctc.past import Past
from sottovoce.decoding.ctc.settling import LEAST_SHARED, NO_CUT, Cut, shared_symbols
from sottovoce.decoding.ctc.state import PrefixState
from sottovoce.decoding.ctc.text import Speller
from sottovoce.decoding.ctc.times import TokenSpans, TokenTimes, token_times
from sottovoce.types import Partial, Word

_LEAST_SCORE = -1000.0
"""Nats of the best beam below which scores are counted anew: float32 has seven digits."""


class Aligning(Protocol):
    """What of a search is needed here; see `PrefixSearch`."""

    def settled(
        self, log_probs: Tensor, tokens: Tensor, n_tokens: Tensor, n_shared: int, *, is_late: bool
    ) -> Cut: ...

    def align(
        self,
        log_probs: Tensor,
        lengths: Tensor,
        tokens: Tensor,
        n_tokens: Tensor,
        *,
        rows: Tensor,
        blank: int,
    ) -> TokenSpans: ...


class Committer:
    """Takes what is settled out of states.

    aligned: the emissions (B, T, V) that alignment sees, made of those of the model. has_times: states keep
    emissions; else symbols are committed as soon as beams share them, without times. most_frames: see
    `CtcOptions.commit_frames`.
    """

    def __init__(
        self,
        search: Aligning,
        speller: Speller,
        aligned: Callable[[Tensor], Tensor],
        *,
        has_times: bool,
        most_frames: int | None,
    ) -> None:
        self._most_frames = most_frames
        self._search = search
        self._speller = speller
        self._aligned = aligned
        self._has_times = has_times

    def commit(self, state: PrefixState) -> None:
        """Commit what is settled, where beams share much more than at the last look, or too much waits."""
        late = [self._is_late(state, row) for row in range(len(state.past))]
        for row in (row for row, is_late in enumerate(late) if is_late):
            self._drop_stragglers(state, row)
        shared = [shared_symbols(state, row) for row in range(len(state.past))]
        is_due = [
            is_late or n >= 2 * waiting + LEAST_SHARED
            for n, waiting, is_late in zip(shared, state.n_waiting, late, strict=True)
        ]
        if not any(is_due):
            return
        due = [n if now else None for n, now in zip(shared, is_due, strict=True)]
        cuts = self._commit_aligned(state, due) if self._has_times else self._commit_untimed(state, due)
        state.forget_symbols([cut.n_tokens for cut in cuts])
        for row, n in enumerate(due):
            if n is not None:
                state.n_waiting[row] = n - cuts[row].n_tokens
                state.n_patient[row] = 3 * self._n_held(state, row) // 2
        if float((state.acoustic + state.lm).amax(dim=1).min()) < _LEAST_SCORE:
            state.level()

    def _n_held(self, state: PrefixState, row: int) -> int:
        """Frames that are not settled."""
        return int(state.n_frames[row]) - state.past[row].n_frames

    def _is_late(self, state: PrefixState, row: int) -> bool:
        most = self._most_frames
        return most is not None and self._n_held(state, row) >= max(most, state.n_patient[row])

    def _drop_stragglers(self, state: PrefixState, row: int) -> None:
        """Drop beams that differ from the best in what either said in the older half of what waits."""
        alive = state.is_alive[row].nonzero()[:, 0]
        if len(alive) < 2:
            return
        ranked = (state.acoustic + state.lm)[row, alive]
        alive = alive[ranked.argsort(descending=True, stable=True)]
        n_tokens = state.length[row, alive]
        symbols = state.symbols[row, alive, 1 : int(n_tokens.max()) + 1]
        places = torch.arange(symbols.shape[1], device=symbols.device)
        is_same = (symbols == symbols[:1]) & (places < torch.minimum(n_tokens, n_tokens[:1])[:, None])
        n_same = is_same.to(torch.int64).cumprod(dim=1).sum(dim=1)
        n_early = self._said_early(state, row, alive, symbols, n_tokens)
        is_kept = n_same >= torch.maximum(n_early, n_early[:1])
        state.drop(row, alive[~is_kept])

    def _said_early(
        self, state: PrefixState, row: int, beams: Tensor, symbols: Tensor, n_tokens: Tensor
    ) -> Tensor:
        """How many tokens each beam said in the older half of what waits."""
        if not self._has_times or not symbols.shape[1]:
            return n_tokens // 2
        emissions, lengths = joined(state)
        n_frames = int(lengths[row])
        spans = self._search.align(
            self._aligned(emissions[row : row + 1, :n_frames]),
            lengths[row : row + 1],
            symbols % len(self._speller.labels),
            n_tokens,
            rows=torch.zeros_like(beams),
            blank=self._speller.labels.blank,
        )
        is_said = torch.arange(symbols.shape[1], device=symbols.device) < n_tokens[:, None]
        return ((spans.first < n_frames // 2) & is_said).sum(dim=1)

    def _commit_untimed(self, state: PrefixState, n_shared: Sequence[int | None]) -> list[Cut]:
        cuts = []
        for row, n in enumerate(n_shared):
            cuts.append(NO_CUT if n is None else Cut(self._n_held(state, row), n))
            self._add(state, row, cuts[row], TokenTimes([], [], []))
        return cuts

    def _commit_aligned(self, state: PrefixState, n_shared: Sequence[int | None]) -> list[Cut]:
        emissions, lengths = joined(state)
        seen, cuts, n_frames = self._aligned(emissions), [], lengths.tolist()
        for row, n in enumerate(n_frames):
            most = n_shared[row]
            cut = NO_CUT if most is None else self._cut(state, row, seen[row, :n], most)
            cuts.append(cut)
            if cut.n_frames:
                self._add(state, row, cut, self._times(state, row, seen[row, : cut.n_frames], cut))
        held = [n - cut.n_frames for n, cut in zip(n_frames, cuts, strict=True)]
        rest = emissions.new_zeros((len(held), max(held), emissions.shape[2]))
        for row, (n, cut) in enumerate(zip(held, cuts, strict=True)):
            rest[row, :n] = emissions[row, cut.n_frames : cut.n_frames + n]
        state.emissions = [(rest, torch.tensor(held).to(lengths))]
        return cuts

    def _cut(self, state: PrefixState, row: int, frames: Tensor, n_shared: int) -> Cut:
        alive = state.is_alive[row].nonzero()[:, 0]
        n_tokens = state.length[row, alive]
        tokens = state.symbols[row, alive, 1 : int(n_tokens.max()) + 1] % len(self._speller.labels)
        is_late = self._is_late(state, row)
        return self._search.settled(frames, tokens, n_tokens, n_shared, is_late=is_late)

    def _times(self, state: PrefixState, row: int, frames: Tensor, cut: Cut) -> TokenTimes:
        tokens = self._symbols(state, row, cut)[None] % len(self._speller.labels)
        n_frames, n_tokens = (torch.tensor([n], device=tokens.device) for n in cut)
        first_row = torch.zeros_like(n_frames)
        spans = self._search.align(
            frames[None], n_frames, tokens, n_tokens, rows=first_row, blank=self._speller.labels.blank
        )
        return token_times(spans, [cut.n_tokens])[0]

    def _symbols(self, state: PrefixState, row: int, cut: Cut) -> Tensor:
        best = int(state.is_alive[row].to(torch.uint8).argmax())
        return state.symbols[row, best, 1 : cut.n_tokens + 1]

    def _add(self, state: PrefixState, row: int, cut: Cut, times: TokenTimes) -> None:
        symbols = self._symbols(state, row, cut).tolist()
        state.past[row].add(symbols, times, cut.n_frames, self._speller)


def newly_committed(state: PrefixState, speller: Speller, frame_s: float) -> list[Partial]:
    """Words that no further frame can change and that were not told yet, an event an utterance.

    utterance: its row. Without times an event has no words, and stands where it was committed.
    """
    events = []
    for row, past in enumerate(state.past):
        told, past.n_told = past.n_told, len(past.words)
        if told == past.n_told:
            continue
        now = int(state.n_frames[row]) * frame_s
        words = tuple(_word(past, i, frame_s) for i in range(told, past.n_told)) if past.first else ()
        events.append(
            Partial(
                start=words[0].start if words else now,
                end=words[-1].end if words else now,
                text=speller.together(past.words[told:]),
                language="",
                words=words,
                emission_time=now,
                utterance=row,
            )
        )
    return events


def _word(past: Past, place: int, frame_s: float) -> Word:
    first, end = past.begins[place], past.ends[place]
    peaks = past.peak[first:end]
    return Word(
        word=past.words[place],
        start=past.first[first] * frame_s,
        end=(past.last[end - 1] + 1) * frame_s,
        probability=math.exp(sum(peaks) / len(peaks)),
    )
