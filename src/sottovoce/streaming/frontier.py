"""Which frame the decoder attends to now, from running statistics of its attention.

Not known here: tokens, and what follows from where the attention is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sottovoce.decoding.alignment import RunningStatistics, mean_over_heads, median_filter

SPREAD_FLOOR = 0.1
"""Added to the standard deviation of a frame's attention, as a part of even attention. Where all tokens
but one attend to nothing, every frame in the foot of that one's peak has the same z-score: the floor lets
the peak win."""


class AttentionTracker:
    """Which frame each row attends to most, from running statistics of the attention so far.

    As for word times, each head's attention is normalised over the tokens (mean 0, variance 1 at every
    frame), median-filtered over the frames, and averaged over the heads. Only the newest token's row is
    needed, so statistics are kept instead of the rows: the work for a token does not grow with the tokens
    before it. Statistics are (R, n_heads, n_frames), per row, and follow the rows when beams move.
    """

    def __init__(self, n_frames: Tensor) -> None:
        """n_frames: (R,) int64, frames of each row that hold audio; attention beyond is not looked at."""
        self._n_frames = n_frames
        self._longest = int(n_frames.max())
        self._statistics: RunningStatistics | None = None
        self._last = torch.zeros(0)

    def extend(self, attention: Tensor, *, n_padding: Tensor | None = None) -> None:
        """Take the attention (R, n_heads, n_new, n_frames or more) of new tokens.

        n_padding: (R,) int64, leading new tokens of each row that are padding and do not count.
        """
        rows = attention[..., : self._longest].float()
        counted = rows.new_ones(rows.shape[0], 1, rows.shape[2])
        if n_padding is not None:
            column = torch.arange(rows.shape[2], device=rows.device)
            counted = (column >= n_padding[:, None]).to(rows)[:, None]  # (R, 1, n_new)
        known = self._statistics
        self._statistics = (
            RunningStatistics.of(rows, counted) if known is None else known.updated(rows, counted)
        )
        self._last = rows[:, :, -1:]

    def reorder(self, rows: Tensor) -> None:
        """Let row i continue the former row rows[i]; rows (R',) int64."""
        assert self._statistics is not None
        self._statistics = self._statistics.select(rows)
        self._last = self._last[rows]
        self._n_frames = self._n_frames[rows]

    def frontier(self) -> Tensor:
        """The frame that the newest token of each row attends to most: (R,) int64."""
        assert self._statistics is not None
        floor = SPREAD_FLOOR / self._n_frames[:, None, None]  # (R, 1, 1)
        score = self._statistics.normalize(self._last, floor=floor)
        several = self._statistics.n_tokens.unsqueeze(-2) > 1
        frames = torch.arange(self._longest, device=score.device)
        ends = self._n_frames[:, None, None]
        beyond = frames >= ends  # (R, 1, n_frames)
        # The filter mirrors what it sees at the end: a shorter row at its own end.
        mirrored = torch.where(beyond, (2 * (ends - 1) - frames).clamp(min=0), frames)
        score = torch.where(several, score, self._last)
        score = score.gather(-1, mirrored[:, :, None].expand_as(score))
        score = mean_over_heads(median_filter(score))  # (R, 1, n_frames)
        return score.masked_fill(beyond, -torch.inf).argmax(dim=-1)[:, 0]
