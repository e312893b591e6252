"""The frame that each decoder row attends to most, from running statistics of its attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.decoding.alignment import RunningStatistics, mean_over_heads, median_filter

SPREAD_FLOOR = 0.1
"""Added to the standard deviation of a frame's attention, as a fraction of uniform attention. Where all
tokens but one attend elsewhere, every frame in the foot of that one's peak has the same z-score: the floor
lets the peak win."""


class AttentionTracker:
    """Find the frame that each row attends to most (the frontier), from running statistics of attention.

    As for word times, each head's attention is normalised over the tokens (mean 0, variance 1 at every
    frame), median-filtered over the frames, and averaged over the heads. Only the newest token's row is
    needed, so statistics are kept instead of the rows: the work for a token does not grow with the tokens
    before it. Statistics are (R, n_heads, n_frames), per row: rows of any age and length come and go.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._lengths: list[int] = []  # frames that hold audio
        self._n_frames = torch.zeros(0, dtype=torch.int64)  # the same, where the statistics are
        self._statistics: RunningStatistics | None = None
        self._last = torch.zeros(0)  # (R, n_heads, 1, longest), of each row's newest token

    @property
    def n_rows(self) -> int:
        return len(self._lengths)

    @property
    def _longest(self) -> int:
        return max(self._lengths)

    def admit(self, n_frames: int, attention: Tensor, cached: RunningStatistics | None = None) -> None:
        """Add a row with the attention (n_heads, n_tokens, n_frames or more) of its first tokens.

        n_frames: those that hold audio; attention beyond is ignored. cached: statistics of the tokens before
            these, of one row (see `statistics_of`); None: there are none.
        """
        new = statistics_of(attention, n_frames, cached)
        last = attention[None, :, -1:, :n_frames].float()
        count = torch.tensor([n_frames], device=last.device)
        others = self._statistics
        self._lengths.append(n_frames)
        if others is None:
            self._n_frames, self._statistics, self._last = count, new, last
            return
        self._n_frames = torch.cat([self._n_frames, count])
        self._last = self._joined(self._last, last)
        self._statistics = RunningStatistics(
            torch.cat([others.n_tokens, new.n_tokens]),
            self._joined(others.mean, new.mean),
            self._joined(others.squares, new.squares),
        )

    def extend(self, rows: Sequence[int], attention: Sequence[Tensor]) -> None:
        """Add the attention (n_heads, 1, n_frames or more) of one new token of each of these rows."""
        assert self._statistics is not None
        newest = torch.stack([self._cut(one.float()) for one in attention])
        counted = newest.new_ones(len(rows), 1, 1)
        if list(rows) == list(range(self.n_rows)):
            self._statistics, self._last = self._statistics.updated(newest, counted), newest
            return
        index = torch.tensor(rows, device=newest.device)
        updated = self._statistics.select(index).updated(newest, counted)
        current = self._statistics
        for whole, part in (
            (current.n_tokens, updated.n_tokens),
            (current.mean, updated.mean),
            (current.squares, updated.squares),
            (self._last, newest),
        ):
            whole.index_copy_(0, index, part)

    def select(self, rows: Sequence[int]) -> None:
        """Let row i continue the former row rows[i]."""
        if not rows:
            self._forget()
            return
        assert self._statistics is not None
        index = torch.tensor(rows, device=self._last.device)
        self._lengths = [self._lengths[row] for row in rows]
        self._n_frames = self._n_frames[index]
        self._last = self._cut(self._last[index])
        chosen = self._statistics.select(index)
        self._statistics = RunningStatistics(
            chosen.n_tokens, self._cut(chosen.mean), self._cut(chosen.squares)
        )

    def frontier(self, rows: Sequence[int] | None = None) -> Tensor:
        """Return the frame (n,) int64 that each row's newest token attends to most; rows None: of all."""
        assert self._statistics is not None
        statistics, last, n_frames = self._statistics, self._last, self._n_frames
        if rows is not None and list(rows) != list(range(self.n_rows)):
            index = torch.tensor(rows, device=last.device)
            statistics, last, n_frames = statistics.select(index), last[index], n_frames[index]
        floor = SPREAD_FLOOR / n_frames[:, None, None]  # (R, 1, 1)
        score = statistics.normalize(last, floor=floor)
        several = statistics.n_tokens.unsqueeze(-2) > 1
        frames = torch.arange(self._longest, device=score.device)
        ends = n_frames[:, None, None]
        beyond = frames >= ends  # (R, 1, n_frames)
        # The filter mirrors what it sees at the end: a shorter row at its own end.
        mirrored = torch.where(beyond, (2 * (ends - 1) - frames).clamp(min=0), frames)
        score = torch.where(several, score, last)
        score = score.gather(-1, mirrored[:, :, None].expand_as(score))
        score = mean_over_heads(median_filter(score))  # (R, 1, n_frames)
        return score.masked_fill(beyond, -torch.inf).argmax(dim=-1)[:, 0]

    def _joined(self, old: Tensor, new: Tensor) -> Tensor:
        """Append rows to others, as long as the longest."""
        return torch.cat([self._cut(old), self._cut(new)])

    def _cut(self, rows: Tensor) -> Tensor:
        """Return rows (..., n) as long as the longest: cut, or padded with 0."""
        return F.pad(rows[..., : self._longest], (0, max(0, self._longest - rows.shape[-1])))


def statistics_of(
    attention: Tensor, n_frames: int, cached: RunningStatistics | None = None
) -> RunningStatistics:
    """Return statistics (1, n_heads, n_frames) of the attention (n_heads, n_tokens, n_frames or more) of
    tokens.

    cached: of the tokens before them, in a window of at most as many frames; None: there are none.
    """
    rows = attention[None, ..., :n_frames].float()
    counted = rows.new_ones(1, 1, rows.shape[2])
    if cached is None:
        return RunningStatistics.of(rows, counted)
    more = (0, n_frames - cached.mean.shape[-1])
    widened = RunningStatistics(cached.n_tokens, F.pad(cached.mean, more), F.pad(cached.squares, more))
    return widened.updated(rows, counted) if rows.shape[2] else widened
