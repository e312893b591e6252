"""Below which probability a word has low confidence, and is marked in documents, events and pictures."""

from __future__ import annotations

VERY_LOW_CONFIDENCE, LOW_CONFIDENCE = 0.5, 0.8
"""Probabilities below which a word may as well be wrong, and below which it may be."""


def has_low_confidence(probability: float) -> bool:
    """Tell whether a word of a probability may well be wrong; one without a number (NaN) does not count."""
    return probability < LOW_CONFIDENCE
