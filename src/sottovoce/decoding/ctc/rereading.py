"""Other readings of the labels that a search ended with: homophones that it left out on the way come back.

Readings of the same labels have the same paths, so language models alone tell them apart, and they can be
found again without emissions. What is found here is ranked by the `PrefixScorer`; a model of whole histories
then chooses among more than the beam had room for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sottovoce.decoding.ctc.state import PrefixState
from sottovoce.decoding.ctc.text import UNFINISHED
from sottovoce.lm.base import PrefixScorer

NEVER = float("-inf")


class Reading(NamedTuple):
    """symbols: labels with their marks, see `PrefixState`. mark: of the word that the end completes.
    score: the scorer's, the end included."""

    symbols: tuple[int, ...]
    mark: int
    score: float


class Ending(NamedTuple):
    """A way for an utterance to end: its score, its share of all ways, its beam, the mark of the word that it
    completes or `UNFINISHED`."""

    utterance: int
    score: float
    posterior: float
    beam: int
    mark: int


class Reread(NamedTuple):
    """A reading of the labels of a beam; its score counts acoustics too."""

    utterance: int
    beam: int
    symbols: tuple[int, ...]
    mark: int
    score: float


def reread(
    scorer: PrefixScorer, state: PrefixState, beams: Sequence[tuple[int, int, Sequence[int]]], *, most: int
) -> list[Reread]:
    """The readings of all different label sequences that beams hold, at most `most` of each.

    beams: utterance, beam and symbols. Beams of one label sequence have the same paths; what a search has
    added up for them may differ, and the most counts.
    """
    heard, taken = state.acoustic.tolist(), state.taken.tolist()
    best: dict[tuple[int, tuple[int, ...]], int] = {}
    for row, beam, symbols in beams:
        key = (row, tuple(symbol % scorer.n_tokens for symbol in symbols))
        if key not in best or heard[row][beam] > heard[row][best[key]]:
            best[key] = beam
    if not best:
        return []
    found = readings(scorer, [labels for _, labels in best], most=most, device=state.length.device)
    return [
        Reread(row, beam, reading.symbols, reading.mark, heard[row][beam] + reading.score - taken[row])
        for ((row, _), beam), several in zip(best.items(), found, strict=True)
        for reading in several
    ]


def best_readings(
    found: Sequence[tuple[Ending, list[int]]],
    more: Sequence[Reread],
    in_beam: Collection[tuple[int, tuple[int, ...]]],
    n_best: int,
) -> tuple[list[Ending], list[list[int]]]:
    """The n_best of every utterance of endings that a beam found and of other readings, with their symbols.

    in_beam: utterance and symbols of every beam, whose endings count in the posteriors already. What is
    unfinished gives way to any whole reading.
    """
    endings: list[Ending] = []
    histories: list[list[int]] = []
    for row in sorted({ending.utterance for ending, _ in found} | {one.utterance for one in more}):
        others = [one for one in more if one.utterance == row]
        own = [pair for pair in found if pair[0].utterance == row]
        own = [pair for pair in own if not others or pair[0].mark != UNFINISHED]
        pool = {(tuple(symbols), ending.mark): ending for ending, symbols in own}
        mass = [own[0][0].score - math.log(own[0][0].posterior)] if own else []
        mass += [one.score for one in others if (row, one.symbols) not in in_beam]
        total = float(torch.tensor(mass, dtype=torch.float64).logsumexp(dim=0))
        for one in others:
            known = pool.get((one.symbols, one.mark))
            if known is None or known.score < one.score:
                pool[one.symbols, one.mark] = Ending(row, one.score, 0.0, one.beam, one.mark)
        ranked = sorted(pool.items(), key=lambda item: -item[1].score)[:n_best]
        endings += [ending._replace(posterior=math.exp(ending.score - total)) for _, ending in ranked]
        histories += [list(symbols) for (symbols, _), _ in ranked]
    return endings, histories


class _Rows(NamedTuple):
    """The W best readings so far of each of S label sequences: score (S, W), states (S, W, s), symbols
    (S, W, L)."""

    score: Tensor
    states: Tensor
    symbols: Tensor

    def where(self, active: Tensor, other: _Rows) -> _Rows:
        """These for the sequences that are active (S,), others for the rest."""
        return _Rows(
            torch.where(active[:, None], self.score, other.score),
            torch.where(active[:, None, None], self.states, other.states),
            torch.where(active[:, None, None], self.symbols, other.symbols),
        )


@torch.no_grad()
def readings(
    scorer: PrefixScorer, sequences: Sequence[Sequence[int]], *, most: int, device: torch.device
) -> list[list[Reading]]:
    """The best readings of label sequences, at most `most` of each, best first; all in one batch.

    Between labels as many are kept, by their scores so far: with fewer homophones than that nothing is lost.
    """
    longest = max(map(len, sequences), default=0)
    tokens = torch.zeros((len(sequences), longest), dtype=torch.int64, device=device)
    for row, labels in enumerate(sequences):
        tokens[row, : len(labels)] = torch.tensor(labels, dtype=torch.int64)
    lengths = torch.tensor([len(labels) for labels in sequences], device=device)
    rows = _first(scorer, len(sequences), most, longest, device)
    for place in range(longest):
        rows = _said(scorer, rows, tokens[:, place], place).where(lengths > place, rows)
    return _ended(scorer, rows, lengths.tolist())


def _first(scorer: PrefixScorer, n: int, most: int, longest: int, device: torch.device) -> _Rows:
    score = torch.full((n, most), NEVER, device=device)
    score[:, 0] = 0.0
    states = scorer.start(n * most, device).view(n, most, -1)
    return _Rows(score, states, torch.zeros((n, most, longest), dtype=torch.int64, device=device))


def _said(scorer: PrefixScorer, rows: _Rows, tokens: Tensor, place: int) -> _Rows:
    """The next label (S,) of every sequence, by whichever arcs it has."""
    n, most = rows.score.shape
    arcs = scorer.arcs(rows.states.view(n * most, -1), tokens.repeat_interleave(most)[:, None])
    n_arcs = arcs.scores.shape[2]
    best, index = (rows.score[:, :, None] + arcs.scores.view(n, most, n_arcs)).view(n, -1).topk(most, dim=1)
    states = arcs.states.view(n, most * n_arcs, -1)
    source = (index // n_arcs)[:, :, None]
    symbols = rows.symbols.gather(1, source.expand(-1, -1, rows.symbols.shape[2]))
    symbols[:, :, place] = tokens[:, None] + scorer.n_tokens * arcs.marks.view(n, -1).gather(1, index)
    return _Rows(best, states.gather(1, index[:, :, None].expand(-1, -1, states.shape[2])), symbols)


def _ended(scorer: PrefixScorer, rows: _Rows, lengths: Sequence[int]) -> list[list[Reading]]:
    n, most = rows.score.shape
    endings = scorer.endings(rows.states.view(n * most, -1))
    scores = (rows.score[:, :, None] + endings.scores.view(n, most, -1)).view(n, -1)
    n_ways = scores.shape[1] // most
    best, index = scores.topk(most, dim=1)
    marks = endings.marks.view(n, -1).gather(1, index).tolist()
    symbols, sources = rows.symbols.tolist(), (index // n_ways).tolist()
    return [
        [
            Reading(tuple(symbols[row][source][: lengths[row]]), mark, score)
            for score, source, mark in zip(best[row].tolist(), sources[row], marks[row], strict=True)
            if score > NEVER
        ]
        for row in range(n)
    ]
