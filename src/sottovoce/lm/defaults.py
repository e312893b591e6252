"""Defaults that a command line shows; without PyTorch, so that its help is quick."""

from __future__ import annotations

HOTWORD_WEIGHT = 2.0
"""What each token of a hotword adds where nothing else is said (nats); at 3 base begins to repeat itself
(docs/lm-fusion.md)."""
