"""Comparison of n-best lists."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sottovoce.types import Hypothesis


def differences(ours: Sequence[Sequence[Hypothesis]], theirs: Sequence[Sequence[Hypothesis]]) -> list[str]:
    """What differs between the lists of each utterance; scores by more than 1e-4."""
    return [
        f"utterance {row}, {rank}: {a} and {b}"
        for row, (mine, others) in enumerate(zip(ours, theirs, strict=True))
        for rank, (a, b) in enumerate(zip(mine, others, strict=True))
        if (a.text, a.tokens, a.words) != (b.text, b.tokens, b.words)
        or (a.score, a.lm_score) != pytest.approx((b.score, b.lm_score), abs=1e-4)
    ]
