"""Homophones: word sequences with the same labels, pruned during the search and recovered at the end.

Homophones have the same paths now and later. If their lexicon and language model states are equal too,
their score difference is constant, so only the n best of a group can be in an n-best list, and pruning the
others loses nothing; their probability counts in the posteriors. At the end the word sequences of a
hypothesis's labels only differ in language model scores, and the `PrefixScorer` ranks them without
emissions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sottovoce.ctc.align import NEVER
from sottovoce.lm.base import PrefixScorer


class RankedCandidates(NamedTuple):
    """C candidates of each utterance, best first; (B, C) each.

    score: ranking score. source: the beam that they continue. token: the appended label, -1: none. states:
    (B, C, s) of the scorer.
    """

    score: Tensor
    source: Tensor
    token: Tensor
    states: Tensor


class PrunedCandidates(NamedTuple):
    """survives: (B, C) bool. log_mass: (B, C), log of (probability of the candidate plus the homophones
    pruned for it) / its own.
    """

    survives: Tensor
    log_mass: Tensor


def prune_homophones(
    found: RankedCandidates,
    is_label_prefix: Tensor,
    length: Tensor,
    last_token: Tensor,
    merged: Tensor,
    max_homophones: int,
) -> PrunedCandidates:
    """Keep the max_homophones best of each group of homophones.

    is_label_prefix: (B, K, K) bool, [b, j, k]: the labels of beam k are a prefix of those of j, or equal
    them. length, last_token, merged: (B, K) of the beams, see `PrefixState`.
    """
    same = _same_labels(found, is_label_prefix, length, last_token)
    for number in found.states.unbind(dim=2):
        same &= number[:, :, None] == number[:, None, :]
    same &= torch.isfinite(found.score)[:, :, None]
    n_better = same.tril(-1).sum(dim=2)  # of the same group
    survives = n_better < max_homophones
    # Pruned homophones are found again with every frame: they only count in a new group.
    is_new = found.token >= 0
    weight = found.score + merged.gather(1, found.source)
    counts = same & (n_better == 0)[:, :, None] & (is_new & ~survives)[:, None, :] & is_new[:, :, None]
    behind = torch.where(counts, weight[:, None, :], float("-inf")).logsumexp(dim=2)
    log_mass = torch.logaddexp(weight, behind) - found.score
    return PrunedCandidates(survives, log_mass.nan_to_num(0.0))


def _same_labels(
    found: RankedCandidates, is_label_prefix: Tensor, length: Tensor, last_token: Tensor
) -> Tensor:
    """Return pairs (B, C, C) of candidates with one label sequence."""
    n_batch, n_beams, _ = is_label_prefix.shape
    source, token = found.source, found.token
    pairs = (source[:, :, None] * n_beams + source[:, None, :]).view(n_batch, -1)
    shape = (n_batch, source.shape[1], source.shape[1])
    continues = is_label_prefix.view(n_batch, -1).gather(1, pairs).view(shape)
    n_symbols, stays = length.gather(1, source), token < 0
    is_equal = continues & (n_symbols[:, :, None] == n_symbols[:, None, :])
    same = is_equal & (token[:, :, None] == token[:, None, :])
    # One appends nothing, and the other the last label of the first.
    last = last_token.gather(1, source)
    reaches = (
        continues
        & (n_symbols[:, :, None] == n_symbols[:, None, :] + 1)
        & (last[:, :, None] == token[:, None, :])
    )
    reaches &= stays[:, :, None] & ~stays[:, None, :]
    return same | reaches | reaches.transpose(1, 2)


class Homophone(NamedTuple):
    """A word sequence of given labels.

    symbols: labels with their marks, see `PrefixState`. mark: of the word that the end completes. score:
    of the scorer, including the end.
    """

    symbols: tuple[int, ...]
    mark: int
    score: float


class _Rows(NamedTuple):
    """The W best word sequences so far of each of S label sequences.

    score: (S, W). states: (S, W, s). symbols: (S, W, L).
    """

    score: Tensor
    states: Tensor
    symbols: Tensor

    def where(self, active: Tensor, other: _Rows) -> _Rows:
        return _Rows(
            torch.where(active[:, None], self.score, other.score),
            torch.where(active[:, None, None], self.states, other.states),
            torch.where(active[:, None, None], self.symbols, other.symbols),
        )


@torch.no_grad()
def expand_homophones(
    scorer: PrefixScorer, sequences: Sequence[Sequence[int]], *, most: int, device: torch.device
) -> list[list[Homophone]]:
    """Find the best word sequences of label sequences, at most `most` of each, best first, in one batch.

    The beam is `most` wide: exact for fewer homophones than that.
    """
    tokens, lengths = (part.to(device) for part in padded(sequences))
    longest = tokens.shape[1]
    rows = _first(scorer, len(sequences), most, longest, device)
    for place in range(longest):
        rows = _append(scorer, rows, tokens[:, place], place).where(lengths > place, rows)
    return _ended(scorer, rows, lengths.tolist())


def padded(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Pad label sequences to one tensor (S, L), with their lengths (S,)."""
    tokens = torch.zeros((len(sequences), max(map(len, sequences), default=0)), dtype=torch.int64)
    for row, labels in enumerate(sequences):
        tokens[row, : len(labels)] = torch.tensor(labels, dtype=torch.int64)
    return tokens, torch.tensor([len(labels) for labels in sequences], dtype=torch.int64)


def _first(scorer: PrefixScorer, n: int, most: int, longest: int, device: torch.device) -> _Rows:
    score = torch.full((n, most), NEVER, device=device)
    score[:, 0] = 0.0
    states = scorer.start(n * most, device).view(n, most, -1)
    return _Rows(score, states, torch.zeros((n, most, longest), dtype=torch.int64, device=device))


def _append(scorer: PrefixScorer, rows: _Rows, tokens: Tensor, place: int) -> _Rows:
    n, most = rows.score.shape
    arcs = scorer.arcs(rows.states.view(n * most, -1), tokens.repeat_interleave(most)[:, None])
    n_arcs = arcs.scores.shape[2]
    best, index = (rows.score[:, :, None] + arcs.scores.view(n, most, n_arcs)).view(n, -1).topk(most, dim=1)
    states = arcs.states.view(n, most * n_arcs, -1)
    source = (index // n_arcs)[:, :, None]
    symbols = rows.symbols.gather(1, source.expand(-1, -1, rows.symbols.shape[2]))
    symbols[:, :, place] = tokens[:, None] + scorer.n_tokens * arcs.marks.view(n, -1).gather(1, index)
    return _Rows(best, states.gather(1, index[:, :, None].expand(-1, -1, states.shape[2])), symbols)


def _ended(scorer: PrefixScorer, rows: _Rows, lengths: Sequence[int]) -> list[list[Homophone]]:
    n, most = rows.score.shape
    endings = scorer.endings(rows.states.view(n * most, -1))
    scores = (rows.score[:, :, None] + endings.scores.view(n, most, -1)).view(n, -1)
    n_ways = scores.shape[1] // most
    best, index = scores.topk(most, dim=1)
    marks = endings.marks.view(n, -1).gather(1, index).tolist()
    symbols, sources = rows.symbols.tolist(), (index // n_ways).tolist()
    return [
        [
            Homophone(tuple(symbols[row][source][: lengths[row]]), mark, score)
            for score, source, mark in zip(best[row].tolist(), sources[row], marks[row], strict=True)
            if score > NEVER
        ]
        for row in range(n)
    ]
