"""When tokens were said, as tensors of many hypotheses and as numbers of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


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
