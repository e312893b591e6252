"""Pruning homophones: candidates of the same labels and the same state of lexicon and language models.

Homophones, or words cut at other places, have the same paths now and later, and all that follows adds the
same to each. So one that is behind stays behind by as much: only the n best of a group can be in an n-best
list of n, and pruning the others loses nothing. Scores stay those of single texts; the probability of what
was pruned counts in the posteriors.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RankedCandidates(NamedTuple):
    """C candidates of each utterance, best first; (B, C) each.

    score: what they rank by. source: the beam that they continue. token: the label that they append, -1:
    none. states: (B, C, s) of the scorer after it.
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
    # Pruned ones come again with every frame: they count when their group is new.
    is_new = found.token >= 0
    weight = found.score + merged.gather(1, found.source)
    counts = same & (n_better == 0)[:, :, None] & (is_new & ~survives)[:, None, :] & is_new[:, :, None]
    behind = torch.where(counts, weight[:, None, :], float("-inf")).logsumexp(dim=2)
    log_mass = torch.logaddexp(weight, behind) - found.score
    return PrunedCandidates(survives, log_mass.nan_to_num(0.0))


def _same_labels(
    found: RankedCandidates, is_label_prefix: Tensor, length: Tensor, last_token: Tensor
) -> Tensor:
    """Find pairs (B, C, C) of candidates of one label sequence."""
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
