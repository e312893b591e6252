"""Align a given text with its recording: when each word is said, and where a phrase is."""
