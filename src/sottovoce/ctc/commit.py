"""Endless streams: the common prefix of all beams is removed from the state and becomes committed words.

Beams only grow at their ends, so their common prefix is final, and so are its times up to the cut of
`align.common_cut`. Time and memory of a chunk depend on the uncommitted part only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sottovoce.ctc.align import NO_CUT, Cut, TokenTimes, align, common_cut, token_times
from sottovoce.ctc.emissions import IdleSeparators, joined
from sottovoce.ctc.labels import Speller
from sottovoce.ctc.search import CommittedHistory, PrefixState
from sottovoce.types import Partial, Word

LEAST_SHARED = 8
"""Symbols that all beams must share before they are aligned."""


def shared_symbols(state: PrefixState, row: int) -> int:
    """Count the symbols that all living beams of an utterance begin with."""
    alive = state.is_alive[row].nonzero()[:, 0]
    if not len(alive):
        return 0
    symbols = state.symbols[row, alive, 1 : int(state.length[row, alive].min()) + 1]
    differs = (symbols != symbols[:1]).any(dim=0).nonzero()
    return int(differs[0, 0]) if len(differs) else symbols.shape[1]


_LEAST_SCORE = -1000.0
"""Score (nats) of the best beam below which scores are renormalised: float32 has seven digits."""


class Committer:
    """Commits the common prefix of all beams of a state.

    idle: the blanks of alignments. has_times: states hold emissions; otherwise symbols are committed
    without times as soon as all beams share them. most_frames: see `CtcOptions.commit_frames`.
    """

    def __init__(
        self,
        speller: Speller,
        idle: IdleSeparators,
        *,
        has_times: bool,
        most_frames: int | None,
    ) -> None:
        self._most_frames = most_frames
        self._speller = speller
        self._idle = idle
        self._has_times = has_times

    def commit(self, state: PrefixState) -> None:
        """Commit common prefixes that have grown enough, and those of too many uncommitted frames."""
        late = [self._is_late(state, row) for row in range(len(state.committed))]
        for row in (row for row, is_late in enumerate(late) if is_late):
            self._drop_stragglers(state, row)
        shared = [shared_symbols(state, row) for row in range(len(state.committed))]
        is_due = [
            is_late or n >= 2 * earlier + LEAST_SHARED
            for n, earlier, is_late in zip(shared, state.n_shared, late, strict=True)
        ]
        if not any(is_due):
            return
        due = [n if now else None for n, now in zip(shared, is_due, strict=True)]
        cuts = self._commit_aligned(state, due) if self._has_times else self._commit_untimed(state, due)
        state.forget_symbols([cut.n_tokens for cut in cuts])
        for row, n in enumerate(due):
            if n is not None:
                state.n_shared[row] = n - cuts[row].n_tokens
                state.flush_deadline_frames[row] = 3 * self._n_held(state, row) // 2
        if float((state.acoustic + state.lm).amax(dim=1).min()) < _LEAST_SCORE:
            state.renormalize()

    def _n_held(self, state: PrefixState, row: int) -> int:
        return int(state.n_frames[row]) - state.committed[row].n_frames

    def _is_late(self, state: PrefixState, row: int) -> bool:
        most = self._most_frames
        return most is not None and self._n_held(state, row) >= max(most, state.flush_deadline_frames[row])

    def _drop_stragglers(self, state: PrefixState, row: int) -> None:
        """Drop beams that differ from the best one in the older half of the uncommitted frames."""
        alive = state.is_alive[row].nonzero()[:, 0]
        if len(alive) < 2:
            return
        ranked = (state.acoustic + state.lm)[row, alive]
        alive = alive[ranked.argsort(descending=True, stable=True)]
        n_tokens = state.length[row, alive]
        symbols = state.symbols[row, alive, 1 : int(n_tokens.max()) + 1]
        places = torch.arange(symbols.shape[1])
        is_same = (symbols == symbols[:1]) & (places < torch.minimum(n_tokens, n_tokens[:1])[:, None])
        n_same = is_same.to(torch.int64).cumprod(dim=1).sum(dim=1)
        n_early = self._count_early(state, row, alive, symbols, n_tokens)
        survives = n_same >= torch.maximum(n_early, n_early[:1])
        state.drop(row, alive[~survives])

    def _count_early(
        self, state: PrefixState, row: int, beams: Tensor, symbols: Tensor, n_tokens: Tensor
    ) -> Tensor:
        if not self._has_times or not symbols.shape[1]:
            return n_tokens // 2
        emissions, lengths = joined(state)
        n_frames = int(lengths[row])
        tokens = symbols % len(self._speller.labels)
        spans = align(
            self._idle.emissions(emissions[row : row + 1, :n_frames]),
            lengths[row : row + 1],
            tokens,
            n_tokens,
            rows=torch.zeros_like(beams),
            blank=self._blanks(state, row, beams, tokens),
        )
        is_token = torch.arange(symbols.shape[1]) < n_tokens[:, None]
        return ((spans.first < n_frames // 2) & is_token).sum(dim=1)

    def _commit_untimed(self, state: PrefixState, n_shared: Sequence[int | None]) -> list[Cut]:
        cuts = []
        for row, n in enumerate(n_shared):
            cuts.append(NO_CUT if n is None else Cut(self._n_held(state, row), n))
            self._add(state, row, cuts[row], TokenTimes([], [], []))
        return cuts

    def _commit_aligned(self, state: PrefixState, n_shared: Sequence[int | None]) -> list[Cut]:
        emissions, lengths = joined(state)
        seen, cuts, n_frames = self._idle.emissions(emissions), [], lengths.tolist()
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
        state.emissions = [(rest, torch.tensor(held))]
        return cuts

    def _cut(self, state: PrefixState, row: int, frames: Tensor, n_shared: int) -> Cut:
        alive = state.is_alive[row].nonzero()[:, 0]
        n_tokens = state.length[row, alive]
        tokens = state.symbols[row, alive, 1 : int(n_tokens.max()) + 1] % len(self._speller.labels)
        is_late, blank = self._is_late(state, row), self._blanks(state, row, alive, tokens)
        return common_cut(frames, tokens, n_tokens, n_shared=n_shared, is_late=is_late, blank=blank)

    def _times(self, state: PrefixState, row: int, frames: Tensor, cut: Cut) -> TokenTimes:
        tokens = self._symbols(state, row, cut)[None] % len(self._speller.labels)
        n_frames, n_tokens = (torch.tensor([n]) for n in cut)
        first_row = torch.zeros_like(n_frames)
        blank = self._blanks(state, row, first_row + self._any_beam(state, row), tokens)
        spans = align(frames[None], n_frames, tokens, n_tokens, rows=first_row, blank=blank)
        return token_times(spans, [cut.n_tokens])[0]

    def _symbols(self, state: PrefixState, row: int, cut: Cut) -> Tensor:
        return state.symbols[row, self._any_beam(state, row), 1 : cut.n_tokens + 1]

    @staticmethod
    def _any_beam(state: PrefixState, row: int) -> int:
        return int(state.is_alive[row].to(torch.uint8).argmax())

    def _blanks(self, state: PrefixState, row: int, beams: Tensor, tokens: Tensor) -> int | Tensor:
        n_labels = len(self._speller.labels)
        return self._idle.blanks(tokens, state.symbols[row, beams, 0] % n_labels, n_labels)

    def _add(self, state: PrefixState, row: int, cut: Cut, times: TokenTimes) -> None:
        symbols = self._symbols(state, row, cut).tolist()
        state.committed[row].add(symbols, times, cut.n_frames, self._speller)


def newly_committed(state: PrefixState, speller: Speller, frame_s: float) -> list[Partial]:
    """Return events of words committed since the last call, at most one per utterance.

    utterance: its row. Without times an event has no words, and the time of the commit.
    """
    events = []
    for row, history in enumerate(state.committed):
        emitted, history.n_emitted = history.n_emitted, len(history.words)
        if emitted == history.n_emitted:
            continue
        now = int(state.n_frames[row]) * frame_s
        words = (
            tuple(_word(history, i, frame_s) for i in range(emitted, history.n_emitted))
            if history.first
            else ()
        )
        events.append(
            Partial(
                start=words[0].start if words else now,
                end=words[-1].end if words else now,
                text=speller.join(history.words[emitted:]),
                language="",
                words=words,
                emission_time=now,
                utterance=row,
            )
        )
    return events


def _word(history: CommittedHistory, place: int, frame_s: float) -> Word:
    first, end = history.word_starts[place], history.word_ends[place]
    peaks = history.peak[first:end]
    return Word(
        word=history.words[place],
        start=history.first[first] * frame_s,
        end=(history.last[end - 1] + 1) * frame_s,
        probability=math.exp(sum(peaks) / len(peaks)),
    )
