"""Defaults that a command line shows; without PyTorch, so that its help is quick."""

from __future__ import annotations

HOTWORD_WEIGHT = 2.0
"""What each token of a hotword adds where nothing else is said (nats); from 3 on base repeats itself in German
(docs/lm-fusion.md)."""
