"""When the tokens of a hypothesis were said: the likeliest CTC path that spells them, many at once.

The states of the path are blank, token 1, blank, token 2, … blank (Graves et al. 2006, section 4.1),
with the maximum in place of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sottovoce.decoding.ctc.state import NEVER


class TokenSpans(NamedTuple):
    """First frame, last frame (inclusive) and highest log-probability of every token: (N, L) each.

    Padding holds zeros. score: (N,) float32, log-probability of the path.
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
    """Spans as numbers, without the padding."""
    parts = (part.tolist() for part in (spans.first, spans.last, spans.peak))
    rows = zip(*parts, n_tokens, strict=True)
    return [TokenTimes(first[:n], last[:n], peak[:n]) for first, last, peak, n in rows]


@torch.no_grad()
def align(
    log_probs: Tensor, lengths: Tensor, tokens: Tensor, n_tokens: Tensor, *, rows: Tensor, blank: int
) -> TokenSpans:
    """Align tokens (N, L) int64, of which n_tokens (N,) count, to utterances `rows` (N,) of the emissions.

    log_probs: (B, T, V) float32. lengths: (B,) int64. Tokens that cannot be aligned (more of them than
    frames) get a score of -inf and meaningless spans.
    """
    n_frames, device = log_probs.shape[1], log_probs.device
    path = _path_labels(tokens, blank)  # (N, S)
    can_skip = _can_skip(path, blank)
    score = torch.full(path.shape, NEVER, device=device)
    score[:, :1] = 0.0  # before the first frame: in the first blank, and one step from the first token
    steps = torch.zeros((n_frames, *path.shape), dtype=torch.uint8, device=device)
    emitted = log_probs.transpose(0, 1)  # (T, B, V)
    limits = lengths[rows]
    for t in range(n_frames):
        best, steps[t] = _best_step(score, can_skip)
        best = best + emitted[t].index_select(0, rows).gather(1, path)
        score = torch.where((limits > t)[:, None], best, score)
    return _trace(log_probs, steps, score, tokens, n_tokens, limits, rows)


def _path_labels(tokens: Tensor, blank: int) -> Tensor:
    path = tokens.new_full((tokens.shape[0], 2 * tokens.shape[1] + 1), blank)
    path[:, 1::2] = tokens
    return path


def _can_skip(path: Tensor, blank: int) -> Tensor:
    """States that may be entered from two before: tokens that differ from the one before."""
    allowed = torch.zeros_like(path, dtype=torch.bool)
    allowed[:, 2:] = (path[:, 2:] != blank) & (path[:, 2:] != path[:, :-2])
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
    every = torch.arange(len(tokens), device=tokens.device)
    for t in reversed(range(len(steps))):
        said = (limits > t) & (place % 2 == 1)
        at, where_ = every[said], place[said] // 2
        if len(at):
            first[at, where_] = t
            last[at, where_] = torch.where(peak[at, where_] == NEVER, t, last[at, where_])
            now = log_probs[rows[at], t, tokens[at, where_]].clamp_min(-1e30)
            peak[at, where_] = torch.maximum(peak[at, where_], now)
        place = place - torch.where(limits > t, steps[t].gather(1, place[:, None])[:, 0].to(place), 0)
    return TokenSpans(first, last, peak.masked_fill_(peak == NEVER, 0.0), best)
