"""Alignment of tokens to audio frames by the cross-attention of a few heads.

The recipe: cut to the frames of the audio, softmax, z-score over tokens, median filter over frames, mean over
heads, then dynamic time warping. Source: openai-whisper 20250625, timing.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

FILTER_WIDTH = 7
"""Frames of the median filter (140 ms)."""
_MEDIAN_NETWORK = (
    *((0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6)),
    *((2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4)),
)
"""Comparisons that bring the median of seven to the middle. Source: Devillard 1998, opt_med7."""
_TINY = 1e-12
"""Least standard deviation: attention that never changes has a z-score of 0 rather than NaN."""


def cut_frames(attention: Tensor, n_frames: int) -> Tensor:
    """Cut attention (..., n) to the first n_frames and renormalise: softmax over these frames."""
    cut = attention[..., :n_frames]
    return cut / cut.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(cut.dtype).tiny)


def normalize_over_tokens(attention: Tensor) -> Tensor:
    """Compute the z-score (..., n_tokens, n_frames) of each frame over all tokens."""
    std, mean = torch.std_mean(attention, dim=-2, keepdim=True, correction=0)
    return (attention - mean) / std.clamp_min(_TINY)


def median_filter(values: Tensor, width: int = FILTER_WIDTH) -> Tensor:
    """Compute the running median over the last dimension (..., n), mirrored at both ends; `width` is odd.

    Rows of at most width // 2 values are returned unchanged.
    """
    half = width // 2
    n_values = values.shape[-1]
    if n_values <= half:
        return values
    rows = F.pad(values.reshape(1, -1, n_values), (half, half), mode="reflect")
    shifted = [rows[..., offset : offset + n_values] for offset in range(width)]
    if width != FILTER_WIDTH:
        return torch.stack(shifted).median(dim=0).values.reshape(values.shape)
    return _median_of_seven(shifted).reshape(values.shape)


def _median_of_seven(values: list[Tensor]) -> Tensor:
    """Elementwise median by a fixed network of minima and maxima, ten times as fast as sorting."""
    for low, high in _MEDIAN_NETWORK:
        values[low], values[high] = (
            torch.minimum(values[low], values[high]),
            torch.maximum(values[low], values[high]),
        )
    return values[FILTER_WIDTH // 2]


def mean_over_heads(attention: Tensor) -> Tensor:
    """Average (..., n_heads, n_tokens, n_frames) to (..., n_tokens, n_frames)."""
    return attention.mean(dim=-3)


def alignment_matrix(attention: Tensor, n_frames: int) -> Tensor:
    """Compute how well tokens and frames fit: (n_tokens, n_frames), higher is better.

    attention: (n_heads, n_tokens, n_all_frames), softmax over all frames, every token of the sequence.
    """
    weights = normalize_over_tokens(cut_frames(attention, n_frames))
    return mean_over_heads(median_filter(weights))


@dataclass(frozen=True, slots=True, eq=False)
class WarpPath:
    """The cheapest monotonic path through each matrix of a batch.

    first, last: (B, n_tokens) int64, the frames of each token; tokens that only pad are undefined.
    """

    first: Tensor
    last: Tensor


def dtw(cost: Tensor, n_tokens: Tensor | None = None, n_frames: Tensor | None = None) -> WarpPath:
    """Dynamic time warping of a batch of cost matrices (B, n_tokens, n_frames), on the CPU in float64.

    n_tokens, n_frames: (B,) int64, the size of each matrix inside the batch; None: all of it.
    A step goes to the next frame, the next token or both; of equal ones the next frame is taken.

    A row of the table depends on itself: c[j] = x[j] + min(above[j], c[j - 1]), where above[j] is the
    cheaper of the two cells in the row before. With S the running sum of x this is S[j] plus the running
    minimum of above[j] - S[j - 1]: one cumulative sum and one cumulative minimum a token.
    """
    cost = cost.detach().cpu().double()  # in this order: MPS has no float64
    everything = torch.tensor(cost.shape[1:])
    token_counts = everything[0].expand(len(cost)) if n_tokens is None else n_tokens.cpu()
    frame_counts = everything[1].expand(len(cost)) if n_frames is None else n_frames.cpu()
    steps = _best_steps(cost)
    first = torch.zeros(cost.shape[:2], dtype=torch.int64)
    last = torch.zeros_like(first)
    frame = frame_counts - 1
    for token in range(cost.shape[1] - 1, -1, -1):
        entry = steps.entry[:, token].gather(1, frame[:, None])[:, 0]
        diagonal = steps.diagonal[:, token].gather(1, entry[:, None])[:, 0]
        first[:, token], last[:, token] = entry, frame
        frame = torch.where(token < token_counts, entry - diagonal.long(), frame)
    return WarpPath(first, last)


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """How the best path to each cell (B, n_tokens, n_frames) entered the token's row.

    entry: the frame where it did. diagonal: whether a path that enters here left the frame before.
    """

    entry: Tensor
    diagonal: Tensor


def _best_steps(cost: Tensor) -> _Steps:
    infinite = cost.new_full((len(cost), 1), float("inf"))
    sums = cost.cumsum(dim=2)
    sums_before = F.pad(sums[..., :-1], (1, 0))
    frames = torch.arange(cost.shape[2]).expand_as(cost[:, 0])
    entries = [torch.zeros_like(frames)]
    diagonals = [torch.zeros_like(frames, dtype=torch.bool)]
    row = sums[:, 0]
    for token in range(1, cost.shape[1]):
        shifted = torch.cat((infinite, row[:, :-1]), dim=1)
        diagonals.append(shifted <= row)
        above = torch.minimum(shifted, row)
        row = sums[:, token] + (above - sums_before[:, token]).cummin(dim=1).values
        entered = above < torch.cat((infinite, row[:, :-1]), dim=1)
        entries.append(torch.where(entered, frames, 0).cummax(dim=1).values)
    return _Steps(torch.stack(entries, dim=1), torch.stack(diagonals, dim=1))
