"""Alignment of a given text with its recording, and search for phrases."""
