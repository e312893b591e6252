"""CTC forced alignment: the most probable path that spells given tokens, for many hypotheses at once.

The states of the path are blank, token 1, blank, token 2, … blank (Graves et al. 2006, section 4.1), with
the maximum instead of the sum.

For streams, the common prefix of all beams is cut off where the paths to all states that can still win
meet in a blank; the rest can then be aligned separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sottovoce.lm.base import Ints

NEVER = float("-inf")
CUT_MARGIN = 40.0
"""Nats by which a state may be behind the best and still win."""


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


class Cut(NamedTuple):
    """Where paths meet: the number of frames and of tokens before it."""

    n_frames: int
    n_tokens: int


NO_CUT = Cut(0, 0)


@torch.no_grad()
def align(
    log_probs: Tensor, lengths: Tensor, tokens: Tensor, n_tokens: Tensor, *, rows: Tensor, blank: int | Tensor
) -> TokenSpans:
    """Align tokens (N, L) int64, of which n_tokens (N,) count, to utterances `rows` (N,) of the emissions.

    Returns spans (N, L) and scores (N,). Tokens that outnumber the frames get a score of -inf and
    meaningless spans.

    log_probs: (B, T, V) float32. lengths: (B,) int64. blank: the label of blanks, or those (N, L + 1) of
    the blanks before each token and after the last.
    """
    limits = lengths[rows]
    steps, score = best_paths(log_probs, limits, tokens, rows=rows, blank=blank)
    return _trace(log_probs, steps, score, tokens, n_tokens, limits, rows)


def best_paths(
    log_probs: Tensor, limits: Tensor, tokens: Tensor, *, rows: Tensor, blank: int | Tensor
) -> tuple[Tensor, Tensor]:
    """Find the best path to each state: its steps (T, N, S) uint8, and its log-probability (N, S).

    A step is the number of states that the path advances by: 0, 1 or 2.

    log_probs: (B, T, V). limits: (N,) frames. tokens: (N, L). rows: (N,) utterances. blank: see `align`.
    """
    n_frames, device = log_probs.shape[1], log_probs.device
    path = _path_labels(tokens, blank)  # (N, S)
    can_skip = _can_skip(path)
    score = torch.full(path.shape, NEVER, device=device)
    score[:, :1] = 0.0  # before the first frame: in the first blank, one step from the first token
    steps = torch.zeros((n_frames, *path.shape), dtype=torch.uint8, device=device)
    emitted = log_probs.transpose(0, 1)  # (T, B, V)
    for t in range(n_frames):
        best, steps[t] = _best_step(score, can_skip)
        best = best + emitted[t].index_select(0, rows).gather(1, path)
        score = torch.where((limits > t)[:, None], best, score)
    return steps, score


def _path_labels(tokens: Tensor, blank: int | Tensor) -> Tensor:
    path = tokens.new_empty((tokens.shape[0], 2 * tokens.shape[1] + 1))
    path[:, ::2] = blank
    path[:, 1::2] = tokens
    return path


def _can_skip(path: Tensor) -> Tensor:
    """Return the states that may be entered from two below: tokens that differ from the one before."""
    allowed = torch.zeros_like(path, dtype=torch.bool)
    allowed[:, 3::2] = path[:, 3::2] != path[:, 1:-2:2]
    return allowed


def _best_step(score: Tensor, can_skip: Tensor) -> tuple[Tensor, Tensor]:
    one = torch.nn.functional.pad(score, (1, 0), value=NEVER)[:, :-1]
    two = torch.nn.functional.pad(score, (2, 0), value=NEVER)[:, :-2].masked_fill(~can_skip, NEVER)
    return torch.stack((score, one, two)).max(dim=0)


def _trace(
    log_probs: Tensor,
    steps: Tensor,
    score: Tensor,
    tokens: Tensor,
    n_tokens: Tensor,
    limits: Tensor,
    rows: Tensor,
) -> TokenSpans:
    last_state = 2 * n_tokens  # the last blank
    ends = torch.stack((last_state, (last_state - 1).clamp_min(0)), dim=1)
    best, which = score.gather(1, ends).max(dim=1)
    place = ends.gather(1, which[:, None])[:, 0]
    first, last = torch.zeros_like(tokens), torch.zeros_like(tokens)
    peak = torch.full(tokens.shape, NEVER, device=log_probs.device)
    for t in reversed(range(len(steps) if tokens.shape[1] else 0)):
        active = limits > t
        on_token = (active & (place % 2 == 1))[:, None]
        at = (place // 2).clamp_max(tokens.shape[1] - 1)[:, None]  # of a blank: any, as nothing is written
        so_far = peak.gather(1, at)
        now = log_probs[rows, t, tokens.gather(1, at)[:, 0]].clamp_min(-1e30)[:, None]
        is_end = on_token & (so_far == NEVER)
        first.scatter_(1, at, first.gather(1, at).masked_fill(on_token, t))
        last.scatter_(1, at, last.gather(1, at).masked_fill(is_end, t))
        peak.scatter_(1, at, torch.where(on_token, torch.maximum(so_far, now), so_far))
        place = place - steps[t].gather(1, place[:, None])[:, 0].to(place) * active
    return TokenSpans(first, last, peak.masked_fill_(peak == NEVER, 0.0), best)


def common_cut(
    log_probs: Tensor,
    tokens: Tensor,
    n_tokens: Tensor,
    *,
    n_shared: int,
    blank: int | Tensor,
    is_late: bool = False,
) -> Cut:
    """Find the latest blank that all paths pass after at most n_shared tokens; `NO_CUT` without one.

    log_probs: (T, V). tokens: (N, L) int64 of all beams, of which n_tokens (N,) count. blank: see `align`.
    is_late: only paths that have passed all of their tokens count.
    """
    n_rows, n_frames = len(tokens), len(log_probs)
    rows = torch.zeros(n_rows, dtype=torch.int64, device=tokens.device)
    steps, score = best_paths(log_probs[None], rows + n_frames, tokens, rows=rows, blank=blank)
    states = torch.arange(score.shape[1], device=score.device)
    score = score.masked_fill(states > 2 * n_tokens[:, None], NEVER)
    if is_late:
        score = score.masked_fill(states < 2 * n_tokens[:, None] - 1, NEVER)
    plausible = (score > score.amax(dim=1, keepdim=True) - CUT_MARGIN).cpu().numpy()
    row, place = np.nonzero(plausible)
    return _met(steps.cpu().numpy(), row, place, n_shared)


def _met(steps: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], row: Ints, place: Ints, most: int) -> Cut:
    """Backtrack until all paths meet in a blank after at most `most` tokens."""
    if not len(place):
        return NO_CUT
    for t in range(len(steps), 0, -1):
        at = int(place[0])
        if at % 2 == 0 and at // 2 <= most and bool((place == at).all()):
            return Cut(t, at // 2)
        place = place - steps[t - 1, row, place]
    return NO_CUT
