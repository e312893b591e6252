"""Defaults that a command line shows; without PyTorch, so that its help is quick."""

from __future__ import annotations

HOTWORD_WEIGHT = 3.0
"""What each token of a hotword adds where nothing else is said (nats)."""
