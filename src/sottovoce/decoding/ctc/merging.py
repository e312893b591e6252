"""Which candidates of a frame are readings of the same labels that nothing to come can tell apart.

Homophones, and words cut elsewhere: the same label sequence, and the same state of lexicon and language
models. Both have the same paths, now and later, and whatever is said next adds the same to both. So the one
that is behind stays behind by as much: of an n-best list of n only the n best of a kind can ever be part, and
leaving out the others loses nothing. No score takes in another text's; what was left out counts in the
posteriors.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Candidates(NamedTuple):
    """C candidates of each utterance, best first; (B, C) each.

    score: what they rank by. source: the beam that they continue. token: the one that they say, -1: none.
    states: (B, C, s) of the scorer afterwards.
    """

    score: Tensor
    source: Tensor
    token: Tensor
    states: Tensor


class Kept(NamedTuple):
    """is_kept: (B, C) bool. mass: (B, C), log of what each stands for now, over itself: itself, and what was
    left out for it."""

    is_kept: Tensor
    mass: Tensor


def kept(
    found: Candidates, spells: Tensor, length: Tensor, last_token: Tensor, merged: Tensor, n_kept: int
) -> Kept:
    """Keep the n_kept best of each kind.

    spells: (B, K, K) bool, spells[b, j, k]: the labels of beam k are a beginning of those of j, or are those.
    length, last_token, merged: (B, K) of the beams, see `PrefixState`.
    """
    same = _same_labels(found, spells, length, last_token)
    for number in found.states.unbind(dim=2):
        same &= number[:, :, None] == number[:, None, :]
    same &= torch.isfinite(found.score)[:, :, None]
    n_better = same.tril(-1).sum(dim=2)  # of the same kind
    is_kept = n_better < n_kept
    # Those that are left out come again with every frame: they count when their kind is new.
    is_new = found.token >= 0
    weight = found.score + merged.gather(1, found.source)
    counts = same & (n_better == 0)[:, :, None] & (is_new & ~is_kept)[:, None, :] & is_new[:, :, None]
    behind = torch.where(counts, weight[:, None, :], float("-inf")).logsumexp(dim=2)
    mass = torch.logaddexp(weight, behind) - found.score
    return Kept(is_kept, mass.nan_to_num(0.0))


def _same_labels(found: Candidates, spells: Tensor, length: Tensor, last_token: Tensor) -> Tensor:
    """Pairs (B, C, C) of candidates of one label sequence."""
    n_batch, n_beams, _ = spells.shape
    source, token = found.source, found.token
    pairs = (source[:, :, None] * n_beams + source[:, None, :]).view(n_batch, -1)
    shape = (n_batch, source.shape[1], source.shape[1])
    begins = spells.view(n_batch, -1).gather(1, pairs).view(shape)
    n_said, stays = length.gather(1, source), token < 0
    is_equal = begins & (n_said[:, :, None] == n_said[:, None, :])
    same = is_equal & (token[:, :, None] == token[:, None, :])
    # One says nothing, and the other what the first said last.
    last = last_token.gather(1, source)
    reaches = (
        begins & (n_said[:, :, None] == n_said[:, None, :] + 1) & (last[:, :, None] == token[:, None, :])
    )
    reaches &= stays[:, :, None] & ~stays[:, None, :]
    return same | reaches | reaches.transpose(1, 2)
