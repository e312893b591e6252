"""Below which probability a word is marked, in documents, events and on pages."""

from __future__ import annotations

UNSURE, DOUBTFUL = 0.5, 0.8
"""Probabilities below which a word is marked as a guess, and as not sure."""


def is_doubtful(probability: float) -> bool:
    """Return whether a word of a probability may well be wrong; one without a number is not."""
    return probability < DOUBTFUL
